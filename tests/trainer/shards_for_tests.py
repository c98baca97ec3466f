"""A few tiny real videos in real shards: coloured squares that move, each with a caption that is true."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.recipe import recipe as recipes
from trainer.recipe.recipe import TrainRecipe
from trainer.run_folder import jsonl, metrics
from vidcurate.media import encode
from vidcurate.shards.index_file import write_index
from vidcurate.shards.tar_write import TarWriter
from vidcurate.storage.checksum import crc32c

TINY = Path(__file__).resolve().parents[1] / "tiny.yaml"
SMOKE = TINY
COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 70, 220), "white": (240, 240, 240)}
WAYS = {"right": (0, 2), "left": (0, -2), "down": (2, 0), "up": (-2, 0)}
FPS = 8.0


def square(colour: str, way: str, num_frames: int, height: int, width: int) -> NDArray[np.uint8]:
    """Return (T, H, W, 3): a square of `colour` that moves two pixels a frame, and wraps around."""
    frames = np.full((num_frames, height, width, 3), 30, dtype=np.uint8)
    down, right = WAYS[way]
    for number in range(num_frames):
        patch = np.zeros((height, width), dtype=bool)
        patch[: height // 2, : width // 2] = True
        frames[number][np.roll(patch, (down * number, right * number), (0, 1))] = COLOURS[colour]
    return frames


def make_shards(
    folder: Path,
    *,
    num_clips: int = 12,
    num_frames: int = 9,
    size: int = 32,
    name: str = "clip",
    cut_short: tuple[int, ...] = (),
    validation: tuple[int, ...] = (),
    crf: int = 18,
) -> Path:
    """Write `num_clips` clips to `folder` (two levels, one shard each, and one wide clip in three).

    Of the clips numbered in `cut_short` the file has 3 frames, whatever the index says; those numbered in
    `validation` are of that fold. Returns `folder`. The same arguments give the same bytes.
    """
    folder.mkdir(parents=True)
    kinds = [(colour, way) for way in WAYS for colour in COLOURS]
    rows: dict[str, list[object]] = {}
    for level in (1, 2):
        shard = f"train-level{level}-000000.tar"
        with (folder / shard).open("wb") as file:
            writer = TarWriter(file)
            for number in range(level - 1, num_clips, 2):
                colour, way = kinds[number % len(kinds)]
                height, width = (size, 2 * size) if number % 3 == 2 else (size, size)
                path = folder / "clip.mp4"
                length = 3 if number in cut_short else num_frames
                encode.write_video(path, square(colour, way, length, height, width), fps=FPS, crf=crf)
                payload = path.read_bytes()
                path.unlink()
                caption = f"a {colour} square moves {way}"
                key = f"{name}-{number:03d}"
                facts = json.dumps({"clip_id": key, "caption": caption}).encode()
                row = {
                    "sample_key": key,
                    "clip_id": key,
                    "source_id": key,
                    "source_dataset": "made",
                    "fold": "validation" if number in validation else "train",
                    "level": level,
                    "caption": caption,
                    "shard": shard,
                    "json_offset": writer.add(f"{key}.json", facts),
                    "json_size": len(facts),
                    "json_crc32c": crc32c(facts),
                    "video_offset": writer.add(f"{key}.mp4", payload),
                    "video_size": len(payload),
                    "video_extension": "mp4",
                    "video_crc32c": crc32c(payload),
                    "width": width,
                    "height": height,
                    "fps": FPS,
                    "num_frames": num_frames,
                    "duration_seconds": num_frames / FPS,
                    "noun_count": 1,
                }
                for column, value in row.items():
                    rows.setdefault(column, []).append(value)
            writer.finish()
    write_index(folder, rows)
    return folder


def settings(shards: Path, output: Path, *more: str) -> list[str]:
    """Return the `--set` values that point tests/tiny.yaml at these shards and this run folder."""
    return [f"stages.0.data.shards={shards}", f"output={output}", *more]


def command_words(shards: Path, output: Path, *more: str) -> list[str]:
    """Return the command line of tests/tiny.yaml with its paths, and `more` settings."""
    values = settings(shards, output, *more)
    return [str(TINY), *(word for value in values for word in ("--set", value))]


def smoke(shards: Path, output: Path, *more: str) -> TrainRecipe:
    """Return tests/tiny.yaml with its paths, and `more` settings."""
    return recipes.load(TINY, settings(shards, output, *more))


def numbers(run: Path) -> list[dict[str, Any]]:
    """Return a run's metric lines without what a clock measured."""
    return [
        {key: value for key, value in line.items() if key not in metrics.CLOCK_KEYS}
        for line in metrics.read_metrics(run / metrics.METRICS)
    ]


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in metrics.read_metrics(run / jsonl.EVENTS) if line["event"] == kind]
