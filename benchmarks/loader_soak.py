"""Loader soak: memory, file descriptors and threads over 100,000 clip reads.

    python benchmarks/loader_soak.py [--clips FOLDER] [--reads N] [--workers N] [--work FOLDER]

The loader reads real clips (FOLDER with a manifest.csv beside it: file, display_width, display_height, fps,
frames), clips that the script makes, and broken ones among them: cut, with zeroed and flipped bytes, empty,
no video at all, and with a wrong checksum. A worker lives through the whole run (it would otherwise be
replaced after `max_worker_clips`), so whatever leaks shows. What the parent and the workers hold is noted
every 250 reads; the first tenth is warm-up. The peer of every figure is its median in the tenth behind the
warm-up, the value its median in the last tenth. Figures go to benchmarks/results/loader_soak.json, the course
of them to docs/images/loader-soak.svg; the run rewrites both as it proceeds, so a run that is ended early
leaves what it reached. It fails when a figure grew by 3 % or more. Other work on the machine changes the
time and nothing else.
"""

import argparse
import contextlib
import csv
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rows import keep, row

from vidcurate.curation.clip_table import schema, table
from vidcurate.curation.demo_data import damage
from vidcurate.loader.loader import Loader
from vidcurate.loader.spec import LoaderSpec
from vidcurate.media import encode
from vidcurate.recipe.recipe import parse
from vidcurate.sampler.buckets import BucketSpec
from vidcurate.sampler.build_plan import plan_from
from vidcurate.shards.build import run_build_shards
from vidcurate.shards.index import Index, read_index
from vidcurate.shards.layout import ShardSpec

IMAGE = Path(__file__).parents[1] / "docs" / "images" / "loader-soak.svg"
SHARED = Path(__file__).parents[2] / "shared" / "data" / "clips"
BUCKETS = parse(
    """
    sizes: {96px: {"0.56": [72, 128], "1.00": [96, 96], "1.78": [128, 72]}}
    table: {96px: {2: [1.0, 8], 4: [[1.0, 0.5], 6]}}
    """,
    BucketSpec,
)
MOST_FRAMES = 10  # of a clip: so the wanted ones lie near its beginning, and a read is short
MOST_PIXELS = 1280 * 720  # of a clip: larger ones only take longer
MADE = 240
EVERY_READS = 250
WARM_UP = 0.1
MOST_GROWTH = 1.03
FIGURES = {
    "worker_mib": "resident memory of the workers (MiB)",
    "parent_mib": "resident memory of the parent (MiB)",
    "descriptors": "file descriptors, parent and workers",
    "threads": "threads, parent and workers",
}


# ── the clips ───────────────────────────────────────────────────────────────────────────────────────────────


def _real(folder: Path) -> list[tuple[str, bytes, dict[str, Any]]]:
    """Return name, bytes and facts of the clips in `folder` that the manifest beside it lists."""
    found = []
    with (folder.parent / "manifest.csv").open() as file:
        for line in csv.DictReader(file):
            path = folder / line["file"]
            frames = int(line["frames"] or 0)
            width, height = int(line["display_width"] or 640), int(line["display_height"] or 360)
            if path.is_file() and not 0 < frames < 4 and width * height <= MOST_PIXELS:
                facts = {
                    "width": width,
                    "height": height,
                    "fps": float(line["fps"] or 24),
                    "num_frames": min(frames or MOST_FRAMES, MOST_FRAMES),  # the broken ones have none
                }
                found.append((path.name, path.read_bytes(), facts))
    return found


def _made(folder: Path) -> list[tuple[str, bytes, dict[str, Any]]]:
    rng = np.random.default_rng(0)
    found = []
    for number in range(MADE):
        height, width = ((144, 256), (192, 192), (256, 144))[number % 3]
        noise = rng.integers(0, 255, (height + 64, width + 64, 3), dtype=np.uint8)
        frames = np.stack([noise[t : t + height, 2 * t : 2 * t + width] for t in range(MOST_FRAMES)])
        path = folder / f"made-{number}.mp4"
        encode.write_video(path, frames, fps=24.0)
        facts = {"width": width, "height": height, "fps": 24.0, "num_frames": MOST_FRAMES}
        found.append((path.name, path.read_bytes(), facts))
    return found


def _broken(whole: list[tuple[str, bytes, dict[str, Any]]]) -> list[tuple[str, bytes, dict[str, Any]]]:
    ways: dict[str, Callable[[bytes, int], bytes]] = {
        "cut": lambda data, n: damage.truncate(data, 0.4 + 0.05 * (n % 8)),
        "zeros": lambda data, n: damage.zero_block(data, size_bytes=len(data) // 3),
        "flipped": lambda data, n: damage.flip_bytes(data, seed=n, count=200),
        "noise": lambda data, n: np.random.default_rng(n).bytes(4096),
        "empty": lambda data, n: b"",
    }
    found = []
    for number, (name, data, facts) in enumerate(whole[::4]):
        way = list(ways)[number % len(ways)]
        found.append((f"{way}-{name}", ways[way](data, number), facts))
    return found


def make_shards(clips: Path, work: Path) -> Index:
    """Build shards of all clips in `work`; every fourth clip has a broken twin, two a wrong checksum."""
    videos = work / "videos"
    videos.mkdir(parents=True)
    whole = _made(work) + (_real(clips) if clips.is_dir() else [])
    rows = []
    for number, (name, data, facts) in enumerate(whole + _broken(whole)):
        (videos / name).write_bytes(data)
        rows.append(
            {
                "clip_id": name,
                "sample_key": schema.sample_key(name),
                "source_dataset": "soak",
                "source_id": f"source{number}",
                "video_path": name,
                "caption": f"clip {name}",
                "duration_seconds": facts["num_frames"] / facts["fps"],
                "is_kept": True,
                "level": 1,
                "fold": "train",
                **facts,
            }
        )
    run = work / "run"
    run.mkdir()
    known = {name: column.dtype for name, column in schema.COLUMNS.items()}
    checked = pl.DataFrame(rows).with_columns(pl.col(name).cast(known[name]) for name in rows[0])
    origin = table.Provenance(stage="split", settings={}, inputs={})
    table.write(checked, table.stage_path(run, "split"), origin)
    run_build_shards(run, ShardSpec(), videos=videos, out=work / "shards", is_unprobed_allowed=True)
    index = read_index(work / "shards")
    for number in (0, len(rows) // 2):  # the bytes go bad after the index was made
        with (index.folder / index.shards[index.shard_number[number]]).open("r+b") as file:
            file.seek(int(index.video_offset[number]) + 5)
            file.write(b"bad")
    return index


# ── what the processes hold ─────────────────────────────────────────────────────────────────────────────────


def _held(process: int | str) -> tuple[float, int, int]:
    """Return resident MiB, file descriptors and threads of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    resident = int(status.split("VmRSS:")[1].split()[0]) / 1024
    threads = int(status.split("Threads:")[1].split()[0])
    return resident, len(os.listdir(f"/proc/{process}/fd")), threads


def _note(loader: Loader, reads: int, seconds: float) -> dict[str, float]:
    ours = _held("self")
    theirs = []
    for process in loader.process_ids():
        with contextlib.suppress(OSError, IndexError):  # it was replaced between the two lines
            theirs.append(_held(process))
    return {
        "reads": reads,
        "seconds": round(seconds, 1),
        "worker_mib": sum(one[0] for one in theirs),
        "parent_mib": ours[0],
        "descriptors": ours[1] + sum(one[1] for one in theirs),
        "threads": ours[2] + sum(one[2] for one in theirs),
    }


def _growth(notes: list[dict[str, float]], name: str) -> tuple[float, float]:
    """Return the medians of a figure in the tenth of the reads behind the warm-up and in the last tenth."""
    values = [note[name] for note in notes]
    tenth = max(1, int(len(values) * WARM_UP))
    return statistics.median(values[tenth : 2 * tenth]), statistics.median(values[-tenth:])


# ── what is kept ────────────────────────────────────────────────────────────────────────────────────────────


def _panel(notes: list[dict[str, float]], name: str, top: int) -> str:
    values, last = [note[name] for note in notes], notes[-1]["reads"]
    high = 1.25 * max(values)
    points = " ".join(
        f"{60 + 700 * note['reads'] / last:.1f},{top + 110 - 90 * note[name] / high:.1f}" for note in notes
    )
    begin, end = _growth(notes, name)
    words = f"{FIGURES[name]}: {begin:.4g} after the warm-up, {end:.4g} at the end"
    warm = 60 + 700 * WARM_UP
    return (
        f'<text x="60" y="{top + 10}">{words}</text>'
        f'<path d="M60 {top + 20}V{top + 110}H760" fill="none" stroke="#888"/>'
        f'<path d="M{warm} {top + 20}V{top + 110}" stroke="#bbb" stroke-dasharray="3 3"/>'
        f'<text x="54" y="{top + 24}" text-anchor="end">{high:.3g}</text>'
        f'<text x="54" y="{top + 114}" text-anchor="end">0</text>'
        f'<polyline points="{points}" fill="none" stroke="#2563eb" stroke-width="1.5"/>'
    )


def plot(notes: list[dict[str, float]]) -> None:
    """Draw the four figures over the reads as an SVG."""
    panels = "".join(_panel(notes, name, 20 + 140 * place) for place, name in enumerate(FIGURES))
    bottom = 20 + 140 * len(FIGURES)
    IMAGE.parent.mkdir(exist_ok=True)
    IMAGE.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {bottom + 20}" '
        'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="#fff"/>'
        f'{panels}<text x="760" y="{bottom}" text-anchor="end">{notes[-1]["reads"]:,.0f} clip reads</text>'
        "</svg>\n"
    )


def report(notes: list[dict[str, float]], kinds: Counter[str], replaced: int, words: str) -> None:
    """Write the figures and the plot."""
    rows = []
    for name, meaning in FIGURES.items():
        begin, end = _growth(notes, name)
        peer = "the same after the warm-up"
        rows.append(
            row(meaning, end, "", peer=peer, peer_value=begin, goal="< 3 % more", higher_is_better=False)
        )
    reads, failed = notes[-1]["reads"], sum(kinds.values())
    several = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    rows.append(row("clips read", reads, words, peer="asked for", peer_value=100_000, goal="100,000"))
    rows.append(
        row(f"replaced by a fallback clip ({several})", failed, "clips", peer="clips read", peer_value=reads)
    )
    rows.append(row("clips read a second", reads / notes[-1]["seconds"], "clips/s", peer="1", peer_value=1))
    rows.append(row("workers replaced", replaced, "workers", peer="clips read", peer_value=reads))
    keep("loader_soak", rows)
    plot(notes)


def soak(index: Index, reads: int, num_workers: int) -> None:
    """Read until `reads` clips were asked for (those that failed count), and keep what was seen."""
    plan = plan_from(index, BUCKETS, seed=1, micro_batches_per_step=4)
    kinds: Counter[str] = Counter()
    replaced = 0

    def on_event(event: dict[str, Any]) -> None:
        nonlocal replaced
        kinds.update([event["kind"]] if event["event"] == "clip_substituted" else [])
        replaced += event["event"] == "worker_replaced"

    spec = LoaderSpec(num_workers=num_workers, prefetch_bytes=1 << 25, max_failure_share=1)
    LoaderSpec.max_worker_clips = 10**9
    words = f"clips of {plan.num_clips}, {num_workers} workers"
    notes: list[dict[str, float]] = []
    began, delivered, step = time.monotonic(), 0, 0
    with Loader(index, plan, spec, on_event=on_event) as loader:
        while (done := delivered + sum(kinds.values())) < reads:
            delivered += sum(len(batch.clip_ids) for batch in loader.step(step))
            step += 1
            if not notes or done >= notes[-1]["reads"] + EVERY_READS:
                notes.append(_note(loader, done, time.monotonic() - began))
                if len(notes) % 20 == 0:
                    print(notes[-1], flush=True)
                    report(notes, kinds, replaced, words)
        notes.append(_note(loader, done, time.monotonic() - began))
    report(notes, kinds, replaced, words)
    growths = {name: _growth(notes, name) for name in FIGURES}
    grown = [FIGURES[name] for name, (begin, end) in growths.items() if end > MOST_GROWTH * begin]
    if grown:
        sys.exit(f"grew by more than 3 % after the warm-up: {'; '.join(grown)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=Path, default=SHARED)
    parser.add_argument("--reads", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, help="where shards are made; a temporary folder if not given")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or Path(temporary) / "work"
        soak(make_shards(given.clips, work), given.reads, given.workers)


if __name__ == "__main__":
    main()
