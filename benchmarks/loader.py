"""Loader: clips a second that reach the trainer, beside other loaders and bare decoding.

    python benchmarks/loader.py [--rounds N] [--workers N] [--clips N] [--data FOLDER] [--python PATH ...]

Every contender (`loader_peers.py`) reads the same frames of the same clips with as many workers: to 16 frames
of 256 x 256, and 51 frames of 240 x 426. Each runs in separate processes, one after the other, in
another order each round; the figures are medians over the rounds. CPU seconds are those of all processes of a
contender: what a busy machine disturbs least. Memory is the largest sum over its processes, sampled five
times a second, pages that they share counted once, in a round of its own: counting pages stops the processes
that hold them.

`--python` names interpreters of other environments, tried in turn for libraries that this one has not; a
library that none has is printed as absent. `--data` is a folder of videos of 51 frames or more, as found;
without it, noise with a key frame every 48 frames. Every video is in the data set several times.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
from loader_peers import BATCH, CONTENDERS
from rows import Row, cpu, keep, row
from shards import noise

from vidcurate.curation.clip_table import schema, table
from vidcurate.errors import MediaError
from vidcurate.loader.loader import Loader
from vidcurate.loader.spec import LoaderSpec
from vidcurate.media import headers
from vidcurate.media import packets as media_packets
from vidcurate.media.frame_map import parse
from vidcurate.sampler import order
from vidcurate.sampler.buckets import BucketSpec
from vidcurate.sampler.build_plan import plan_from
from vidcurate.sampler.plan import Plan
from vidcurate.shards.build import run_build_shards
from vidcurate.shards.index import Index, read_index
from vidcurate.shards.layout import ShardSpec
from vidcurate.shards.reader_indexes import export as reader_indexes_export

SHAPES = ((16, 256, 256), (51, 240, 426))
LEAST_AREA = 80_000  # px: a clip must fill the larger shape
OURS = "vidcurate"
MOST_SECONDS = 600


def plan_of(index: Index, frames: int, height: int, width: int) -> Plan:
    """Return the order in which all clips are read in one shape, batch by batch."""
    aspect = f"{height / width:.2f}"
    spec = BucketSpec(sizes={"one": {aspect: (height, width)}}, table={"one": {str(frames): (1.0, BATCH)}})
    return plan_from(index, spec, seed=1, micro_batches_per_step=1)


def found_videos(folder: Path) -> list[Path]:
    """Return the videos of a folder that are long and large enough, upright, with exact times."""
    good = []
    for path in sorted(folder.iterdir()):
        try:
            header, packets = headers.read_header_and_index(path)
            frame_map = media_packets.frame_map_of(path)
        except MediaError:
            continue
        is_upright = header.rotation_degrees == 0 and header.sample_aspect_ratio == 1
        is_fit = packets.num_frames >= 51 and LEAST_AREA <= header.width * header.height <= 1920 * 1080
        if frame_map and is_upright and is_fit and packets.num_frames <= 1000:
            good.append(path)
    return good


def make_data(folder: Path, sources: list[Path], num_clips: int) -> Index:
    """Write the clips as files and as shards, and the index formats of others beside them."""
    videos = folder / "videos"
    videos.mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    for number in range(num_clips):
        source = sources[number % len(sources)]
        name = f"clip{number:04d}.mp4"  # every loader takes the name for what it is: a key and an extension
        shutil.copy(source, videos / name)
        header, packets = headers.read_header_and_index(source)
        rows.append(
            {
                "clip_id": name[:-4], "sample_key": name[:-4], "source_id": source.stem, "video_path": name,
                "fps": header.fps or 24.0, "caption": "a clip", "width": header.width,
                "height": header.height, "num_frames": packets.num_frames, "is_kept": True,
                "duration_seconds": packets.duration_seconds, "level": 1, "fold": "train",
                "file_size_bytes": source.stat().st_size,
            }
        )  # fmt: skip
    frame = pl.DataFrame(rows).with_columns(
        pl.col(name).cast(column.dtype) for name, column in schema.COLUMNS.items() if name in rows[0]
    )
    table.write(
        frame,
        table.stage_path(folder / "run", "split"),
        table.Provenance(stage="split", settings={}, inputs={}),
    )
    run_build_shards(
        folder / "run", ShardSpec(), videos=videos, out=folder / "shards", is_unprobed_allowed=True
    )
    reader_indexes_export.export(folder / "shards", ("energon",))
    return read_index(folder / "shards")


def write_wanted(folder: Path, index: Index, frames: int, height: int, width: int) -> None:
    """Write which frames of each clip the loader reads in its second pass, for everyone else."""
    plan = plan_of(index, frames, height, width)
    num_batches = len(index) // BATCH
    wanted = {}
    with Loader(index, plan, LoaderSpec()) as loader:
        for position in range(num_batches, 2 * num_batches):
            part = order.micro_batch(plan, position)
            for task in (loader._task(part, slot, int(row)) for slot, row in enumerate(part.rows)):
                at = index.words("clip_id").index(task.clip_id).as_py()
                known = parse(index.at("frame_map", at))
                key = known.key_before(task.first_frame)
                wanted[task.clip_id] = {
                    "first": task.first_frame,
                    "times": known.pts[task.first_frame : task.first_frame + frames].tolist(),
                    "key_time": int(known.pts[key]) if key else None,
                    "file": f"{task.clip_id}.mp4",
                    "height": int(index.height[at]),
                    "width": int(index.width[at]),
                }
    (folder / f"wanted-{frames}x{height}x{width}.json").write_text(json.dumps(wanted))


def memory_of_tree(root: int) -> int:
    """Return the bytes that a process and its descendants hold, shared pages counted once."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    tree = {root}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    total = 0
    for pid in tree:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total


def run_one(
    name: str, python: str, folder: Path, shape: str, workers: int, *, is_sampled: bool
) -> dict[str, Any]:
    """Run one contender once; return what it says and, `is_sampled`, the most memory that it held."""
    here = Path(__file__).parent
    command = [python, str(here / "loader_peers.py"), name, str(folder), shape, str(workers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(here)}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment)
        most, start = 0, time.monotonic()
        while process.poll() is None:
            most = max(most, memory_of_tree(process.pid)) if is_sampled else 0
            if time.monotonic() - start > MOST_SECONDS:
                process.kill()
            time.sleep(0.2)
        assert process.stdout is not None
        text = process.stdout.read().decode().strip()
        errors.seek(0)
        last = errors.read().decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
    said = json.loads(text.splitlines()[-1]) if text else {"absent": last[0][:200]}
    return {**said, "bytes": most}


def compare(
    folder: Path, shape: tuple[int, int, int], rounds: int, workers: int, pythons: list[str]
) -> list[Row]:
    """Run all contenders in turn and return the rows of one shape."""
    text = "x".join(map(str, shape))
    names = list(CONTENDERS)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    memory: dict[str, int] = {}
    chosen: dict[str, str] = {}
    for number in range(rounds + 1):
        is_sampled = number == 0
        for name in names[number % len(names) :] + names[: number % len(names)]:
            for python in [chosen[name]] if name in chosen else pythons:
                said = run_one(name, python, folder, text, workers, is_sampled=is_sampled)
                if "absent" not in said:
                    chosen[name] = python
                    if is_sampled:
                        memory[name] = said["bytes"]
                        print(f"{text} {name}: {said['bytes'] / 1e6:.0f} MB", flush=True)
                        break
                    results[name].append(said)
                    print(
                        f"{text} {number} {name}: {said['clips'] / said['seconds']:.2f} clips/s, "
                        f"{1000 * said['cpu_seconds'] / said['clips']:.0f} CPU ms/clip",
                        flush=True,
                    )
                    break
            else:
                names.remove(name)
                print(f"{text}: {name} is absent ({said['absent']})", flush=True)
    rates = {name: median(one["clips"] / one["seconds"] for one in results[name]) for name in names}
    costs = {name: median(one["cpu_seconds"] / one["clips"] for one in results[name]) for name in names}
    rows = []
    others = [name for name in names if name != OURS]
    peers = [name for name in others if not name.startswith("bare")]
    best = {max(peers, key=rates.__getitem__), min(peers, key=costs.__getitem__)} if peers else set()
    for name in others:
        what = f"{shape[0]} frames {shape[1]}x{shape[2]}, {workers} workers"
        goal = ">= 1.3 x" if name in best else ">= 0.9 x" * name.startswith("bare")
        given = {"hardware": cpu(), "peer": name}
        rows += [
            row(f"clips/s, {what}", rates[OURS], "clips/s", peer_value=rates[name], goal=goal, **given),
            row(
                f"CPU per clip, {what}", 1000 * costs[OURS], "ms", peer_value=1000 * costs[name],
                goal=goal, higher_is_better=False, **given,
            ),
            row(
                f"memory of all processes, {what}", memory[OURS] / 1e6, "MB",
                peer_value=memory[name] / 1e6, higher_is_better=False, **given,
            ),
        ]  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clips", type=int, default=64)
    parser.add_argument("--data", type=Path, help="a folder of videos")
    parser.add_argument("--python", action="append", default=[], help="an interpreter that has other loaders")
    parser.add_argument("--scratch", type=Path, help="a folder on the disk to measure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as temporary:
        folder = Path(temporary)
        if arguments.data:
            sources = found_videos(arguments.data)
        else:
            sources = [folder / f"noise{number}.mp4" for number in range(4)]
            for number, path in enumerate(sources):
                noise(path, number, crf=(14, 18, 22, 26)[number])
        print(f"{len(sources)} videos: {', '.join(path.name for path in sources)}", flush=True)
        index = make_data(folder, sources, arguments.clips // BATCH * BATCH)
        rows: list[Row] = []
        pythons = [sys.executable, *arguments.python]
        for shape in SHAPES:
            write_wanted(folder, index, *shape)
            rows += compare(folder, shape, arguments.rounds, arguments.workers, pythons)
    given = f"--rounds {arguments.rounds} --workers {arguments.workers} --clips {arguments.clips}"
    more = " --data VIDEOS" * bool(arguments.data) + " --python PYTHON" * len(arguments.python)
    for entry in rows:
        entry["command"] = f"python benchmarks/loader.py {given}{more}"
    keep("loader", rows)


if __name__ == "__main__":
    main()
