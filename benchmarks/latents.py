"""Latent shards: micro-batches a second, beside plain reads and beside decoding.

    python benchmarks/latents.py [--clips 240] [--folder FOLDER]

Three questions, each answered by medians of rounds in which the peers take turns; all files are in the page
cache.

- GB/s of whole micro-batches of the mixed XL/2 buckets (latents and texts, CRC-32 compared), read one after
  the other, against numpy.fromfile of the same arrays, which compares nothing.
- What a training loop waits for its data when a step takes 100 ms elsewhere, against reading when asked.
- Micro-batches/s of 144p x 51 clips through `space_to_depth`: from their latents, against decoding H.264 and
  encoding online, in one process each.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from make_latents import XL_2, make
from rows import keep, row

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.data import model_inputs, open_stage
from trainer.data import stages as data_stages
from trainer.data.latents.folder import LatentFolder, numbers
from trainer.data.latents.precompute import encode_ahead, request_of
from trainer.data.latents.read import LatentLoader
from trainer.model.encoders.registry import text_encoder, video_encoder
from trainer.recipe.recipe import TrainRecipe
from vidcurate.loader.spec import LoaderSpec
from vidcurate.media import encode
from vidcurate.sampler import order
from vidcurate.shards.index_file import write_index
from vidcurate.shards.tar_write import TarWriter
from vidcurate.storage.checksum import crc32c

ROUNDS = 7
STEPS = 24
STEP_SECONDS = 0.1
AHEAD_BYTES = (
    1 << 25
)  # little beside what is read: what is read ahead at the end of a round counts against us


def _silent(event: dict[str, Any]) -> None:
    raise SystemExit(f"a benchmark's clip was replaced: {event}")


def _loader(folder: LatentFolder, stage: data_stages.StageData, ahead_bytes: int) -> LatentLoader:
    spec = LoaderSpec(prefetch_bytes=ahead_bytes)
    return LatentLoader(folder, stage.plan, spec, num_views=1, on_event=_silent)


def read_plainly(
    folder: LatentFolder, stage: data_stages.StageData, step: int, *, check: bool = False
) -> int:
    """Read a step's arrays with numpy alone, one after the other; return their bytes."""
    total = 0
    for part in order.step_micro_batches(stage.plan, step):
        bucket = stage.plan.cells[part.cell].bucket
        arrays = []
        for table, found in (
            (folder.latents, folder.find_latents(bucket, part.rows, 0)),
            (folder.texts, folder.find_texts(part.rows, 0)),
        ):
            offsets, sizes, sums = (numbers(table, name) for name in ("offset", "size", "crc32"))
            shards = table.column("shard")
            for place in found.tolist():
                path = folder.path / shards[place].as_py()
                arrays.append(
                    np.fromfile(path, dtype=np.uint8, count=int(sizes[place]), offset=int(offsets[place]))
                )
                if check and zlib.crc32(arrays[-1]) != sums[place]:
                    raise SystemExit(f"{path}: damaged")
        total += sum(array.nbytes for array in arrays)
    return total


def read_batches(loader: LatentLoader, step: int) -> int:
    """Return the bytes of a step's micro-batches."""
    return sum(batch.latents.nbytes + sum(text.nbytes for text in batch.texts) for batch in loader.step(step))


def rate(read: Callable[[int], int], steps: range) -> float:
    """Return GB/s over these steps."""
    began = time.perf_counter()
    total = sum(read(step) for step in steps)
    return total / (time.perf_counter() - began) / 1e9


def waiting(read: Callable[[int], object], steps: range) -> float:
    """Return the median wait for a step's data, in ms, while each step takes STEP_SECONDS elsewhere."""
    waits = []
    for step in steps:
        began = time.perf_counter()
        read(step)
        waits.append(time.perf_counter() - began)
        time.sleep(STEP_SECONDS)
    return 1000 * statistics.median(waits[2:])


def write_videos(folder: Path, count: int) -> None:
    """Write `count` clips of 144 x 256 pixels and 51 frames into shards: a bright bar moves over a ramp."""
    folder.mkdir()
    rows: dict[str, list[Any]] = {}
    ramp = np.linspace(20, 200, 256, dtype=np.float32)[None, :, None]
    noise = np.random.default_rng(0).normal(0, 6, (144, 256, 3)).astype(np.float32)
    with (folder / "clips.tar").open("wb") as file:
        writer = TarWriter(file)
        for number in range(count):
            frames = np.empty((51, 144, 256, 3), dtype=np.uint8)
            for time_, frame in enumerate(frames):
                frame[:] = (ramp + noise).clip(0, 255)
                left = (3 * time_ + 17 * number) % 224
                frame[:, left : left + 32] = 240
            encode.write_video(folder / "clip.mp4", frames, fps=24.0)
            payload = (folder / "clip.mp4").read_bytes()
            key = f"clip-{number:03d}"
            facts = json.dumps({"clip_id": key, "caption": "a bar moves"}).encode()
            line = {
                "sample_key": key,
                "clip_id": key,
                "source_id": key,
                "source_dataset": "made",
                "fold": "train",
                "level": 1,
                "caption": "a bar moves",
                "shard": "clips.tar",
                "json_offset": writer.add(f"{key}.json", facts),
                "json_size": len(facts),
                "json_crc32c": crc32c(facts),
                "video_offset": writer.add(f"{key}.mp4", payload),
                "video_size": len(payload),
                "video_extension": "mp4",
                "video_crc32c": crc32c(payload),
                "width": 256,
                "height": 144,
                "fps": 24.0,
                "num_frames": 51,
                "duration_seconds": 51 / 24,
                "noun_count": 1,
            }
            for name, value in line.items():
                rows.setdefault(name, []).append(value)
        writer.finish()
    write_index(folder, rows)


def online(folder: Path) -> tuple[float, float]:
    """Return micro-batches/s, encoded and ready for the model: from latents, and from videos."""
    write_videos(folder / "shards", 16)
    base = {
        "name": "online",
        "output": str(folder / "run"),
        "model": {"hidden_size": 64} | {"num_heads": 4, "depth": 1},
        "video_encoder": {"kind": "space_to_depth", "spatial": 4, "temporal": 2},
        "text_encoder": {"kind": "words"},
        "encoded": {"latent_dtype": "bfloat16", "text_dtype": "bfloat16"},
        "stages": [
            {
                "name": "all",
                "steps": 1,
                "data": {
                    "shards": str(folder / "shards"),
                    "views": 1,
                    "buckets": {"table": {"144p": {"51": [1.0, 4]}}},
                },
            }
        ],
    }
    clips = TrainRecipe.model_validate_json(json.dumps(base))
    encode_ahead(request_of(clips), folder / "latents")
    base["stages"][0]["data"]["latents"] = str(folder / "latents")  # type: ignore[index]
    ahead = TrainRecipe.model_validate_json(json.dumps(base))
    encoders = model_inputs.Encoders(
        video=video_encoder(clips.video_encoder), text=text_encoder(clips.text_encoder), kept=clips.encoded
    )
    device = model_inputs.torch.device("cpu")
    rates: dict[str, list[float]] = {"ahead": [], "line": []}
    for round_ in range(3):
        for name, recipe in (("ahead", ahead), ("line", clips)):
            (stage,) = data_stages.open_stages(recipe)
            with open_stage.open_loader(
                stage, recipe.loader, recipe.video_encoder, rank=0, world_size=1, on_event=_silent
            ) as loader:
                began = time.perf_counter()
                for step in range(4 * round_, 4 * round_ + 4):
                    for batch in loader.step(step):
                        model_inputs.of(batch, encoders, seed=0, step=step, device=device)
                rates[name].append(4 / (time.perf_counter() - began))
    return statistics.median(rates["ahead"]), statistics.median(rates["line"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure reading micro-batches from latent shards.")
    parser.add_argument("--clips", type=int, default=240, help="made-up clips of the mixed XL/2 buckets")
    parser.add_argument("--folder", type=Path, help="where to put them (default: a temporary folder)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        made = json.loads(json.dumps(XL_2)) | {"output": str(folder / "run")}
        made["stages"][0]["data"]["shards"] = str(folder / "made" / "clips")
        recipe = make(TrainRecipe.model_validate_json(json.dumps(made)), folder / "made", given.clips)
        (stage,) = data_stages.open_stages(recipe)
        latents = stage.folder
        assert latents is not None
        ours: list[float] = []
        plain: list[float] = []
        checked: list[float] = []
        for number in range(ROUNDS):
            steps = range(STEPS * number, STEPS * (number + 1))
            plain.append(rate(lambda step: read_plainly(latents, stage, step), steps))
            checked.append(rate(lambda step: read_plainly(latents, stage, step, check=True), steps))
            with _loader(latents, stage, AHEAD_BYTES) as loader:
                ours.append(rate(lambda step, loader=loader: read_batches(loader, step), steps))
        with _loader(latents, stage, AHEAD_BYTES) as loader:
            waits = waiting(loader.step, range(STEPS))
        asked = waiting(lambda step: read_plainly(latents, stage, step), range(STEPS))
        ahead, line = online(folder)
    keep(
        "latents",
        [
            row(
                "latent micro-batches, checked",
                statistics.median(ours),
                "GB/s",
                peer="numpy.fromfile, unchecked",
                peer_value=statistics.median(plain),
            ),
            row(
                "latent micro-batches, checked",
                statistics.median(ours),
                "GB/s",
                peer="numpy.fromfile and crc32",
                peer_value=statistics.median(checked),
            ),
            row(
                "wait for the data of a step of 100 ms",
                waits,
                "ms",
                peer="numpy.fromfile when asked",
                peer_value=asked,
                higher_is_better=False,
            ),
            row(
                "144p x 51 micro-batches of 4 clips, space_to_depth",
                ahead,
                "micro-batches/s",
                peer="decoding and encoding on line",
                peer_value=line,
            ),
        ],
    )


if __name__ == "__main__":
    main()
