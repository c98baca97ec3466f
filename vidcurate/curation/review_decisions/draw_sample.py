"""Draw of a blind sample from a filtered run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from vidcurate import rng
from vidcurate.curation.clip_table import rejection_ledger, table
from vidcurate.curation.review_decisions.blind_sample import KEPT, BlindSample, allocate, write_sample
from vidcurate.errors import InputError

_REVIEW = "review"
# Clips that these stages rejected cannot be watched, and a clip that was not written is in no stratum.
_NOT_DRAWN = ("ingest", "probe", "frames", "models", rejection_ledger.BUILD)


def strata_of(run: Path) -> dict[str, list[str]]:
    """Return stratum → clip ids: the rule that the recipe's filter rejects a clip by first, or KEPT.

    Review decisions do not count: a clip decided by eye is in the stratum of its first other rule. Damaged
    clips are left out. Raises StageError when no filter has been run.
    """
    entries = rejection_ledger.read_ledger(run).filter(pl.col("rule") != _REVIEW)
    first = (
        entries.sort("order", maintain_order=True)
        .group_by("clip_id", maintain_order=True)
        .agg(pl.col("rule").first(), pl.col("stage").first(), pl.col("order").first())
    )
    clips = (
        table.scan(run, "filter")
        .select("clip_id")
        .join(first, on="clip_id", how="left", maintain_order="left")
        .filter(~pl.col("stage").fill_null("").is_in(_NOT_DRAWN))
        .select("clip_id", pl.col("rule").fill_null(KEPT), pl.col("order").fill_null(-1))
        .sort("order", "rule", maintain_order=True)
        .collect()
    )
    found: dict[str, list[str]] = {}
    for rule, clip_id in clips.select("rule", "clip_id").iter_rows():
        found.setdefault(rule, []).append(clip_id)
    return found


def draw(strata: Mapping[str, Sequence[str]], size: int, seed: int) -> dict[str, str]:
    """Return clip_id → stratum of the drawn clips, in a random order. Raises InputError.

    Each clip has a random number that is a function of its id and the seed; in each stratum the clips with
    the smallest are drawn, and the sample is in the order of these numbers.
    """
    if not strata:
        raise InputError("--sample: the filter has no clip that can be watched.")
    drawn: list[tuple[float, str, str]] = []
    for name, count in allocate({name: len(clips) for name, clips in strata.items()}, size).items():
        ids = pl.Series(list(strata[name]), dtype=pl.String)
        numbers = rng.uniform(rng.id_hashes(ids.to_arrow()), rng.key(seed, "blind"))
        drawn += sorted(
            (number, clip_id, name) for number, clip_id in zip(numbers.tolist(), ids, strict=True)
        )[:count]
    return {clip_id: name for _, clip_id, name in sorted(drawn)}


def draw_sample(run: Path, size: int, *, seed: int = 0, name: str | None = None) -> BlindSample:
    """Draw a blind sample of `size` clips, write RUN/blind_samples/NAME.json and return the sample.

    `name` is seed-SEED-SIZE unless given. The same draw again changes nothing. Raises InputError for fewer
    than two clips a stratum or a name that another draw has, StageError, StorageError.
    """
    table.newest_stage(run)  # refuses tables that do not belong together
    strata = strata_of(run)
    sample = BlindSample(
        name=name or f"seed-{seed}-{size}",
        seed=seed,
        filtered=table.digest(table.stage_path(run, "filter")),
        populations={stratum: len(clips) for stratum, clips in strata.items()},
        strata=draw(strata, size, seed),
    )
    write_sample(run, sample)
    return sample
