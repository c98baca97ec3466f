"""Export index files of other WebDataset readers: Energon, DALI and wids.

    energon    SHARD.tar.idx: where each sample begins; .nv-meta/: counts, splits, a table of all parts
    dali       SHARD.idx: a line of text for each sample
    wids       index.json: url, samples, bytes and MD5 of each shard

All of this follows from manifest.json and index.parquet, except for wids' MD5, for which `export` reads the
tars once. `export` writes each file, and the folder .nv-meta, atomically; files that are up to date stay.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidcurate.errors import InputError, StorageError
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.shards.manifest import only_writer, read_manifest
from vidcurate.shards.reader_indexes import energon, wids
from vidcurate.shards.reader_indexes.samples import Sample, samples_of
from vidcurate.shards.write_shard import BUILD
from vidcurate.storage import atomic_file
from vidcurate.storage.atomic_file import write_if_absent

READERS = ("energon", "dali", "wids")


@dataclass(frozen=True, slots=True, kw_only=True)
class InteropSummary:
    """Readers, and the numbers of files written and kept."""

    readers: tuple[str, ...]
    shards: int
    files_written: int
    files_kept: int


def dali_text(samples: Sequence[Sample]) -> bytes:
    """Return SHARD.idx as DALI's wds2idx does: `v1.2 N`, then `extension offset size name` of each part."""
    lines = [f"v1.2 {len(samples)}"]
    for sample in samples:
        lines.append(
            " ".join(f"{p.extension} {p.offset} {p.size} {sample.key}.{p.extension}" for p in sample.parts)
        )
    return ("\n".join(lines) + "\n").encode("ascii")


def readers_of(text: str) -> tuple[str, ...]:
    """Return the readers named in a list with commas. Raises InputError for one that is not known."""
    names = tuple(name for name in (part.strip() for part in text.split(",")) if name)
    unknown = [name for name in names if name not in READERS]
    if unknown or not names:
        raise InputError(
            f"{', '.join(unknown) or 'nothing'}: there are index files for {', '.join(READERS)}."
        )
    return names


def export(
    folder: Path, readers: Sequence[str], *, num_workers: int = 1, progress: Progress = no_progress
) -> InteropSummary:
    """Write the index files of `readers` beside the shards in `folder`.

    Raises InputError for a folder without a finished set, ShardError when manifest and index do not fit,
    StageError while the set is being written, StorageError.
    """
    manifest = read_manifest(folder) if folder.is_dir() else None
    if manifest is None or (folder / BUILD).exists():
        raise InputError(f"{folder}: no finished set of shards. Run `vidcurate build-shards` first.")
    names = [entry["name"] for entry in manifest["shards"]]
    per_shard = [reader for reader in readers if reader != "wids"]
    total_bytes = sum(entry["bytes"] for entry in manifest["shards"])
    read = 0
    written = kept = 0

    def count(was_written: bool) -> None:
        nonlocal written, kept
        written, kept = written + was_written, kept + (not was_written)

    def reported(size: int) -> None:
        nonlocal read
        read += size
        progress(-(-read >> 20), -(-total_bytes >> 20), "MiB")  # rounded up

    try:
        with only_writer(folder):
            for name, samples in samples_of(folder, manifest) if per_shard else ():
                if "energon" in readers:
                    count(write_if_absent(folder / f"{name}.idx", energon.offsets(samples)))
                if "dali" in readers:
                    count(write_if_absent((folder / name).with_suffix(".idx"), dali_text(samples)))
            if "energon" in readers:
                count(energon.put_folder(folder, manifest))
            if "wids" in readers:
                count(wids.put_index(folder, manifest, num_workers, reported))
    except OSError as error:
        raise StorageError(
            f"{error.filename or folder}: cannot be written ({error.strerror or error})."
        ) from error
    return InteropSummary(readers=tuple(readers), shards=len(names), files_written=written, files_kept=kept)


def is_ours(name: str, shards: set[str]) -> bool:
    """Return whether a file beside these shards is an index file that `export` writes."""
    stem = name.removesuffix(".idx")
    return name in (energon.FOLDER, wids.NAME) or (
        name != stem and (stem in shards or f"{stem}.tar" in shards)
    )


def remove(folder: Path, shards: set[str]) -> None:
    """Remove every index file of these shards, so that no reader uses it with others. Raises OSError."""
    shutil.rmtree(folder / energon.FOLDER, ignore_errors=True)
    for path in folder.iterdir():
        is_partial = path.name.startswith(".") and ".partial" in path.name and path.is_file()
        if path.name != energon.FOLDER and (is_ours(path.name, shards) or is_partial):
            path.unlink()
        elif atomic_file.is_partial(path.name):  # of a folder
            shutil.rmtree(path, ignore_errors=True)


def problems(folder: Path, manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (file, what is wrong) of the index files in `folder`, for each reader that has any.

    Compares the BLAKE3 stored with each MD5 sum, without recomputing the MD5.
    """
    names = [entry["name"] for entry in manifest["shards"]]
    has_offsets = (folder / energon.FOLDER).exists() or any(
        (folder / f"{name}.idx").exists() for name in names
    )
    has_text = any((folder / name).with_suffix(".idx").exists() for name in names)
    for name, samples in samples_of(folder, manifest) if has_offsets or has_text else ():
        wanted = [(f"{name}.idx", energon.offsets)] if has_offsets else []
        wanted += [(f"{name.removesuffix('.tar')}.idx", dali_text)] if has_text else []
        for file, make in wanted:
            path = folder / file
            if not path.is_file():
                yield file, "is not there, and those of other shards are; run `vidcurate export-index` again"
            elif path.read_bytes() != make(samples):
                yield file, "is not what the index gives; run `vidcurate export-index` again"
    if (folder / energon.FOLDER).exists():
        yield from energon.problems(folder, manifest)
    if (folder / wids.NAME).exists():
        md5 = {name: md5 for (name, _), md5 in wids.known_md5(folder).items()}
        if md5.keys() != set(names) or (folder / wids.NAME).read_bytes() != wids.to_json(manifest, md5):
            yield wids.NAME, "is not what the manifest gives; run `vidcurate export-index` again"
