"""Server trackers: samples and validation losses in W&B or TensorBoard.

Each tracker is a process that follows RUN/serve/served.jsonl and RUN/serve/validation.jsonl, as the
training's trackers follow its log files; a failed tracker is one line here. In W&B the server is a separate
run in the training's group, as two processes cannot write to one run (wandb#10349). Its axis is `train_step`,
as newer checkpoints come before older ones. A line that was sent is not sent again after a restart.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.report.gallery import SERVE
from trainer.run_folder import metrics, sample_rounds, sent_lines
from trainer.run_folder.sent_lines import Sent
from trainer.run_folder.trackers_spec import TrackersSpec
from trainer.training import wandb_tensorboard
from trainer.training.wandb_tensorboard import Home, IsOver, Mirrors

SERVED = "served.jsonl"
MODULE = "trainer.generation.server.sample_trackers"
GIF_PX = 256  # of the longer side
GIF_FRAMES = 64


def metrics_file(run: Path) -> Path:
    """Return the server's event file: what it sampled, and what it skipped."""
    return run / SERVE / SERVED


class Shown(Mirrors):
    """The trackers of one run's samples, as its recipe sets them."""

    def __init__(self, run: Path, spec: TrackersSpec, recipe: dict[str, Any]) -> None:
        home = Home(module=MODULE, logs=run / SERVE / "logs", events=metrics_file(run), what="the server")
        super().__init__(spec, run, recipe, home)
        self.begin()


# ── the tracker's side ──────────────────────────────────────────────────────────────────────────────────────


def _news(run: Path, kept: Path, sent: Sent, is_over: IsOver) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield (name, line) of each line not sent yet; a line counts as sent when the next is requested."""
    paths = [metrics_file(run), run / SERVE / metrics.VALIDATION]
    seen = dict.fromkeys(paths, 0)
    for path, line in wandb_tensorboard.new_lines(paths, is_over):
        seen[path] += 1
        if seen[path] > sent.lines.get(path.name, 0):
            yield path, line
            sent.lines[path.name] = seen[path]
            sent_lines.write(kept, sent)


def _clips(run: Path, line: dict[str, Any]) -> list[tuple[str, Path, dict[str, Any]]]:
    """Return (name, file, entry) of a `served` line's clips; none if the round was replaced since."""
    listing = sample_rounds.read_listing(run / line["folder"])
    if listing is None or listing.get("digest") != line["digest"]:
        return []
    name = f"samples/{line['preset']}"
    return [
        (
            f"{name}/{entry['number']:02d}-{entry['seed']}",
            run / entry["file"],
            {**listing.get("asked", {}), **entry},
        )
        for entry in listing["samples"]
    ]


def _numbers(line: dict[str, Any]) -> dict[str, float]:
    shown = {key: value for key, value in line.items() if key not in wandb_tensorboard.HIDDEN}
    return wandb_tensorboard.scalars(shown, "validation/")


def _wandb(run: Path, settings: dict[str, Any], is_over: IsOver) -> None:
    import wandb

    kept = run / SERVE / "wandb" / sent_lines.NAME
    sent = sent_lines.begin(kept)
    there = wandb.init(
        **{name: settings[name] for name in wandb_tensorboard.INIT} | {"name": f"{settings['name']} samples"},
        dir=run / SERVE,
        id=sent.id,
        resume="allow",
        job_type="serve",
        settings=wandb.Settings(console="off"),
    )
    there.define_metric("train_step")
    there.define_metric("*", step_metric="train_step")
    for path, line in _news(run, kept, sent, is_over):
        if path.name == metrics.VALIDATION:
            there.log({"train_step": line["step"], **_numbers(line)})
        elif line["event"] == "served":
            media = {
                name: wandb.Video(str(file), caption=f"{entry['prompt']} (step {line['step']})", format="mp4")
                for name, file, entry in _clips(run, line)
            }
            there.log({"train_step": line["step"], **media})
    there.finish()


def gif(frames: NDArray[np.uint8], fps: float) -> bytes:
    """Return frames (T, H, W, 3) as a looping GIF, at most GIF_PX wide and high, GIF_FRAMES long.

    A longer clip contributes every second, third, … frame, shown correspondingly longer.
    """
    import io

    from PIL import Image

    stride = -(-len(frames) // GIF_FRAMES)
    scale = min(1.0, GIF_PX / max(frames.shape[1:3]))
    size = max(1, round(frames.shape[2] * scale)), max(1, round(frames.shape[1] * scale))
    images = [Image.fromarray(frame).resize(size) for frame in frames[::stride]]
    out = io.BytesIO()
    hold = max(20, round(1000 * stride / fps))  # ms; browsers slow down faster GIFs
    images[0].save(out, "GIF", save_all=True, append_images=images[1:], duration=hold, loop=0)
    return out.getvalue()


def _tensorboard(run: Path, settings: dict[str, Any], is_over: IsOver) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    from trainer.generation.sample_clips import read_clip

    folder = run / SERVE / "tensorboard"
    writer = EventFileWriter(str(folder), flush_secs=1)
    kept = folder / sent_lines.NAME
    for path, line in _news(run, kept, sent_lines.begin(kept), is_over):
        values = []
        if path.name == metrics.VALIDATION:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in _numbers(line).items()]
        elif line["event"] == "served":
            for name, file, entry in _clips(run, line):
                frames = read_clip(file, entry)
                height, width = frames.shape[1:3]
                image = Summary.Image(
                    height=height,
                    width=width,
                    colorspace=3,
                    encoded_image_string=gif(frames, entry["fps"]),
                )
                values.append(Summary.Value(tag=name, image=image))
        writer.add_event(Event(step=line["step"], wall_time=line["time"], summary=Summary(value=values)))
        writer.flush()
    writer.close()


if __name__ == "__main__":
    wandb_tensorboard.main(MODULE, {"tensorboard": _tensorboard, "wandb": _wandb})
