"""The damaged files of the corpus: eight kinds of damage, each at several severities, in every container."""

import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.fault_corpus import clips, header_damage
from tests.fault_corpus.clips import CONTAINERS, Form
from vidcurate.curation.demo_data import damage

# The kinds, in the order of every table, with what is done to the file.
KINDS: dict[str, str] = {
    "truncated": "only the first part of the file is there",
    "flipped": "single bytes of the payload have other values",
    "zeroed": "a block of the payload reads as zeros",
    "overwritten": "a block of the payload holds random bytes",
    "dropped": "video packets (of a transport stream: its packets) are missing",
    "wrong_counts": "the header promises another duration or frame count",
    "swapped_audio": "the sound is another clip's, or bytes that are no sound",
    "garbage_tail": "random bytes behind the end",
}
_KEPT_PERCENT = (1, 5, 10, 25, 40, 50, 60, 75, 90, 95, 99)
_FLIPS = (1, 4, 16, 64)
_BLOCK_BYTES = (64, 512, 4096)
_DROPPED = (1, 3, 9)
_FIRST_DROPPED = 14
_FACTORS = (0.5, 2.0, 10.0)
_TAILS = (100, 5000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One file of the corpus. `kind` is None for a clean one; `severity` says how much is broken."""

    name: str
    container: str
    kind: str | None = None
    severity: str = ""


def _bytes_cases(container: str, data: bytes, seed: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield (kind, severity, bytes) of the damages that need nothing but the clean file's bytes."""
    for percent in _KEPT_PERCENT:
        yield "truncated", f"{percent} % kept", damage.truncate(data, percent / 100)
    for count in _FLIPS:
        yield "flipped", f"{count} bytes", damage.flip_bytes(data, seed=seed + count, count=count)
    for size in _BLOCK_BYTES:
        yield "zeroed", f"{size} bytes", damage.zero_block(data, size_bytes=size)
        broken = header_damage.overwrite_block(data, seed=seed + size, size_bytes=size)
        yield "overwritten", f"{size} bytes", broken
    if container == "ts":
        for count in _DROPPED:
            first = len(data) // 188 // 2
            yield (
                "dropped",
                f"{count} packets",
                header_damage.drop_transport_packets(data, first=first, count=count),
            )
    for factor in _FACTORS:
        scaled = header_damage.scale_promises(data, factor)
        if scaled != data:
            yield "wrong_counts", f"x {factor:g}", scaled
    for size in _TAILS:
        yield "garbage_tail", f"{size} bytes", damage.garbage_tail(data, seed=seed + size, size_bytes=size)


def _without_sound(clean: Path, data: bytes) -> bytes:
    """Return the file with the bytes of its sound packets in reverse order: sizes stay, sense goes."""
    changed = bytearray(data)
    for at, size in clips.sound_places(clean):
        changed[at : at + size] = data[at : at + size][::-1]
    return bytes(changed)


def _cases_of(
    container: str, form: Form, clean: Path, scratch: Path, seed: int
) -> Iterator[tuple[str, str, bytes]]:
    data = clean.read_bytes()
    yield from _bytes_cases(container, data, seed)
    copy = scratch / f"copy{form.suffix}"

    def copied(**options: object) -> bytes:
        clips.remux(clean, copy, form, **options)  # type: ignore[arg-type]
        return copy.read_bytes()

    if container != "ts":
        for count in _DROPPED:
            gone = range(_FIRST_DROPPED, _FIRST_DROPPED + count)
            yield "dropped", f"{count} packets", copied(gone=gone)
    for word, seconds in (("half as long", 0.75), ("twice as long", 3.0)):
        other = scratch / f"other{form.suffix}"
        clips.write_clip(other, form, seed=seed + 1, sound_seconds=seconds)
        yield "swapped_audio", word, copied(sound_from=other)
    yield "swapped_audio", "no sound", _without_sound(clean, data)


def write_corpus(
    folder: Path,
    *,
    seed: int = 0,
    clean_per_container: int = 3,
    containers: Collection[str] = tuple(CONTAINERS),
) -> list[Case]:
    """Write the corpus to `folder` and return its files in order, the clean ones first.

    `corpus.json` beside them holds the same list.
    """
    scratch = folder / ".making"
    scratch.mkdir(parents=True, exist_ok=True)
    found: list[Case] = []
    forms = {name: form for name, form in CONTAINERS.items() if name in containers}
    for container, form in forms.items():
        for number in range(clean_per_container):
            name = f"{container}-clean-{number}{form.suffix}"
            clips.write_clip(folder / name, form, seed=seed + 10 * number)
            found.append(Case(name=name, container=container))
    for container, form in forms.items():
        clean = folder / f"{container}-clean-0{form.suffix}"
        for kind, severity, data in _cases_of(container, form, clean, scratch, seed):
            name = f"{container}-{kind}-{severity.replace(' ', '').replace('%', 'pct')}{form.suffix}"
            (folder / name).write_bytes(data)
            found.append(Case(name=name, container=container, kind=kind, severity=severity))
    for path in scratch.iterdir():
        path.unlink()
    scratch.rmdir()
    (folder / "corpus.json").write_text(json.dumps([asdict(case) for case in found], indent=1) + "\n")
    return found
