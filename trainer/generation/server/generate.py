"""Clip generation for an HTTP request: choose run, checkpoint and size."""

import math
import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.distributed.mesh import ALONE
from trainer.generation import sample_clips
from trainer.generation.server import checkpoints, presets
from trainer.generation.server.checkpoints import Waiting
from trainer.generation.server.follow import Server
from trainer.generation.server.request import FIELDS, Answer, Limits, Refused, check_pixels, check_tokens
from trainer.generation.server.weights import Taken, part_of, take
from trainer.model.encoders.registry import video_encoder
from trainer.recipe.encoding import Encoding
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder.checkpoint import checkpoint
from trainer.run_folder.sample_rounds import Entry
from trainer.run_folder.sample_spec import SampleSpec
from vidcurate.errors import CheckpointError, InputError

_STEP = re.compile(r"^step-\d{8,}$")
SIZES = ("num_frames", "height", "width")


def _as_label(name: str) -> str:
    """Return a name as a label's value in Prometheus' text format."""
    return name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Generator:
    """Generates the clips of requests with the server's model. One thread calls it."""

    def __init__(self, server: Server, limits: Limits) -> None:
        self.server, self.limits = server, limits
        self._taken: Taken | None = None

    def _run(self, name: str | None) -> Path:
        runs = {run.resolve().name: run for run in self.server.service.runs}
        if name is None and len(runs) == 1:
            return next(iter(runs.values()))
        if name not in runs:
            said = f"run is {name!r}" if name else "run is missing"
            raise Refused(404 if name else 400, f"{said}; the runs are {', '.join(runs)}.")
        return runs[name]

    def _path(self, run: Path, name: str | None) -> Path:
        if name is None:
            found, _ = checkpoints.there(run, part_of(self.server.service.raw), Waiting())
            known = self.server.standing.waiting.get(run, Waiting())
            whole = [path for path in found if not known.is_left(path)]
            if not whole:
                raise Refused(404, f"{run.name} has no whole checkpoint yet; ask again later.")
            return whole[0]
        path = run / name
        if not _STEP.match(name) or path not in run_folder_layout.checkpoints(run):
            raise Refused(404, f"checkpoint {name!r} is not one of {run.name}; leave it out for the newest.")
        return path

    def _take(self, path: Path) -> Taken:
        """Return the checkpoint, from memory if the server or the last request has loaded it."""
        raw = self.server.service.raw
        try:
            digest = checkpoints.weights_digest(path, part_of(raw))
            for known in (self._taken, self.server.taken):
                if known is not None and known.path == path and known.digest == digest:
                    self._taken = known
                    return known
            self._taken = take(path, raw=raw, world=ALONE)
        except CheckpointError as error:
            raise Refused(503, str(error)) from error
        return self._taken

    def _spec(
        self, sample: SampleSpec | None, encoding: Encoding, name: str, asked: dict[str, Any]
    ) -> SampleSpec:
        service = self.server.service
        changes = replace(service.changes, prompts=(asked["prompt"],))
        given = {name: value for name, value in asked.items() if name in FIELDS and name != "seed"}
        try:
            preset = service.presets[0]
            if sample is None and preset == presets.OWN:
                raise InputError("the recipe has no sample section, so no size; start with a --preset.")
            own = presets.wanted(sample, encoding.video, preset, changes, raw=service.raw, name=name)
            spec = own.spec.model_copy(update=given)
            presets.check_size(encoding.video, *(getattr(spec, name) for name in SIZES))
        except InputError as error:
            raise Refused(400, str(error)) from error
        check_pixels(spec.num_frames, spec.height, spec.width, self.limits)
        _, *shape = video_encoder(encoding.video).latent_shape(spec.num_frames, spec.height, spec.width)
        patches = [-(-size // patch) for size, patch in zip(shape, encoding.model.patch_size, strict=True)]
        check_tokens(math.prod(patches), patches[0], self.limits)
        return spec

    def prepare(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Check run, checkpoint and size before the request is queued; return it with its checkpoint.

        Reads no weights, and may be called by any thread. Raises Refused.
        """
        run = self._run(asked.get("run"))
        path = self._path(run, asked.get("checkpoint"))
        try:
            checkpoint.check_sizes(path, (part_of(self.server.service.raw),))
            recipe = sample_clips.recipe_of(checkpoint.read_state(path), path)
            self._spec(recipe.sample, recipe.encoding, recipe.name, asked)
        except CheckpointError as error:
            raise Refused(503, str(error)) from error
        return {**asked, "checkpoint": path.name}

    def __call__(self, asked: dict[str, Any], check: Callable[[], None]) -> Answer:
        """Return the mp4 of a request. Raises Refused, and what `check` raises."""
        run = self._run(asked.get("run"))
        taken = self._take(self._path(run, asked.get("checkpoint")))
        recipe = taken.recipe
        spec = self._spec(recipe.sample, recipe.encoding, recipe.name, asked)
        seed = asked.get("seed", 0)
        check()
        frames = self.server.model.clip(
            taken, spec, Entry(number=0, prompt=asked["prompt"], seed=seed), check
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "clip.mp4"
            sample_clips.write_clip(path, frames, spec.fps)
            body = path.read_bytes()
        facts = {"X-Checkpoint": taken.path.name, "X-Weights": taken.kind, "X-Seed": str(seed)}
        return Answer(200, body, {"Content-Type": "video/mp4", **facts})

    def facts(self) -> dict[str, Any]:
        """Return the facts of /health."""
        newest = {str(run): step for run, step in dict(self.server.standing.newest).items()}
        return {"runs": [str(run) for run in self.server.service.runs], "newest_step": newest}

    def gauges(self) -> dict[str, float]:
        """Return the gauges of /metrics, besides the request counters."""
        standing = self.server.standing
        steps = {
            f'newest_step{{run="{_as_label(run.resolve().name)}"}}': float(step)
            for run, step in dict(standing.newest).items()
        }
        return {
            "rounds_total": standing.rounds,
            "clips_total": standing.clips,
            "round_seconds_total": standing.seconds,
            "weight_swaps_total": self.server.model.swaps,
            **steps,
        }
