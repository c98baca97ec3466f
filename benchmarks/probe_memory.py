"""Memory of `probe` for a million files: read for the first time, then all of them remembered.

    python benchmarks/probe_memory.py [--rows 1000000] [--workers 2]

The table is an ingest of made-up OpenVid rows. Its files are hard links of a small real clip (another copy
for each 20,000 files), so every row has a path and a key of its own. The workers answer at once with the
facts of that clip, which this script has read: what the probe's process receives, keeps and writes for a
file is the same as after reading it. Each probe (level `index`) runs in a separate process; the figure is the
largest resident size of that process, imports and all, without its workers.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
from rows import keep, peak_memory_bytes, row
from tables import make_table

LIMIT_BYTES = 1.5e9
FILES_PER_CLIP = 20_000


def make_files(run: Path, videos: Path) -> int:
    """Make a clip for every 20,000 files of the run's table and link the files to them."""
    from vidcurate.curation.clip_table import table
    from vidcurate.media import encode

    videos.mkdir()
    frames = np.random.default_rng(0).integers(0, 255, (4, 32, 48, 3), dtype=np.uint8)
    paths = table.scan(run, "ingest").select("video_path").unique(maintain_order=True).collect()["video_path"]
    clip = videos / "none"
    for number, path in enumerate(paths):
        if number % FILES_PER_CLIP == 0:
            clip = videos / path
            encode.write_video(clip, frames, fps=24, crf=40)
        else:
            os.link(clip, videos / path)
    return len(paths)


def probe(run: Path, videos: Path, num_workers: int) -> dict[str, float]:
    from vidcurate.curation.probe import examine
    from vidcurate.curation.probe.stage import ProbeSpec, run_probe
    from vidcurate.executor.parts_folder import ExecutorSpec, PartSummary

    facts = examine.examine(examine.Task(path=str(next(videos.iterdir()))))
    examine.examine = lambda task: facts
    start = perf_counter()
    summary = run_probe(run, ProbeSpec(videos=videos), executor=ExecutorSpec(num_workers=num_workers))
    assert not isinstance(summary, PartSummary)
    return {
        "seconds": perf_counter() - start,
        "peak_bytes": peak_memory_bytes(),
        "files": summary.files_probed,
        "remembered": summary.files_remembered,
        "ok": summary.rows_ok,
    }


def in_a_process(run: Path, videos: Path, num_workers: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--run", run, "--videos", videos, "--workers", str(num_workers)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    print(found, file=sys.stderr, flush=True)
    return found


def main() -> None:
    from vidcurate.curation.ingest.spec import IngestSpec
    from vidcurate.curation.ingest.stage import run_ingest

    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    arguments.add_argument("--videos", type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.run:
        print(json.dumps(probe(given.run, given.videos, given.workers)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        csv, run, videos = (Path(scratch) / name for name in ("OpenVid.csv", "run", "videos"))
        make_table(csv, given.rows)
        run_ingest(run, IngestSpec(metadata=csv))
        count = make_files(run, videos)
        first = in_a_process(run, videos, given.workers)
        (run / "probe.parquet").unlink()
        again = in_a_process(run, videos, given.workers)
    assert (first["remembered"], again["remembered"]) == (0, count)
    rows = [
        row(
            f"memory of probe, {count:,} files, {what}",
            found["peak_bytes"] / 2**20,
            "MiB",
            peer="1.5 GB",
            peer_value=LIMIT_BYTES / 2**20,
            goal=">= 1 x",
            higher_is_better=False,
        )
        | {"seconds": round(found["seconds"], 1)}
        for what, found in (("all read", first), ("all remembered", again))
    ]
    keep("probe_memory", rows)


if __name__ == "__main__":
    main()
