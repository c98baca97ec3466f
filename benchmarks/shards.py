"""Shard writing speed, beside `cp` of the same files and webdataset's ShardWriter.

    python benchmarks/shards.py [--gigabytes N] [--passes N] [--folder DISK]

Clips are real videos (H.264 in MP4, 8 s, 2 to 8 MB of noise) in warm files; shards of 256 MB. Ours is the
whole command: plan, frame map and CRC-32C of every clip, BLAKE3 of every shard, flush, index, manifest. The
peers do less: `cp` copies and checks nothing, ShardWriter writes no index and no digest. `sync` of the disk
stands behind each, ours too. Medians of `--passes`, every writer once in each, in another order each time;
every pass writes to a new folder. CPU seconds are those of the writer and its children, user and system: what
a busy machine disturbs least. The last row is how long an index of a million clips takes to open.
"""

import argparse
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import polars as pl
import webdataset
from rows import best_seconds, cpu, keep, row

from vidcurate.curation.clip_table import schema, table
from vidcurate.executor.map_clips import usable_cpus
from vidcurate.media import encode
from vidcurate.shards import index, index_file
from vidcurate.shards import index_file as shards_index_file
from vidcurate.shards.build import run_build_shards
from vidcurate.shards.layout import ShardSpec

SHARD_BYTES = 256_000_000


def noise(path: Path, seed: int, crf: int) -> None:
    """Write a video whose frames are patches of moving noise."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 256, (360, 640, 3), dtype=np.uint8) // 8 * 8
    frames = np.stack([np.roll(base, 3 * number, axis=1) for number in range(192)])
    encode.write_video(path, frames, fps=24.0, crf=crf)


def make_run(folder: Path, total_bytes: int) -> list[Path]:
    """Write the clips and RUN/split.parquet."""
    kinds = [folder / f"kind{number}.mp4" for number in range(4)]
    for number, path in enumerate(kinds):
        noise(path, number, crf=(4, 8, 14, 22)[number])
    videos = folder / "videos"
    videos.mkdir()
    paths: list[Path] = []
    rows: list[dict[str, object]] = []
    while sum(int(r["file_size_bytes"]) for r in rows) < total_bytes:  # type: ignore[call-overload]
        path = videos / f"clip{len(paths):05d}.mp4"
        path.write_bytes(kinds[len(paths) % len(kinds)].read_bytes())
        paths.append(path)
        rows.append(
            {
                "clip_id": path.stem, "sample_key": path.stem, "source_id": path.stem, "fps": 24.0,
                "video_path": path.name, "caption": "a clip of noise " * 20, "width": 640, "height": 360,
                "num_frames": 192, "duration_seconds": 8.0, "is_kept": True,
                "file_size_bytes": path.stat().st_size,
                "level": 1 + len(paths) % 2, "fold": "train",
            }
        )  # fmt: skip
    print(
        f"clips of {', '.join(f'{path.stat().st_size / 1e6:.1f}' for path in kinds)} MB, {len(paths)} files"
    )
    frame = pl.DataFrame(rows).with_columns(
        pl.col(name).cast(column.dtype) for name, column in schema.COLUMNS.items() if name in rows[0]
    )
    origin = table.Provenance(stage="split", settings={}, inputs={})
    table.write(frame, table.stage_path(folder / "run", "split"), origin)
    return paths


def million_clips(folder: Path) -> None:
    count = 1_000_000
    ids = [f"video{i:07d}_clip_{i % 9}" for i in range(count)]
    same: dict[str, object] = {
        "source_dataset": "openvid", "fold": "train", "level": 1, "json_size": 700, "json_offset": 0,
        "video_size": 5_000_000, "video_extension": "mp4", "width": 1280, "height": 720, "fps": 24.0,
        "duration_seconds": 8.0, "noun_count": 12,
    }  # fmt: skip
    rows = {name: [value] * count for name, value in same.items()}
    rows |= {
        "sample_key": ids,
        "clip_id": ids,
        "source_id": [clip_id[:12] for clip_id in ids],
        "caption": [f"caption {i} " + "of a clip with some forty words " * 6 for i in range(count)],
        "shard": [f"train-level1-{i // 500:06d}.tar" for i in range(count)],
        "video_offset": [1024 + i % 500 * 5_001_000 for i in range(count)],
        "video_crc32c": list(np.random.default_rng(0).integers(0, 2**32, count)),
        "json_crc32c": [0] * count,
        "frame_map": [bytes(20)] * count,
        "num_frames": [1 + i % 400 for i in range(count)],
    }
    index_file.write_index(folder, rows)


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the children it has waited for."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        paths = make_run(folder, int(arguments.gigabytes * 1e9))
        subprocess.run(["sync"], check=True)
        total = sum(path.stat().st_size for path in paths)
        out = folder / "out"

        def measured(write: Callable[[], object], *, flush: bool) -> tuple[float, float]:
            """Return MB/s and CPU seconds per GB of one pass into an empty folder."""
            shutil.rmtree(out, ignore_errors=True)
            subprocess.run(["sync", "-f", str(folder)], check=True)
            start, cpu_start = perf_counter(), cpu_seconds()
            write()
            cpu_used = cpu_seconds() - cpu_start
            if flush:
                subprocess.run(["sync", "-f", str(folder)], check=True)
            return total / 1e6 / (perf_counter() - start), cpu_used / total * 1e9

        def ours(workers: int) -> None:
            spec = ShardSpec(max_bytes=SHARD_BYTES, max_clips=100_000)
            run_build_shards(
                folder / "run",
                spec,
                videos=folder / "videos",
                out=out,
                is_unprobed_allowed=True,
                num_workers=workers,
            )

        def copy() -> None:
            subprocess.run(["cp", "-r", str(folder / "videos"), str(out)], check=True)

        def copy_and_hash() -> None:
            copy()
            subprocess.run(
                f"ls {out}/*.mp4 | xargs -P {usable_cpus()} -n 32 sha256sum > {folder}/sums",
                shell=True,
                check=True,
            )

        def shard_writer() -> None:
            out.mkdir()
            with webdataset.ShardWriter(f"{out}/a-%06d.tar", maxsize=SHARD_BYTES, verbose=0) as sink:
                for path in paths:
                    sink.write(
                        {"__key__": path.stem, "json": {"clip_id": path.stem}, "mp4": path.read_bytes()}
                    )

        cores = usable_cpus()
        writers: dict[str, tuple[Callable[[], object], bool]] = {
            "cp -r, sync": (copy, True),
            "cp -r, not flushed": (copy, False),
            "cp -r, sha256sum, sync": (copy_and_hash, True),
            "webdataset.ShardWriter, sync": (shard_writer, True),
            "many": (lambda: ours(cores), True),
            "one": (lambda: ours(1), True),
        }
        rates: dict[str, list[float]] = {name: [] for name in writers}
        costs: dict[str, list[float]] = {name: [] for name in writers}
        loads: list[float] = []
        names = list(writers)
        for number in range(arguments.passes):
            turn = number % len(names)
            for name in (*names[turn:], *names[:turn]):
                write, flush = writers[name]
                rate, cost = measured(write, flush=flush)
                rates[name].append(rate)
                costs[name].append(cost)
                loads.append(os.getloadavg()[0])
        hardware = f"{cpu()}, load {min(loads):.1f} to {max(loads):.1f}"
        rows = []
        for mine, workers in (("many", cores), ("one", 1)):
            what = f"shards with index and digests, {workers} worker{'s' if workers > 1 else ''}"
            for peer in names[:4]:
                rows.append(
                    row(what, median(rates[mine]), "MB/s", peer=peer, peer_value=median(rates[peer]),
                        goal=">= 0.8 x" if peer == "cp -r, sync" else "", hardware=hardware)
                )  # fmt: skip
        for peer in ("cp -r, sync", "webdataset.ShardWriter, sync"):
            rows.append(
                row("CPU per GB of shards, 1 worker", median(costs["one"]), "s", peer=peer,
                    peer_value=median(costs[peer]), higher_is_better=False, hardware=hardware)
            )  # fmt: skip
        million = folder / "million"
        million.mkdir()
        million_clips(million)
        seconds, _ = best_seconds(lambda: index.read_index(million, check_files=False))
        plain, _ = best_seconds(lambda: pl.read_parquet(million / shards_index_file.INDEX_NAME))
        rows.append(
            row("open an index of 1 M clips", seconds, "s", peer="polars.read_parquet of it, with captions",
                peer_value=plain, goal="< 2 s", higher_is_better=False)
        )  # fmt: skip
    keep("shards", rows)


if __name__ == "__main__":
    main()
