"""Table stages for a million clips: time, CPU and memory of each.

    python benchmarks/million.py [--rows 1000000]

No video is read: what probe and score-frames would have found is drawn at random, with twins planted, and
written as their tables. Every stage runs in a separate process, from the tables on disk; memory is the
largest resident size of that process, imports and all. The time is beside that of the ingest, the memory
beside the limit of 4 GiB.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from rows import keep, peak_memory_bytes, row
from tables import make_table

LIMIT_BYTES = 4 << 30
TWINS = 0.01  # share of the clips that are a copy of another


def ingest(csv: Path, run: Path) -> Any:
    from vidcurate.curation.ingest.spec import IngestSpec
    from vidcurate.curation.ingest.stage import run_ingest

    return run_ingest(run, IngestSpec(metadata=csv)).rows_kept


def probe_columns(csv: Path, run: Path) -> Any:
    """Write RUN/probe.parquet as a probe at the level index would, of drawn values."""
    import polars as pl

    from vidcurate.curation.clip_table import table
    from vidcurate.curation.clip_table.schema import COLUMNS, written_by

    rng = np.random.default_rng(1)
    clips = table.scan(run, "ingest").select("clip_id", "fps", "num_frames", "duration_seconds").collect()
    count = len(clips)
    short = rng.choice([480, 720, 1080, 2160], count)
    status = pl.Series(rng.choice(["ok"] * 199 + ["truncated"], count))
    size = rng.integers(200_000, 20_000_000, count)
    drawn = clips.with_columns(
        status.alias("probe_status"),
        pl.when(status != "ok").then(pl.lit("bytes are missing.")).alias("probe_problem"),
        pl.lit("index").alias("integrity_level"),
        pl.when(status != "ok").then(pl.lit("truncated")).alias("probe_findings"),
        pl.lit("mov").alias("container"),
        pl.lit("h264").alias("codec"),
        pl.lit("yuv420p").alias("pixel_format"),
        pl.Series("width", short * 16 // 9),
        pl.Series("height", short),
        pl.Series("file_size_bytes", size),
        pl.lit(1.0).alias("sample_aspect_ratio"),
        pl.Series("bit_rate", size),
    )  # fmt: skip
    own = [name for name in written_by("probe") if name not in drawn.columns]
    drawn = drawn.with_columns(pl.lit(None, dtype=COLUMNS[name].dtype).alias(name) for name in sorted(own))
    drawn = drawn.cast({name: COLUMNS[name].dtype for name in drawn.columns})
    source = table.stage_path(run, "ingest")
    origin = table.Provenance(stage="probe", settings={}, inputs={"ingest": table.digest(source)})
    table.write(drawn, table.stage_path(run, "probe"), origin)
    return count


def score(csv: Path, run: Path) -> Any:
    from vidcurate.curation.caption_scores.stage import ScoreSpec, run_score

    return run_score(run, ScoreSpec(noun_engine="builtin")).rows_scored


def frames_columns(csv: Path, run: Path) -> Any:
    """Write RUN/frames.parquet as score-frames would, of drawn values, with copies of other clips in it."""
    import polars as pl

    from vidcurate.curation.clip_table import table
    from vidcurate.curation.clip_table.schema import COLUMNS, written_by

    rng = np.random.default_rng(2)
    clips = table.scan(run, "score").select("clip_id").collect()
    count = len(clips)
    copies = rng.choice(count, int(count * TWINS), replace=False)
    originals = rng.integers(0, count, len(copies))
    hashes = rng.integers(1, 2**63, (count, 5), dtype=np.uint64)
    flipped = np.uint64(1) << rng.integers(1, 64, (len(copies), 5), dtype=np.uint64)
    hashes[copies] = hashes[originals] ^ flipped
    pictures = rng.integers(0, 256, (count, 192), dtype=np.uint8)
    pictures[copies] = pictures[originals]
    drawn = clips.with_columns(
        pl.lit("ok").alias("frames_status"),
        pl.Series("num_frames_decoded", rng.integers(24, 600, count)),
        *(
            pl.Series(f"{name}_{word}", rng.gamma(2.0, scale, count))
            for name, scale in (("motion_px_per_frame", 1.0), ("sharpness", 0.3), ("brightness", 55.0))
            for word in ("min", "mean", "median", "max", "first")
        ),
        *(
            pl.Series(name, np.maximum(0, rng.normal(-1, 1, count)))
            for name in ("flicker", "black_share", "frozen_share")
        ),
        *(
            pl.lit(0).alias(f"letterbox_{side}_px") for side in ("top", "bottom", "left", "right")
        ),
        pl.Series("num_cuts", rng.poisson(0.1, count)),
        pl.Series("perceptual_hashes", hashes),
        pl.Series("perceptual_thumbnail", pictures),
        pl.concat_str(pl.lit("packets-"), "clip_id").alias("packet_hash"),
    )  # fmt: skip
    own = [name for name in written_by("frames") if name not in drawn.columns]
    drawn = drawn.with_columns(pl.lit(None, dtype=COLUMNS[name].dtype).alias(name) for name in sorted(own))
    drawn = drawn.cast({name: COLUMNS[name].dtype for name in drawn.columns})
    source = table.stage_path(run, "score")
    origin = table.Provenance(stage="frames", settings={}, inputs={"score": table.digest(source)})
    table.write(drawn, table.stage_path(run, "frames"), origin)
    return len(copies)


def dedup(csv: Path, run: Path) -> Any:
    from vidcurate.curation.dedup.spec import DedupSpec
    from vidcurate.curation.dedup.stage import run_dedup

    return run_dedup(run, DedupSpec(exact=False)).duplicates


def filter_(csv: Path, run: Path) -> Any:
    from vidcurate.curation.filter.spec import FilterSpec, Limit, OutlierRule
    from vidcurate.curation.filter.stage import run_filter

    rules = FilterSpec(
        limits={
            "short_side": Limit(min=480),
            "duration_seconds": Limit(min=2, max=16),
            "num_frames": Limit(min=51),
            "motion_px_per_frame_mean": {"min": 0.2},
            "aesthetic_score": {"min": 3.5},
        },
        outliers=(OutlierRule(column="noun_count", value=0.0001),),
    )
    return run_filter(run, rules).rows_kept


def split(csv: Path, run: Path) -> Any:
    from vidcurate.curation.difficulty.spec import SplitSpec
    from vidcurate.curation.difficulty.stage import run_split

    return run_split(run, SplitSpec(levels=5, validation_fraction=0.01)).rows_kept


def what_if(csv: Path, run: Path) -> Any:
    from vidcurate.curation.report import what_if as report_what_if

    spec = report_what_if.spec_of(run, settings=["limits.aesthetic_score.min=4.5"])
    return report_what_if.what_if(run, spec)["kept"]["clips"]


def sweep(csv: Path, run: Path) -> Any:
    from vidcurate.curation.report import what_if as report_what_if

    values = ",".join(f"{4 + 0.1 * number:.10g}" for number in range(20))
    return len(
        report_what_if.sweep(run, report_what_if.spec_of(run), f"limits.aesthetic_score.min={values}")[
            "points"
        ]
    )


def ledger(csv: Path, run: Path) -> Any:
    from vidcurate.curation.clip_table import rejection_ledger

    return rejection_ledger.check_ledger(run)["entries_replayed"]


def card(csv: Path, run: Path) -> Any:
    from vidcurate.curation.report.card import CardSpec, run_card

    return run_card(run, CardSpec()).stat().st_size


def report(csv: Path, run: Path) -> Any:
    from vidcurate.curation.report.build import run_report

    return run_report(run).size_bytes


def export(csv: Path, run: Path) -> Any:
    from vidcurate.curation.clip_table import table

    out = run / "export.parquet"
    table.export(table.scan(run, table.newest_stage(run)), out)
    return out.stat().st_size


# name → (the stage, what its result counts); the columns of probe and frames are made, not measured.
STAGES: dict[str, tuple[Callable[[Path, Path], Any], str]] = {
    "ingest": (ingest, "rows kept"),
    "(probe's columns)": (probe_columns, "rows"),
    "score": (score, "captions"),
    "(frames' columns)": (frames_columns, "copies planted"),
    "dedup": (dedup, "copies found"),
    "filter": (filter_, "rows kept"),
    "split": (split, "rows kept"),
    "what-if": (what_if, "rows kept"),
    "what-if, 20 thresholds": (sweep, "points"),
    "ledger --check": (ledger, "entries replayed"),
    "card": (card, "bytes"),
    "report": (report, "bytes"),
    "export": (export, "bytes"),
}


def in_a_process(stage: str, csv: Path, run: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--stage", stage, "--csv", str(csv), "--run", str(run)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--stage", choices=[*STAGES], help=argparse.SUPPRESS)
    arguments.add_argument("--csv", type=Path, help=argparse.SUPPRESS)
    arguments.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.stage:
        start, before = perf_counter(), process_time()
        result = STAGES[given.stage][0](given.csv, given.run)
        took = {"seconds": perf_counter() - start, "cpu_seconds": process_time() - before}
        print(json.dumps({**took, "peak_bytes": peak_memory_bytes(), "result": result}))
        return
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        csv, run = Path(scratch) / "OpenVid.csv", Path(scratch) / "run"
        make_table(csv, given.rows)
        found: dict[str, dict[str, float]] = {}
        for stage, (_, what) in STAGES.items():
            found[stage] = one = in_a_process(stage, csv, run)
            print(
                f"{stage}: {one['seconds']:.2f} s, {one['cpu_seconds']:.2f} s of CPU, "
                f"{one['peak_bytes'] / 2**20:,.0f} MiB, {one['result']:,} {what}",
                file=sys.stderr,
                flush=True,
            )
    measured = {stage: one for stage, one in found.items() if not stage.startswith("(")}
    for stage, one in measured.items():
        rows.append(
            row(
                f"{stage}, {given.rows:,} clips",
                one["cpu_seconds"],
                "s of CPU",
                peer="the ingest of the same rows",
                peer_value=measured["ingest"]["cpu_seconds"],
                higher_is_better=False,
            )
            | {"seconds": round(one["seconds"], 2), "peak_mib": round(one["peak_bytes"] / 2**20)}
        )
    peak = max(measured.values(), key=lambda one: one["peak_bytes"])["peak_bytes"]
    rows.append(
        row(
            f"largest memory of a stage, {given.rows:,} clips",
            peak / 2**20,
            "MiB",
            peer="4 GiB",
            peer_value=LIMIT_BYTES / 2**20,
            goal=">= 1 x",
            higher_is_better=False,
        )
    )
    whole = sum(one["seconds"] for one in measured.values())
    rows.append(
        row(
            f"all of these stages, {given.rows:,} clips",
            whole,
            "s",
            peer="a minute",
            peer_value=60.0,
            higher_is_better=False,
        )
    )
    keep("million", rows)


if __name__ == "__main__":
    main()
