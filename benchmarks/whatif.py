"""What-if speed: 1 M clips with cached scores, one other threshold, a sweep of 20.

    python benchmarks/whatif.py [--rows 1000000]

Peers: the same filter in pandas from the same columns of one Parquet file (read only these, the same rules,
clips and hours kept), and running `vidcurate filter` again. A sweep in pandas reads the file once, as ours
does. Each peer runs in a process of its own, in turn with ours; medians of `--repeats`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import polars as pl
from rows import keep, peak_memory_bytes, row

POINTS = 20
OUTLIER = 0.0001


def make_run(run: Path, count: int) -> None:
    """Write a run of `count` clips with the columns that a filter looks at."""
    from vidcurate.curation.clip_table import table

    rng = np.random.default_rng(0)
    ids = pl.select(pl.concat_str(pl.lit("clip-"), pl.int_range(count).cast(pl.String))).to_series()
    short, ratio = rng.choice([480, 720, 1080, 2160], count), rng.choice([0.5625, 1.0, 1.7778], count)
    frame = pl.DataFrame(
        {
            "clip_id": ids,
            "video_path": ids + ".mp4",
            "source_dataset": rng.choice(["openvid", "miradata", "own"], count),
            "caption": ids + " " + "a long caption that no rule looks at " * 8,
            "ingest_problem": pl.Series([None], dtype=pl.String).new_from_index(0, count),
            "probe_status": pl.Series(rng.choice(["ok"] * 99 + ["truncated"], count)),
            "probe_problem": pl.Series([None], dtype=pl.String).new_from_index(0, count),
            "width": pl.Series((short / ratio).astype(np.int32)),
            "height": pl.Series(short.astype(np.int32)),
            "num_frames": rng.integers(24, 600, count),
            "duration_seconds": rng.gamma(3.0, 2.5, count),
            "noun_count": pl.Series(rng.poisson(14, count).astype(np.int32)),
            "aesthetic_score": rng.normal(5.0, 0.7, count),
            "motion_score": rng.gamma(2.0, 2.0, count),
        }
    )
    table.write(frame, run / "score.parquet", table.Provenance(stage="score", settings={}, inputs={}))


SETTINGS = [
    "min_duration_seconds=2", "max_duration_seconds=16", "min_num_frames=51", "min_short_side=480",
    "limits.motion_score.min=1", f"outliers=[{{column: noun_count, value: {OUTLIER}}}]",
]  # fmt: skip
THRESHOLDS = [4.0 + 0.1 * number for number in range(POINTS)]


def ours(run: Path) -> dict[str, object]:
    from vidcurate.curation.report import what_if

    start = perf_counter()
    spec = what_if.spec_of(run, settings=[*SETTINGS, "limits.aesthetic_score.min=4.5"])
    one = what_if.what_if(run, spec)["kept"]
    single = perf_counter()
    points = ",".join(f"{value:.10g}" for value in THRESHOLDS)
    swept = what_if.sweep(run, spec, f"limits.aesthetic_score.min={points}")["points"]
    done = perf_counter()
    return {
        "one": single - start,
        "sweep": done - single,
        "kept": [one["clips"], *(point["clips"] for point in swept)],
        "peak_bytes": peak_memory_bytes(),
    }


def again(run: Path) -> dict[str, object]:
    from vidcurate.curation.filter import stage as filter_stage
    from vidcurate.curation.report import what_if

    start = perf_counter()
    spec = what_if.spec_of(run, settings=[*SETTINGS, "limits.aesthetic_score.min=4.5"])
    kept = filter_stage.run_filter(run, spec).rows_kept
    return {"one": perf_counter() - start, "kept": [kept], "peak_bytes": peak_memory_bytes()}


def in_pandas(run: Path) -> dict[str, object]:
    import pandas as pd

    columns = [
        "source_dataset", "ingest_problem", "probe_status", "width", "height", "num_frames",
        "duration_seconds", "noun_count", "aesthetic_score", "motion_score",
    ]  # fmt: skip

    def read() -> "pd.DataFrame":
        return pd.read_parquet(run / "score.parquet", columns=columns)

    def kept(clips: "pd.DataFrame", aesthetic: float) -> tuple[int, float]:
        good = clips["ingest_problem"].isna() & (clips["probe_status"] == "ok")
        good &= (clips["duration_seconds"] >= 2) & (clips["duration_seconds"] <= 16)
        good &= clips["num_frames"] >= 51
        good &= clips[["width", "height"]].min(axis=1) >= 480
        good &= (clips["motion_score"] >= 1) & (clips["aesthetic_score"] >= aesthetic)
        good &= clips["noun_count"] <= clips.loc[good, "noun_count"].quantile(
            1 - OUTLIER, interpolation="lower"
        )
        chosen = clips[good]
        chosen.groupby("source_dataset")["duration_seconds"].agg(["size", "sum"])
        return len(chosen), float(chosen["duration_seconds"].sum())

    start = perf_counter()
    counts = [kept(read(), 4.5)[0]]
    single = perf_counter()
    clips = read()
    counts += [kept(clips, value)[0] for value in THRESHOLDS]
    done = perf_counter()
    return {
        "one": single - start,
        "sweep": done - single,
        "kept": counts,
        "peak_bytes": peak_memory_bytes(),
    }


WORK = {"ours": ours, "pandas": in_pandas, "filter": again}


def in_a_process(which: str, run: Path, count: int = 0) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, __file__, "--which", which, "--run", str(run), "--rows", str(count)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--which", choices=[*WORK, "make"], help=argparse.SUPPRESS)
    arguments.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.which == "make":
        make_run(given.run, given.rows)
        print("{}")
        return
    if given.which:
        print(json.dumps(WORK[given.which](given.run)))
        return
    found: dict[str, list[dict[str, object]]] = {which: [] for which in WORK}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(given.repeats):
            run = Path(scratch) / str(number)
            in_a_process("make", run, given.rows)  # a child's peak memory begins at its parent's
            for which in WORK:
                found[which].append(in_a_process(which, run))
    first = found["ours"][0]["kept"]
    assert first == found["pandas"][0]["kept"], (
        f"the two keep other clips: {first}, {found['pandas'][0]['kept']}"
    )
    assert first[:1] == found["filter"][0]["kept"], "a what-if and the filter keep other clips"

    def median(which: str, what: str) -> float:
        return statistics.median(float(one[what]) for one in found[which])

    of = f"{given.rows:,} clips"
    rows = [
        row(f"{metric}, {of}", median("ours", what), "s", peer=peer, peer_value=median(which, what),
            goal=goal, higher_is_better=False)
        for metric, what, peer, which, goal in (
            ("what-if, one other threshold", "one", "filter run again", "filter", ""),
            ("what-if, one other threshold", "one", "the same in pandas", "pandas", "seconds"),
            (f"what-if, sweep of {POINTS}", "sweep", "the same in pandas", "pandas", "seconds"),
        )
    ]  # fmt: skip
    memory = [median(which, "peak_bytes") / 2**20 for which in ("ours", "pandas")]
    rows.append(
        row("peak memory of both", memory[0], "MiB", peer="the same in pandas", peer_value=memory[1],
            higher_is_better=False)
    )  # fmt: skip
    keep("whatif", rows)


if __name__ == "__main__":
    main()
