"""Rounds of samples in a run's folder: a folder each, whole or absent.

    RUN/samples/step-00000100/       the recipe's own: 00-0.mp4 (prompt 0, seed 0), …
                              samples.json   what was asked for and what is there; written last
    RUN/samples/low4s/step-…/        those of a preset of the inference server (trainer.generation.server)

A round that was interrupted lies under a hidden name, which no reader looks at, and is made anew.
"""

import json
import re
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder import whole_file
from vidcurate.errors import StorageError

if TYPE_CHECKING:  # it loads torch, and the report reads rounds without
    from trainer.run_folder.sample_spec import SampleSpec

SAMPLES = "samples"
LISTING = "samples.json"
OWN = ""
"""the name of the set of rounds that the recipe itself asks for"""
_STEP = re.compile(r"^step-\d{8,}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One clip of a round: the number of its prompt, which with the seed decides its noise."""

    number: int
    prompt: str
    seed: int

    @property
    def file(self) -> str:
        return f"{self.number:02d}-{self.seed}.mp4"


def entries(spec: "SampleSpec") -> list[Entry]:
    """Return a round's clips in their order: all prompts of the first seed, then those of the next."""
    return [
        Entry(number=number, prompt=prompt, seed=seed)
        for seed in spec.seeds
        for number, prompt in enumerate(spec.prompts)
    ]


def folder(run: Path, name: str, step: int) -> Path:
    """Return where the round of `step` lies; `name` is that of its set."""
    return run / SAMPLES / name / run_folder_layout.folder_name(step)


def asked(spec: "SampleSpec") -> dict[str, Any]:
    """Return what of a round's request decides its clips, as plain JSON."""
    plain: dict[str, Any] = json.loads(spec.model_dump_json())
    return {key: value for key, value in plain.items() if key != "every"}


def listing(
    name: str, step: int, spec: "SampleSpec", *, weights: str, digest: str | None = None
) -> dict[str, Any]:
    """Return the samples.json of a round of the set `name`; files are named from the run's folder on.

    `weights` is ema or raw, `digest` that of the checkpoint's part that was sampled.
    """
    place = folder(Path(), name, step)
    return {
        "step": step,
        "time": round(time.time(), 3),
        "weights": weights,
        "digest": digest,
        "asked": asked(spec),
        "samples": [{**asdict(entry), "file": str(place / entry.file)} for entry in entries(spec)],
    }


def read_listing(where: Path) -> dict[str, Any] | None:
    """Return the listing of a round's folder; None where there is no whole round."""
    try:
        found: dict[str, Any] = json.loads((where / LISTING).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StorageError(f"{where / LISTING}: cannot be read ({error}).") from error
    return found


def is_of(found: dict[str, Any], spec: "SampleSpec", *, weights: str, digest: str) -> bool:
    """Say whether a round holds what is asked for, from a checkpoint of that digest.

    A round that names no digest was made by the training itself, of the weights that it then saved.
    """
    same = found.get("asked") == asked(spec) and found.get("weights") == weights
    return same and found.get("digest") in (None, digest)


def begin_round(where: Path, by: str) -> Path:
    """Return an empty hidden folder beside `where` to fill; `by` keeps two writers apart."""
    partial = where.with_name(f".{where.name}.{by}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    except OSError as error:
        raise StorageError(f"{partial}: cannot be written ({error}).") from error
    return partial


def finish_round(partial: Path, where: Path, facts: dict[str, Any]) -> None:
    """Write the listing and give the folder its name; an older round of that name makes way.

    The training and a server may finish the same round at once: then one of the two stays. Raises
    StorageError.
    """
    try:
        whole_file.write_beside(partial / LISTING, json.dumps(facts, indent=1) + "\n", is_flushed=True)
        shutil.rmtree(where, ignore_errors=True)
        partial.rename(where)
    except OSError as error:
        if (where / LISTING).is_file() and (partial / LISTING).is_file():
            shutil.rmtree(partial, ignore_errors=True)
            return
        raise StorageError(f"{where}: cannot be written ({error}).") from error


def clean_rounds(run: Path, name: str, by: str) -> None:
    """Remove what a writer that was killed left of its rounds."""
    for path in (run / SAMPLES / name).glob(f".step-*.{by}.partial"):
        shutil.rmtree(path, ignore_errors=True)


def sets(run: Path) -> list[str]:
    """Return the names of the sets that have a round, the recipe's own first."""
    found = {path.parents[1].name for path in (run / SAMPLES).glob(f"*/step-*/{LISTING}")}
    own = [OWN] if any((run / SAMPLES).glob(f"step-*/{LISTING}")) else []
    return own + sorted(found)


def rounds(run: Path, name: str = OWN) -> list[dict[str, Any]]:
    """Return the listings of a set's whole rounds, by step."""
    found = []
    for path in (run / SAMPLES / name).glob("step-*"):
        facts = read_listing(path) if _STEP.match(path.name) else None
        if facts is not None:
            found.append(facts)
    return sorted(found, key=lambda facts: int(facts["step"]))
