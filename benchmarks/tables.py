"""Table stages without video: ingest, filter and split of 1 M rows in OpenVid's columns.

    python benchmarks/tables.py [--rows 1000000] [--repeats 3]

There are two peers. `pandas` is the work as it is usually written: read_csv with string ids, duplicate and
empty checks, the same thresholds with one reason for each rejected row, levels by qcut, folds by a hash of
the source, the whole table as a Parquet file a stage. `careful` does in pandas what ours does besides: cells
read as text and each number that does not parse reported, paths that leave the root, safe keys, a digest of
what was read in each file, every rule that a clip fails, the jumps between levels (effect size, KS distance,
tails), and files of a stage's own columns. The floor is polars alone: it reads the CSV as text and writes it
as Parquet, nothing else.

Each runs in a process of its own, in turn, from the same CSV; the figures are medians. Peak memory is the
largest resident size of the process. Most of pandas is one thread: beside other work on the machine the
seconds of the CPU say more than those of the clock. Captions have 20 to 120 words.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import numpy as np
from rows import cpu, keep, peak_memory_bytes, row

STAGES = ("ingest", "filter", "split")
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


def measured(marks: tuple[float, float, float, float], cpu_before: float, kept: int) -> dict[str, float]:
    """Return what a process says of its run: `marks` are the times before and after each stage."""
    seconds = {stage: end - start for stage, (start, end) in zip(STAGES, pairwise(marks), strict=True)}
    cpu = process_time() - cpu_before
    return {**seconds, "cpu": cpu, "kept": kept, "peak_bytes": peak_memory_bytes()}


def ours(csv: Path, run: Path) -> dict[str, float]:
    from vidcurate.curation.difficulty.spec import SplitSpec
    from vidcurate.curation.difficulty.stage import run_split
    from vidcurate.curation.filter.spec import FilterSpec, Limit, OutlierRule
    from vidcurate.curation.filter.stage import run_filter
    from vidcurate.curation.ingest.spec import IngestSpec
    from vidcurate.curation.ingest.stage import run_ingest

    start, before = perf_counter(), process_time()
    run_ingest(run, IngestSpec(metadata=csv))
    ingested = perf_counter()
    rules = FilterSpec(
        limits={
            "duration_seconds": Limit(min=2, max=16),
            "num_frames": Limit(min=51),
            "motion_score": {"min": 1.0},
            "temporal_consistency_score": {"min": 0.97},
        },
        outliers=(OutlierRule(column="aesthetic_score", value=0.0001),),
    )
    kept = run_filter(run, rules).rows_kept
    filtered = perf_counter()
    run_split(run, SplitSpec(column="aesthetic_score", levels=5, validation_fraction=0.01))
    done = perf_counter()
    return measured((start, ingested, filtered, done), before, kept)


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
    return measured((start, ingested, filtered, done), before, int(passed.sum()))


RULES = [
    ("min_duration", "seconds", ">=", 2),
    ("max_duration", "seconds", "<=", 16),
    ("min_frames", "frame", ">=", 51),
    ("min_motion", "motion score", ">=", 1.0),
    ("min_consistency", "temporal consistency score", ">=", 0.97),
]


def careful(csv: Path, run: Path) -> dict[str, float]:
    import hashlib

    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    def digest(path: Path) -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def write(table: "pd.DataFrame", name: str, source: Path) -> None:
        made = pa.Table.from_pandas(table, preserve_index=False)
        made = made.replace_schema_metadata({"inputs": json.dumps({source.name: digest(source)})})
        pq.write_table(made, run / f".{name}", compression="zstd")
        (run / f".{name}").rename(run / name)

    start, before = perf_counter(), process_time()
    text = pd.read_csv(csv, dtype=str, keep_default_na=False)
    text = text.apply(lambda cells: cells.str.strip())
    clips = pd.DataFrame({"clip_id": text["video"].str.replace(r"\.mp4$", "", regex=True)})
    clips["source_id"] = clips["clip_id"].str.replace(r"_\d+_\d+to\d+$", "", regex=True)
    is_safe = clips["clip_id"].str.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,150}")
    assert is_safe.all(), "the made ids are safe keys"
    clips["sample_key"], clips["video_path"] = clips["clip_id"], text["video"]
    clips["caption"] = text["caption"].where(text["caption"] != "")
    is_bad = pd.Series(False, index=clips.index)
    for name in text.columns[2:]:
        if name == "camera motion":
            clips[name] = text[name]
            continue
        clips[name] = pd.to_numeric(text[name], errors="coerce")
        is_bad |= clips[name].isna() & ~text[name].isin(["", "nan", "NaN", "None", "null", "NA"])
    clips["problem"] = None
    clips.loc[clips["caption"].isna(), "problem"] = "empty_caption"
    clips.loc[is_bad, "problem"] = "bad_value"
    clips.loc[clips["clip_id"].duplicated(), "problem"] = "duplicate_id"
    leaves = text["video"].str.contains(r"^/|(?:^|/)\.{0,2}(?:/|$)")
    clips.loc[leaves, "problem"] = "path_outside_root"
    run.mkdir()
    write(clips, "ingest.parquet", csv)
    (run / "reconcile.json").write_text(json.dumps(clips["problem"].value_counts().to_dict()))
    ingested = perf_counter()
    needed = ["clip_id", "problem", "aesthetic score", *dict.fromkeys(column for _, column, *_ in RULES)]
    clips = pd.read_parquet(run / "ingest.parquet", columns=needed)
    has_problem = clips["problem"].notna()
    failing = clips.loc[has_problem, ["clip_id"]]
    entries = [failing.assign(order=0, rule=clips["problem"], value=clips["clip_id"], threshold="none")]
    passed = ~has_problem
    for order, (name, column, sign, bound) in enumerate(RULES, start=1):
        fails = clips[column].isna() | (clips[column] < bound if sign == ">=" else clips[column] > bound)
        reported = clips.loc[fails, column].astype(str)
        threshold = f"{sign} {bound}"
        entries.append(
            clips.loc[fails, ["clip_id"]].assign(order=order, rule=name, value=reported, threshold=threshold)
        )
        passed &= ~fails
    limit = clips.loc[passed, "aesthetic score"].quantile(0.9999, interpolation="lower")
    fails = clips["aesthetic score"].isna() | (clips["aesthetic score"] > limit)
    reported = clips.loc[fails, "aesthetic score"].astype(str)
    entries.append(
        clips.loc[fails, ["clip_id"]].assign(
            order=len(RULES) + 1, rule="outlier", value=reported, threshold=f"<= {limit}"
        )
    )
    passed &= ~fails
    ledger = pd.concat(entries).sort_index(kind="stable")
    ledger["is_verdict"] = ~ledger.index.duplicated()
    verdicts = clips[["clip_id"]].assign(is_kept=passed)
    first = ledger[ledger["is_verdict"]]
    verdicts = verdicts.join(first[["rule", "value", "threshold"]].add_prefix("reject_"))
    write(ledger, "ledger.parquet", run / "ingest.parquet")
    write(verdicts, "filter.parquet", run / "ingest.parquet")
    filtered = perf_counter()
    clips = pd.read_parquet(
        run / "ingest.parquet", columns=["clip_id", "source_id", "aesthetic score", "frame", "seconds"]
    )
    verdicts = pd.read_parquet(run / "filter.parquet")
    kept = clips[verdicts["is_kept"]]
    level = pd.qcut(kept["aesthetic score"], 5, labels=False, duplicates="drop") + 1
    draw = kept["source_id"].map(lambda name: int(hashlib.md5(name.encode()).hexdigest()[:8], 16) / 2**32)
    fold = (draw < 0.01).map({True: "validation", False: "train"})
    found = []
    for column in ("aesthetic score", "frame", "seconds"):
        parts = [kept.loc[level == number, column].to_numpy() for number in range(1, 6)]
        for low, high in pairwise(parts):
            every = np.unique(np.concatenate([low, high]))
            below = [np.searchsorted(np.sort(part), every, side="right") / len(part) for part in (low, high)]
            found.append(
                {
                    "effect_size": float((high.mean() - low.mean()) / np.concatenate([low, high]).std()),
                    "ks_distance": float(np.abs(below[0] - below[1]).max()),
                    "tail_ratio": float(np.quantile(high, 0.99) / np.quantile(low, 0.99)),
                }
            )
    reported_levels = kept.groupby(level)["aesthetic score"].agg(["count", "mean", "std", "min", "max"])
    (run / "levels.json").write_text(json.dumps({"levels": reported_levels.to_dict(), "jumps": found}))
    write(verdicts.assign(level=level, fold=fold), "split.parquet", run / "filter.parquet")
    done = perf_counter()
    return measured((start, ingested, filtered, done), before, int(passed.sum()))


def floor(csv: Path, run: Path) -> dict[str, float]:
    import polars as pl

    start, before = perf_counter(), process_time()
    run.mkdir()
    pl.scan_csv(csv, infer_schema=False).sink_parquet(run / "ingest.parquet", row_group_size=16_384)
    seconds = perf_counter() - start
    return {"ingest": seconds, "cpu": process_time() - before, "peak_bytes": peak_memory_bytes()}


WORK = {"ours": ours, "pandas": in_pandas, "careful": careful, "floor": floor}
USUAL, CAREFUL = "pandas, as usually written", "pandas with the same checks"


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
    arguments.add_argument("--which", choices=[*WORK], help=argparse.SUPPRESS)
    arguments.add_argument("--csv", type=Path, help=argparse.SUPPRESS)
    arguments.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.which:
        print(json.dumps(WORK[given.which](given.csv, given.run)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        csv = Path(scratch) / "OpenVid.csv"
        make_table(csv, given.rows)
        runs: dict[str, list[dict[str, float]]] = {which: [] for which in WORK}
        loads: list[float] = []
        for _ in range(given.repeats):
            for which, found in runs.items():
                loads.append(os.getloadavg()[0])
                found.append(in_a_process(which, csv, Path(scratch) / which))
                shutil.rmtree(Path(scratch) / which)
    medians = {
        which: {name: median(run[name] for run in found) for name in found[0]}
        for which, found in runs.items()
    }
    mine = medians.pop("ours")
    lowest = medians.pop("floor")
    of = f"{given.rows:,} OpenVid rows"
    rows, load = [], (min(loads), max(loads))

    def add(metric: str, unit: str, name: str, value: float, peer_value: float, goal: str = "") -> None:
        rows.append(
            row(
                *(metric, value, unit),
                peer=name,
                peer_value=peer_value,
                goal=goal,
                higher_is_better=False,
                hardware=f"{cpu()}, load {load[0]:.1f} to {load[1]:.1f}",
            )
        )

    for which, name in (("pandas", USUAL), ("careful", CAREFUL)):
        peer = medians[which]
        assert abs(mine["kept"] - peer["kept"]) <= 1, f"{which} keeps {peer['kept']}, ours {mine['kept']}"
        for stage in STAGES:
            add(f"{stage}, {of}", "s", name, mine[stage], peer[stage])
        whole = [sum(one[stage] for stage in STAGES) for one in (mine, peer)]
        add(f"ingest + filter + split, {of}", "s", name, *whole, goal=">= 4 x")
        add(f"the same by the CPU, {of}", "s of CPU", name, mine["cpu"], peer["cpu"])
        add(
            "peak memory of that", "MB", name, mine["peak_bytes"] / 1e6, peer["peak_bytes"] / 1e6, "<= 600 MB"
        )
    floor_name = "the CSV to Parquet by polars, nothing else"
    add(f"ingest, {of}", "s", floor_name, mine["ingest"], lowest["ingest"])
    add(f"ingest + filter + split by the CPU, {of}", "s of CPU", floor_name, mine["cpu"], lowest["cpu"])
    keep("tables", rows)


if __name__ == "__main__":
    main()
