"""Resume time: from process start to the first batch far into a run, with 10 M clips.

    python benchmarks/resume_time.py [--clips 10000000] [--workers 2] [--folder MADE] [--keep]

A few real clips lie in one file again and again, some thousand shards are links to it, and the index names
each place in each of them by an id of its own (those that the step reads say so themselves). A fresh
interpreter then does what a rank does as it resumes: import, open the index, plan the order, start the
workers, decode the step, say what the state is. The peer is the same with the few clips alone: what is
added by the number of clips is the difference. Clips take longer to make than to measure: in a `--folder`
they are kept for the next time.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from remote import make_shards
from rows import Row, as_table, keep, row

from vidcurate.recipe.recipe import parse
from vidcurate.sampler import order
from vidcurate.sampler.buckets import BucketSpec
from vidcurate.sampler.build_plan import plan_from
from vidcurate.shards.index import read_index
from vidcurate.shards.index_file import INDEX_NAME, WRITTEN
from vidcurate.storage.checksum import crc32c

FIRST_STEP = 123_456
TABLE = "{sizes: {48px: {'1.00': [48, 48]}}, table: {48px: {8: [1.0, 8]}}}"
CLIPS_IN_SHARDS = 64
COPIES = 40  # of them in a shard
ROWS_PER_GROUP = 65_536
RESUME = """
import json, sys, time
from vidcurate.sampler.buckets import BucketSpec
from vidcurate.shards.index import read_index
from vidcurate.loader.loader import Loader
from vidcurate.loader.spec import LoaderSpec
from vidcurate.sampler.build_plan import plan_from
from vidcurate.recipe.recipe import parse

began, folder, workers, step = float(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
seconds = {"imported": time.time() - began}
index = read_index(folder)
seconds["index open"] = time.time() - began
plan = plan_from(index, parse(sys.argv[5], BucketSpec), seed=1, micro_batches_per_step=2)
seconds["order planned"] = time.time() - began
with Loader(index, plan, LoaderSpec(num_workers=workers)) as loader:
    batches = loader.step(step)
    seconds["first batch"] = time.time() - began
    state = loader.state(step + 1)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"seconds": seconds, "clips": plan.num_clips, "mib": int(peak.split()[1]) / 1024}))
"""


def enlarge(small: Path, large: Path, num_clips: int) -> None:
    """Write to `large` shards and an index of at least `num_clips` clips, which are those of `small`."""
    large.mkdir()
    table = pq.read_table(small / INDEX_NAME)
    schema = table.schema
    shards = table["shard"].to_pylist()
    blobs = [(small / name).read_bytes() for name in sorted(set(shards))]
    ends = dict(zip(sorted(set(shards)), np.cumsum([0, *map(len, blobs)]), strict=False))
    begins = np.array([ends[name] for name in shards])
    (large / "clips.bin").write_bytes(b"".join(blobs) * COPIES)
    shifts = np.repeat(np.arange(COPIES) * sum(map(len, blobs)), len(shards)) + np.tile(begins, COPIES)
    table = table.take(pa.array(np.tile(np.arange(len(shards)), COPIES)))
    for name in ("json_offset", "video_offset"):
        moved = pa.array(table[name].to_numpy() + shifts, pa.int64())
        table = table.set_column(schema.get_field_index(name), schema.field(name), moved)
    rng = np.random.default_rng(0)
    rows, shards_left = table.num_rows, iter(range(-(-num_clips // table.num_rows)))
    together = max(1, ROWS_PER_GROUP // rows)
    with pq.ParquetWriter(large / INDEX_NAME, schema, **WRITTEN) as writer:
        while numbers := list(itertools.islice(shards_left, together)):
            names = [f"train-{number:06d}.tar" for number in numbers]
            for name in names:
                (large / name).symlink_to("clips.bin")
            ids = pa.array([f"clip-{number:06d}-{row:06d}" for number in numbers for row in range(rows)])
            hashes = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(16), len(ids), [None, pa.py_buffer(rng.bytes(16 * len(ids)))]
            )
            where = pa.array(np.repeat(names, rows))
            words: dict[str, Any] = {"clip_id": ids, "sample_key": ids, "shard": where}
            part = table.take(pa.array(np.tile(np.arange(rows), len(numbers))))
            for column, values in {**words, "structure_hash": hashes, "content_hash": hashes}.items():
                field = schema.field(column)
                part = part.set_column(schema.get_field_index(column), field, values.cast(field.type))
            writer.write_table(part, row_group_size=ROWS_PER_GROUP)


def name_clips(large: Path) -> int:
    """Return a step of the large set whose clips lie at different places, after writing their ids there."""
    index = read_index(large)
    plan = plan_from(index, parse(TABLE, BucketSpec), seed=1, micro_batches_per_step=2)
    for step in itertools.count(FIRST_STEP):
        rows = np.concatenate([part.rows for part in order.step_micro_batches(plan, step)])
        if len(np.unique(index.numbers("json_offset")[rows])) == len(rows):
            break
    checksums = {}
    with (large / "clips.bin").open("r+b") as file:
        for row_number in rows.tolist():
            facts = {"clip_id": index.word("clip_id", row_number), "caption": "a clip"}
            data = json.dumps(facts).encode().ljust(int(index.numbers("json_size")[row_number]))
            file.seek(int(index.numbers("json_offset")[row_number]))
            file.write(data)
            checksums[row_number] = crc32c(data)
    write_checksums(large / INDEX_NAME, checksums)
    return step


def write_checksums(path: Path, checksums: dict[int, int]) -> None:
    """Let the index have these CRC-32C of the JSON at these rows."""
    old = pq.ParquetFile(path)
    changed = path.with_suffix(".changed")
    first = 0
    with pq.ParquetWriter(changed, old.schema_arrow, **WRITTEN) as writer:
        for number in range(old.num_row_groups):
            part = old.read_row_group(number)
            values = part["json_crc32c"].to_numpy().copy()
            for row_number in [row for row in checksums if first <= row < first + len(values)]:
                values[row_number - first] = checksums[row_number]
            place = part.schema.get_field_index("json_crc32c")
            writer.write_table(part.set_column(place, part.schema.field(place), pa.array(values)))
            first += len(values)
    changed.replace(path)


def make(folder: Path, num_clips: int) -> tuple[Path, Path, int]:
    """Return the small and the large set in `folder` and the step to read; they are made if not there."""
    large, said = folder / f"large-{num_clips}", folder / f"large-{num_clips}.json"
    if not said.exists():
        small = make_shards(folder / "small", CLIPS_IN_SHARDS)
        enlarge(small, large, num_clips)
        said.write_text(json.dumps({"small": str(small.relative_to(folder)), "step": name_clips(large)}))
    made = json.loads(said.read_text())
    return folder / made["small"], large, made["step"]


def resumed(folder: Path, workers: int, step: int) -> dict[str, float]:
    """Return the seconds from the start of a process to each milestone, and its memory."""
    command = [sys.executable, "-c", RESUME, repr(time.time()), str(folder)]
    command += [str(workers), str(step), TABLE]
    said = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {**said["seconds"], "mib": said["mib"], "clips": said["clips"]}


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--clips", type=int, default=10_000_000)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--folder", type=Path, help="where the clips are made, or were")
    arguments.add_argument("--keep", action="store_true", help="keep the figures in benchmarks/results")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        small, large, step = make(folder, given.clips)
        few, many = (
            min(
                (resumed(place, given.workers, step) for _ in range(given.repeats)),
                key=lambda r: r["first batch"],
            )
            for place in (small, large)
        )
    rows: list[Row] = []
    for name in ("imported", "index open", "order planned", "first batch"):
        goal = "<= 5 s" if name == "first batch" else ""
        rows.append(
            row(f"from the start until {name}, {given.clips:,} clips", many[name], "s",
                peer=f"{few['clips']:,.0f} clips", peer_value=few[name], goal=goal, higher_is_better=False)
        )  # fmt: skip
    rows.append(
        row("most memory of the process", many["mib"], "MiB", peer=f"{few['clips']:,.0f} clips",
            peer_value=few["mib"], higher_is_better=False)
    )  # fmt: skip
    for entry in rows:
        entry["command"] = f"python benchmarks/resume_time.py --clips {given.clips} --workers {given.workers}"
    if given.keep:
        keep("resume_time", rows)
    else:
        print(as_table(rows))


if __name__ == "__main__":
    main()
