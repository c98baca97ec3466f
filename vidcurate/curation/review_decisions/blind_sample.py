"""Blind sample: a stratified draw of clips, reviewed without the verdicts.

A stratum is the clips that one rule rejected first, or the kept clips (KEPT). Half of the sample is kept
clips, the other half is shared equally by the rules; a stratum with fewer clips is taken whole, and the
others take its part. Damaged clips (rejected before the filter's own rules) are not drawn: nobody can watch
them. `RUN/blind_samples/NAME.json` keeps the draw with the strata's sizes, so that later filters change
nothing in the estimate. A decision belongs to the sample by its `blind_sample`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vidcurate.curation.review_decisions.decision import Recorded
from vidcurate.curation.review_decisions.interval import stratum_interval, weighted_interval
from vidcurate.curation.review_decisions.outcome import merge_decisions
from vidcurate.errors import InputError, MissingError, TableError
from vidcurate.storage import atomic_file, regular_file

KEPT = "kept"
LEVEL = 0.95
FOLDER = "blind_samples"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindSample:
    """A draw. `populations`: stratum → number of its clips; `strata`: clip_id → stratum, in a drawn order."""

    name: str
    seed: int
    filtered: str
    populations: dict[str, int]
    strata: dict[str, str]

    @property
    def clip_ids(self) -> tuple[str, ...]:
        """The clips in the order in which reviewers see them."""
        return tuple(self.strata)


def allocate(populations: Mapping[str, int], size: int) -> dict[str, int]:
    """Return the number of clips to draw of each stratum. Raises InputError for fewer clips than strata."""
    if size < 2 * len(populations):
        raise InputError(
            f"--sample {size}: {len(populations)} strata ({', '.join(populations)}) need 2 clips each. Give "
            f"--sample {2 * len(populations)} or more."
        )
    rules = [name for name in populations if name != KEPT]
    kept = min(populations.get(KEPT, 0), size // 2 if rules else size)
    drawn = _share_out({name: populations[name] for name in rules}, size - kept)
    left = size - kept - sum(drawn.values())
    if KEPT in populations:
        drawn[KEPT] = min(populations[KEPT], kept + left)
    return {name: drawn[name] for name in populations}


def _share_out(populations: Mapping[str, int], size: int) -> dict[str, int]:
    """Share `size` equally; a stratum with fewer clips is taken whole and the others share the rest."""
    drawn: dict[str, int] = {}
    waiting = sorted(populations, key=lambda name: (populations[name], name))
    for number, name in enumerate(waiting):
        drawn[name] = min(populations[name], size // (len(waiting) - number))
        size -= drawn[name]
    return drawn


def path_of(run: Path, name: str) -> Path:
    """Return the path of a sample. Raises InputError for a name that is no plain word."""
    if not _NAME.fullmatch(name):
        raise InputError(f"sample {name!r}: a name has 1 to 60 letters, digits, - and _.")
    return run / FOLDER / f"{name}.json"


def write_sample(run: Path, sample: BlindSample) -> Path:
    """Write RUN/blind_samples/NAME.json. Raises InputError when another draw has the name, StorageError."""
    path = path_of(run, sample.name)
    if path.exists():
        if replace(read_sample(run, sample.name), filtered=sample.filtered) == sample:
            return path  # the same draw, after another filter that changed no stratum
        raise InputError(
            f"{path}: drawn before from other clips or with another seed. Give the new sample another --name."
        )
    atomic_file.write_json(path, asdict(sample))
    return path


def read_sample(run: Path, name: str) -> BlindSample:
    """Return a sample. Raises MissingError, TableError for a damaged file, InputError for a name."""
    path = path_of(run, name)
    try:
        fields = json.loads(regular_file.read_bytes(path))
        sample = BlindSample(**fields)
        assert sample.name == name, "the name is that of another sample"
        assert all(stratum in sample.populations for stratum in sample.strata.values()), "an unknown stratum"
    except FileNotFoundError as error:
        known = ", ".join(list_samples(run)) or "none"
        raise MissingError(
            f"{path}: no such sample (drawn so far: {known}). Draw one: "
            f"vidcurate review {run} --sample 300 --blind"
        ) from error
    except (ValueError, TypeError, AttributeError, AssertionError, OSError) as error:
        raise TableError(f"{path}: not a sample drawn by vidcurate ({error}). Draw another.") from error
    return sample


def list_samples(run: Path) -> list[str]:
    """Return the names of the run's samples, sorted."""
    folder = run / FOLDER
    return sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []


def _line(stratum: str, counted: tuple[int, int], population: int, level: float) -> dict[str, Any]:
    wrong, drawn = counted
    low, high = stratum_interval(wrong, drawn, population, level)
    return {
        "stratum": stratum,
        "error": "wrong keep" if stratum == KEPT else "wrong rejection",
        "clips": population,
        "reviewed": drawn,
        "wrong": wrong,
        "share": round(wrong / drawn, 6) if drawn else None,
        "low": round(low, 6),
        "high": round(high, 6),
    }


def estimate_errors(
    sample: BlindSample, decisions: Iterable[Recorded], level: float = LEVEL
) -> dict[str, Any]:
    """Return how often the filter was wrong, per rule and overall, by the blind decisions on the sample.

    A kept clip is a wrong keep when the reviewers reject it; a rejected one is a wrong rejection when they
    keep it; reviewers are merged as everywhere. `level` is the confidence of each interval. Returns sample,
    level, drawn, reviewed, strata: {stratum, error, clips, reviewed, wrong, share, low, high}; and
    wrong_rejections over all rules: {clips, share, low, high}, None while a rule has no review.
    The clips of a stratum that nobody has reviewed yet are taken as missing at random.
    """
    blind = [line for line in decisions if line.blind_sample == sample.name]
    outcomes = merge_decisions(blind)
    counts = {name: [0, 0] for name in sample.populations}
    for clip_id, stratum in sample.strata.items():
        verdict = outcomes[clip_id].verdict if clip_id in outcomes else None
        if verdict is not None:
            counts[stratum][0] += (verdict == "reject") == (stratum == KEPT)
            counts[stratum][1] += 1
    rules = [(*counts[name], sample.populations[name]) for name in sample.populations if name != KEPT]
    overall = weighted_interval([(wrong, drawn, clips) for wrong, drawn, clips in rules], level)
    return {
        "sample": sample.name,
        "level": level,
        "drawn": len(sample.strata),
        "reviewed": sum(drawn for _, drawn in counts.values()),
        "strata": [
            _line(name, (counts[name][0], counts[name][1]), sample.populations[name], level)
            for name in sample.populations
        ],
        "wrong_rejections": overall
        and {
            "clips": sum(clips for _, _, clips in rules),
            **dict(zip(("share", "low", "high"), (round(value, 6) for value in overall), strict=True)),
        },
    }
