"""`python -m trainer sample RUN`: arguments, and one mp4 file for each prompt.

The command imports torch only when it runs, so that --help and a wrong argument answer at once.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.cli import commands
from trainer.cli.output_paths import output_folder
from trainer.run_folder.sample_ranges import number_fault, text_fault
from vidcurate.errors import InputError, StorageError, VidcurateError, counted, printable

if TYPE_CHECKING:
    from trainer.model.encoders.registry import VideoSpec
    from trainer.run_folder.sample_spec import SampleSpec


REQUESTED = "requested"


def _spec(
    sample: "SampleSpec | None", video: "VideoSpec", given: argparse.Namespace, path: Path
) -> "SampleSpec":
    """Return the recipe's way of sampling, with what the command line changes of it."""
    from trainer.model.encoders.registry import video_encoder
    from trainer.run_folder.sample_spec import SampleSpec

    base = sample or SampleSpec(prompts=())
    if sample is None and given.size is None:
        raise InputError(f"{path}: its recipe has no sample section; say --size FRAMESxHEIGHTxWIDTH.")
    changed: dict[str, Any] = {"prompts": tuple(given.prompt) or base.prompts}
    for name in ("steps", "guidance", "fps"):
        if getattr(given, name) is not None:
            changed[name] = getattr(given, name)
    if given.size is not None:
        numbers = given.size.lower().split("x")
        if len(numbers) != 3 or not all(number.isdecimal() and int(number) for number in numbers):
            raise InputError(f"--size {given.size}: write it as FRAMESxHEIGHTxWIDTH, for example 16x32x32.")
        size = dict(zip(("num_frames", "height", "width"), map(int, numbers), strict=True))
        for name, number in size.items():
            if fault := number_fault(name, number):
                raise InputError(f"--size {given.size}: {name} is {number}; {fault}.")
        changed |= size
        if min(video_encoder(video).latent_shape(*map(int, numbers))) < 1:
            raise InputError(f"--size {given.size}: is smaller than the video encoder's blocks.")
    if not changed["prompts"]:
        raise InputError("nothing to sample: say --prompt TEXT.")
    return base.model_copy(update=changed)


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser(
        "sample",
        "Sample clips from a checkpoint, or from a run's newest one.",
        '  python -m trainer sample runs/smoke --prompt "a red square moves right"\n',
    )
    commands.add_run(parser)
    parser.add_argument(
        "--prompt", action="append", default=[], help="may be repeated; default: the recipe's"
    )
    parser.add_argument("--out", type=output_folder, help="folder for the mp4 files (RUN/samples/requested)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="Euler steps")
    parser.add_argument("--guidance", type=float, help="guidance scale; 1 is none")
    parser.add_argument("--size", metavar="FxHxW", help="frames, height and width, such as 16x32x32")
    parser.add_argument("--fps", type=float, help="frames per second")
    parser.add_argument("--raw", action="store_true", help="the weights themselves, not their moving average")
    return parser


def _check(given: argparse.Namespace) -> None:
    """Raise InputError for a number out of its range, and for a prompt that is no text."""
    for name in ("seed", "steps", "guidance", "fps"):
        value = getattr(given, name)
        if value is not None and (fault := number_fault(name, value)):
            raise InputError(f"--{name} {value}: {fault}.")
    for prompt in given.prompt:
        if fault := text_fault(prompt):
            raise InputError(f"--prompt {prompt}: {fault}.")


def _new_file(folder: Path, name: str) -> Path:
    """Create an empty file of this name in the folder, or with -2, -3, … where it exists; return its path.

    Raises StorageError.
    """
    file = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(2):
            try:
                file.open("xb").close()
                break
            except FileExistsError:
                file = folder / f"{Path(name).stem}-{number}{Path(name).suffix}"
    except OSError as error:
        raise StorageError(f"{file}: cannot be written ({error.strerror}); give --out FOLDER.") from error
    return file


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    return commands.run_short_command(lambda: _run(given))


def _run(given: argparse.Namespace) -> None:
    _check(given)
    with commands.loading():
        import torch

        from trainer.generation import sample_clips
        from trainer.model.encoders.registry import loss_of_sample
        from trainer.run_folder import sample_rounds
        from trainer.run_folder.checkpoint import checkpoint

    path = checkpoint.find_named(given.path)
    model, recipe, state = sample_clips.load_model(path, raw=given.raw)
    folder, before = given.out, ""
    if folder is None:
        folder, before = path.parent / sample_rounds.SAMPLES / REQUESTED, f"{path.name}-"
    spec = _spec(recipe.sample, recipe.video_encoder, given, given.path).model_copy(
        update={"seeds": (given.seed,)}
    )
    pipeline = sample_clips.pipeline_of(
        recipe.encoding, recipe.flow_of(sample_clips.stage_of(state, path)), recipe.dtype, model
    )
    if note := loss_of_sample(recipe.video_encoder, spec.height, spec.width):
        print(f"note: {note}", file=sys.stderr, flush=True)
    for entry in sample_rounds.entries(spec):
        try:
            frames = sample_clips.sample_clip(pipeline, spec, entry)
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise VidcurateError(
                f"{counted(spec.num_frames, 'frame')} of {spec.height} x {spec.width} px need more memory "
                "than is free; give a smaller --size."
            ) from error
        file = _new_file(folder, f"{before}{entry.file}")
        try:
            sample_clips.write_clip(file, frames, spec.fps)
        except BaseException:
            file.unlink(missing_ok=True)
            raise
        print(f"{file}  {printable(entry.prompt)}", flush=True)
