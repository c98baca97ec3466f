"""How fast is the table part, without video? 1 M rows in OpenVid's columns: ingest, filter, split.

    python benchmarks/tables.py [--rows 1000000] [--repeats 3]

The peer is the same work in pandas, as it is usually written: read_csv with string ids, duplicate and empty
checks, the same thresholds with a reason for each rejected row, levels by qcut, folds by a hash of the
source, one Parquet file a stage. Both run in a process of their own, in turn, from the same CSV; the figures
are medians. Peak memory is the largest resident size of the process. pandas has one thread: beside other work
on the machine the seconds of the CPU say more than those of the clock. Captions have 20 to 120 words.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import numpy as np
from rows import keep, peak_memory_bytes, row

VOCABULARY = (
    "a the of in on with and person camera street light water mountain tree dog child table car moving "
    "slowly bright dark blue red smiling standing holding walking across toward background scene view city"
)


def make_table(path: Path, count: int) -> None:
    """Write `count` rows as OpenVid-1M has them; one in a thousand has no caption, one is there twice."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(VOCABULARY.split(), size)) for size in rng.integers(20, 120, 2000)]
    scores = "aesthetic score,motion score,temporal consistency score"
    header = f"video,caption,{scores},camera motion,frame,fps,seconds"
    with path.open("w", encoding="utf-8") as file:
        file.write(header + "\n")
        for start in range(0, count, 50_000):
            size = min(50_000, count - start)
            frames, fps = rng.integers(24, 600, size), rng.choice([23.976, 25.0, 29.97, 30.0], size)
            drawn = rng.normal([5.0, 4.0, 0.99], [0.7, 3.0, 0.01], (size, 3))
            picks = rng.integers(0, len(texts), size)
            for n in range(size):
                number = start + n
                caption = "" if number % 1000 == 7 else f'"{texts[picks[n]]}, clip {number}"'
                name = f"src{number // 3:07d}_{number % 3}_0to{frames[n]}.mp4"
                a, m, t = drawn[n]
                file.write(
                    f"{name},{caption},{a:.4f},{m:.4f},{t:.5f},pan_left,{frames[n]},{fps[n]},"
                    f"{frames[n] / fps[n]:.3f}\n"
                )
        file.write("src0000000_0_0to100.mp4,twice,5,4,0.99,static,100,25,4\n")


def ours(csv: Path, run: Path) -> dict[str, float]:
    from vidcurate.difficulty import SplitSpec, run_split
    from vidcurate.filter import FilterSpec, OutlierRule, run_filter
    from vidcurate.ingest import IngestSpec, run_ingest

    start, before = perf_counter(), process_time()
    run_ingest(run, IngestSpec(metadata=csv))
    ingested = perf_counter()
    rules = FilterSpec(
        min_duration_seconds=2,
        max_duration_seconds=16,
        min_num_frames=51,
        limits={"motion_score": {"min": 1.0}, "temporal_consistency_score": {"min": 0.97}},
        outliers=(OutlierRule(column="aesthetic_score", value=0.0001),),
    )
    kept = run_filter(run, rules).rows_kept
    filtered = perf_counter()
    run_split(run, SplitSpec(column="aesthetic_score", levels=5, validation_fraction=0.01))
    done = perf_counter()
    return {
        "ingest": ingested - start,
        "filter": filtered - ingested,
        "split": done - filtered,
        "cpu": process_time() - before,
        "kept": kept,
        "peak_bytes": peak_memory_bytes(),
    }


def in_pandas(csv: Path, run: Path) -> dict[str, float]:
    import hashlib

    import pandas as pd

    start, before = perf_counter(), process_time()
    clips = pd.read_csv(csv, dtype={"video": str, "caption": str})
    clips["clip_id"] = clips["video"].str.replace(r"\.mp4$", "", regex=True)
    clips["source_id"] = clips["clip_id"].str.replace(r"_\d+_\d+to\d+$", "", regex=True)
    clips["problem"] = None
    clips.loc[clips["caption"].isna() | (clips["caption"].str.strip() == ""), "problem"] = "empty_caption"
    clips.loc[clips["clip_id"].duplicated(), "problem"] = "duplicate_id"
    run.mkdir()
    clips.to_parquet(run / "ingest.parquet", compression="zstd")
    ingested = perf_counter()
    clips = pd.read_parquet(run / "ingest.parquet")
    clips["reject_rule"], clips["reject_value"], clips["reject_threshold"] = clips["problem"], None, None
    rules = [
        ("min_duration", "seconds", ">=", 2),
        ("max_duration", "seconds", "<=", 16),
        ("min_frames", "frame", ">=", 51),
        ("min_motion", "motion score", ">=", 1.0),
        ("min_consistency", "temporal consistency score", ">=", 0.97),
    ]
    for name, column, sign, bound in rules:
        fails = clips[column].isna() | (clips[column] < bound if sign == ">=" else clips[column] > bound)
        fails &= clips["reject_rule"].isna()
        clips.loc[fails, "reject_rule"] = name
        clips.loc[fails, "reject_value"] = clips.loc[fails, column].astype(str)
        clips.loc[fails, "reject_threshold"] = f"{sign} {bound}"
    passed = clips["reject_rule"].isna()
    limit = clips.loc[passed, "aesthetic score"].quantile(0.9999, interpolation="lower")
    clips.loc[passed & (clips["aesthetic score"] > limit), "reject_rule"] = "outlier"
    clips.to_parquet(run / "filter.parquet", compression="zstd")
    clips[clips["reject_rule"].notna()][
        ["clip_id", "reject_rule", "reject_value", "reject_threshold"]
    ].to_parquet(run / "ledger.parquet", compression="zstd")
    filtered = perf_counter()
    clips = pd.read_parquet(run / "filter.parquet")
    passed = clips["reject_rule"].isna()
    clips["level"] = pd.qcut(clips.loc[passed, "aesthetic score"], 5, labels=False, duplicates="drop") + 1
    draw = clips["source_id"].map(lambda name: int(hashlib.md5(name.encode()).hexdigest()[:8], 16) / 2**32)
    clips["fold"] = (draw < 0.01).map({True: "validation", False: "train"})
    clips.groupby("level")["aesthetic score"].agg(["count", "mean", "std", "min", "max"]).to_json(
        run / "levels.json"
    )
    clips.to_parquet(run / "split.parquet", compression="zstd")
    done = perf_counter()
    return {
        "ingest": ingested - start,
        "filter": filtered - ingested,
        "split": done - filtered,
        "cpu": process_time() - before,
        "kept": int(passed.sum()),
        "peak_bytes": peak_memory_bytes(),
    }


def in_a_process(which: str, csv: Path, run: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--which", which, "--csv", str(csv), "--run", str(run)],
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--which", choices=["ours", "pandas"], help=argparse.SUPPRESS)
    arguments.add_argument("--csv", type=Path, help=argparse.SUPPRESS)
    arguments.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.which:
        print(json.dumps((ours if given.which == "ours" else in_pandas)(given.csv, given.run)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        csv = Path(scratch) / "OpenVid.csv"
        make_table(csv, given.rows)
        runs: dict[str, list[dict[str, float]]] = {"ours": [], "pandas": []}
        for _ in range(given.repeats):
            for which, found in runs.items():
                found.append(in_a_process(which, csv, Path(scratch) / which))
                shutil.rmtree(Path(scratch) / which)
    mine, peer = ({name: median(run[name] for run in found) for name in found[0]} for found in runs.values())
    assert abs(mine["kept"] - peer["kept"]) <= 1, (
        f"the two keep different rows: {mine['kept']}, {peer['kept']}"
    )
    rows = [
        row(
            f"{stage}, {given.rows:,} OpenVid rows",
            mine[stage],
            "s",
            peer="the same in pandas",
            peer_value=peer[stage],
            higher_is_better=False,
        )
        for stage in ("ingest", "filter", "split")
    ]
    total = [sum(one[stage] for stage in ("ingest", "filter", "split")) for one in (mine, peer)]
    rows.append(
        row(
            f"ingest + filter + split, {given.rows:,} OpenVid rows",
            total[0],
            "s",
            peer="the same in pandas",
            peer_value=total[1],
            goal=">= 10 x",
            higher_is_better=False,
        )
    )
    rows.append(
        row(
            f"the same by the CPU, {given.rows:,} OpenVid rows",
            mine["cpu"],
            "s of CPU",
            peer="the same in pandas",
            peer_value=peer["cpu"],
            higher_is_better=False,
        )
    )
    rows.append(
        row(
            "peak memory of that",
            mine["peak_bytes"] / 2**20,
            "MiB",
            peer="the same in pandas",
            peer_value=peer["peak_bytes"] / 2**20,
            higher_is_better=False,
        )
    )
    keep("tables", rows)


if __name__ == "__main__":
    main()
