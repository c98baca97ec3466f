"""Table of the trainers that an export is written for."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from vidcurate.curation.export.trainers import folder_readers, list_readers
from vidcurate.curation.export.trainers.exported import Exported, Files
from vidcurate.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """Trainer: `files` makes its manifests and configuration; `script` is the one with the next command.

    `models` of the table of models are the ones that it trains, empty for trainers of many.
    `has_one_frame_count`: it reads the same number of frames of every clip; `frames_read` gives that number
    from the frames of the shortest clip.
    """

    name: str
    title: str
    files: Callable[[Exported], Files]
    models: tuple[str, ...] = ()
    has_one_frame_count: bool = False
    frames_read: Callable[[int], int] = lambda fewest_frames: fewest_frames

    @property
    def script(self) -> str:
        return f"{self.name}.sh"


_ROWS = (
    Trainer(name="finetrainers", title="finetrainers", files=folder_readers.finetrainers),
    Trainer(name="diffusion-pipe", title="diffusion-pipe", files=folder_readers.diffusion_pipe),
    Trainer(name="musubi", title="musubi-tuner", files=folder_readers.musubi),
    Trainer(name="ltx", title="LTX-2 trainer", files=list_readers.ltx, models=("ltx2",)),
    Trainer(name="videox-fun", title="VideoX-Fun", files=list_readers.videox_fun, has_one_frame_count=True),
    Trainer(name="fastvideo", title="FastVideo", files=list_readers.fastvideo, has_one_frame_count=True),
    Trainer(
        name="diffsynth", title="DiffSynth-Studio", files=list_readers.diffsynth, has_one_frame_count=True
    ),
    Trainer(
        name="automodel", title="NeMo Automodel", files=folder_readers.automodel, has_one_frame_count=True
    ),
    Trainer(
        name="cosmos-predict2",
        title="Cosmos-Predict2",
        files=folder_readers.cosmos_predict2,
        has_one_frame_count=True,
        frames_read=folder_readers.cosmos_predict2_frames,
    ),
    Trainer(
        name="cogvideo",
        title="CogVideoX fine-tuning",
        files=list_readers.cogvideo,
        models=("cogvideox", "cogvideox1.5"),
        has_one_frame_count=True,
    ),
    Trainer(
        name="mochi",
        title="Mochi fine-tuner",
        files=folder_readers.mochi,
        models=("mochi",),
        has_one_frame_count=True,
    ),
    Trainer(
        name="simpletuner", title="SimpleTuner", files=folder_readers.simpletuner, has_one_frame_count=True
    ),
    Trainer(name="hf", title="Hugging Face datasets", files=list_readers.hf),
)
TRAINERS: dict[str, Trainer] = {row.name: row for row in _ROWS}
TABLES = ("csv", "jsonl", "parquet")


def trainers_named(names: str) -> list[str]:
    """Return the trainers of a list with commas, each once, sorted. Raises InputError."""
    wanted = sorted({name.strip() for name in names.split(",") if name.strip()})
    every = ", ".join([*TRAINERS, *TABLES])
    for name in wanted:
        if name not in TRAINERS:
            near = get_close_matches(name, [*TRAINERS, *TABLES], n=1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise InputError(f"--for {name}: unknown trainer. {hint}There are: {every}.")
    if not wanted:
        raise InputError(f"--for {names!r}: no trainer is named. There are: {every}.")
    return wanted


def warnings(names: list[str], exported: Exported) -> list[str]:
    """Return a line for each thing that a trainer would do to these clips without a word."""
    found = []
    model = exported.model.name if exported.model else None
    for name in names:
        trainer = TRAINERS[name]
        if trainer.models and model not in trainer.models:
            found.append(
                f"{name}: trains {' or '.join(trainer.models)}, and the clips were exported with "
                f"{f'--fit {model}' if model else 'no --fit'}. The trainer resizes or retimes these. "
                f"Export again with --fit {trainer.models[0]}."
            )
        num_frames = trainer.frames_read(exported.fewest_frames)
        if trainer.has_one_frame_count and exported.fewest_frames < exported.most_frames:
            found.append(
                f"{name}: reads {num_frames} frames of every clip, as many as the shortest allows; "
                f"the longest has {exported.most_frames}. Export again with --frames N."
            )
    if exported.model is None and exported.rate is None:
        found.append(
            "clips have several frame rates; some trainers play all of them at one. Add --fit MODEL."
        )
    return found
