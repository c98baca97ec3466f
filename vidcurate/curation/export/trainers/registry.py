"""Table of the trainers that an export is written for."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from vidcurate.curation.export.trainers import folder_readers, list_readers
from vidcurate.curation.export.trainers.exported import Exported, Files
from vidcurate.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """Trainer: `files` makes its manifests and configuration; `script` is the one with the next command."""

    name: str
    title: str
    files: Callable[[Exported], Files]

    @property
    def script(self) -> str:
        return f"{self.name}.sh"


_ROWS = (
    Trainer(name="finetrainers", title="finetrainers", files=folder_readers.finetrainers),
    Trainer(name="diffusion-pipe", title="diffusion-pipe", files=folder_readers.diffusion_pipe),
    Trainer(name="musubi", title="musubi-tuner", files=folder_readers.musubi),
    Trainer(name="ltx", title="LTX-2 trainer", files=list_readers.ltx),
    Trainer(name="videox-fun", title="VideoX-Fun", files=list_readers.videox_fun),
    Trainer(name="fastvideo", title="FastVideo", files=list_readers.fastvideo),
    Trainer(name="diffsynth", title="DiffSynth-Studio", files=list_readers.diffsynth),
    Trainer(name="automodel", title="NeMo Automodel", files=folder_readers.automodel),
    Trainer(name="cosmos-predict2", title="Cosmos-Predict2", files=folder_readers.cosmos_predict2),
    Trainer(name="cogvideo", title="CogVideoX fine-tuning", files=list_readers.cogvideo),
    Trainer(name="mochi", title="Mochi fine-tuner", files=folder_readers.mochi),
    Trainer(name="simpletuner", title="SimpleTuner", files=folder_readers.simpletuner),
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
