"""How fast are shards written? Against `cp` of the same files and against webdataset's ShardWriter.

    python benchmarks/shards.py [--gigabytes N] [--folder DISK]

Clips of 2 to 8 MB of random bytes in warm files; shards of 256 MB. Ours is the whole command: plan, SHA-256
of every shard, CRC-32 of every clip, flush, index, manifest. The peers do less: `cp` copies and hashes
nothing, ShardWriter writes no index and no digest, and neither flushes. So each is measured with `sync`
behind it, and `cp` also without, and with `sha256sum` of the copies in as many processes as ours. Best of
`--passes`, taken in turn; every pass writes to a new folder. The last row is how long an index of a million
clips takes to open.
"""

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
import polars as pl
import webdataset
from rows import best_seconds, keep, row

from vidcurate import index, schema, table
from vidcurate.engine import usable_cpus
from vidcurate.shards import ShardSpec, run_build_shards

SHARD_BYTES = 256_000_000


def make_run(folder: Path, total_bytes: int) -> list[Path]:
    """Write the clips and RUN/split.parquet."""
    rng = np.random.default_rng(0)
    videos = folder / "videos"
    videos.mkdir()
    paths: list[Path] = []
    rows: list[dict[str, object]] = []
    while sum(int(r["file_size_bytes"]) for r in rows) < total_bytes:  # type: ignore[call-overload]
        path = videos / f"clip{len(paths):05d}.mp4"
        path.write_bytes(rng.bytes(int(rng.integers(2_000_000, 8_000_000))))
        paths.append(path)
        rows.append(
            {
                "clip_id": path.stem, "sample_key": path.stem, "source_id": path.stem, "fps": 24.0,
                "video_path": path.name, "caption": "a clip of noise " * 20, "width": 1280, "height": 720,
                "num_frames": 192, "duration_seconds": 8.0, "is_kept": True,
                "file_size_bytes": path.stat().st_size,
                "level": 1 + len(paths) % 2, "fold": "train",
            }
        )  # fmt: skip
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
        "video_crc32": list(np.random.default_rng(0).integers(0, 2**32, count)),
        "num_frames": [i % 400 for i in range(count)],
    }
    index.write_index(folder, rows)


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

        def megabytes_per_second(write: Callable[[], object], *, flush: bool) -> float:
            """Return the rate of one pass into an empty folder."""
            shutil.rmtree(out, ignore_errors=True)
            subprocess.run(["sync"], check=True)
            start = perf_counter()
            write()
            if flush:
                subprocess.run(["sync", "-f", str(folder)], check=True)
            return total / 1e6 / (perf_counter() - start)

        def ours(workers: int) -> None:
            spec = ShardSpec(max_bytes=SHARD_BYTES, max_clips=100_000)
            run_build_shards(folder / "run", spec, videos=folder / "videos", out=out, num_workers=workers)

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
            "flushed": (copy, True),
            "unflushed": (copy, False),
            "hashed": (copy_and_hash, True),
            "writer": (shard_writer, True),
            "many": (lambda: ours(cores), False),
            "one": (lambda: ours(1), False),
        }
        best = dict.fromkeys(writers, 0.0)
        for _ in range(arguments.passes):
            for name, (write, flush) in writers.items():
                best[name] = max(best[name], megabytes_per_second(write, flush=flush))
        metric = "shards with index and digests, {} worker{}"
        rows = []
        for workers, value in ((cores, best["many"]), (1, best["one"])):
            what = metric.format(workers, "s" if workers > 1 else "")
            rows += [
                row(what, value, "MB/s", peer="cp -r, sync", peer_value=best["flushed"], goal=">= 0.8 x"),
                row(what, value, "MB/s", peer="cp -r, not flushed", peer_value=best["unflushed"]),
                row(what, value, "MB/s", peer="cp -r, sha256sum, sync", peer_value=best["hashed"]),
                row(what, value, "MB/s", peer="webdataset.ShardWriter, sync", peer_value=best["writer"]),
            ]
        million = folder / "million"
        million.mkdir()
        million_clips(million)
        seconds, _ = best_seconds(lambda: index.read_index(million, check_files=False))
        plain, _ = best_seconds(lambda: pl.read_parquet(million / index.INDEX_NAME))
        rows.append(
            row("open an index of 1 M clips", seconds, "s", peer="polars.read_parquet of it, with captions",
                peer_value=plain, goal="< 2 s", higher_is_better=False)
        )  # fmt: skip
    keep("shards", rows)


if __name__ == "__main__":
    main()
