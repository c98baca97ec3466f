"""Sample round of the server: one checkpoint's clips by one preset, in one folder.

The folder is complete or absent. Each clip is generated separately and its noise belongs to (seed, prompt
number), so neither the process nor the number of processes matters.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from trainer.distributed import mesh
from trainer.distributed.mesh import World
from trainer.generation import sample_clips
from trainer.generation.server.presets import Wanted
from trainer.generation.server.weights import Model, Taken
from trainer.run_folder import metrics, sample_rounds
from trainer.run_folder.sample_rounds import Entry

BY = "serve"  # in the name of an unfinished folder
TELL_SECONDS = 2.0

T = TypeVar("T")


def is_there(run: Path, step: int, digest: str, wanted: Wanted, *, raw: bool) -> bool:
    """Return whether this round exists already, from these weights."""
    listing = sample_rounds.read_listing(sample_rounds.folder(run, wanted.name, step))
    kind = "raw" if raw else "ema"
    return listing is not None and sample_rounds.is_of(listing, wanted.spec, weights=kind, digest=digest)


def progress(given: Sequence[T], what: str, tell: Callable[[str], None]) -> Iterator[T]:
    """Yield `given`; print every few seconds the number done, the rate and the time left."""
    began = reported = time.monotonic()
    for number, one in enumerate(given):
        now = time.monotonic()
        if number and now - reported >= TELL_SECONDS:
            reported, each = now, (now - began) / number
            left = metrics.seconds_as_text(each * (len(given) - number))
            tell(f"{what}: {number}/{len(given)} clips, {each:.1f} s each, {left} left")
        yield one


def make(
    run: Path, taken: Taken, wanted: Wanted, model: Model, world: World, tell: Callable[[str], None]
) -> list[Path]:
    """Sample one round into RUN/samples; return its files. All processes call it. Raises VidcurateError."""
    folder = sample_rounds.folder(run, wanted.name, taken.step)
    partial = mesh.run_on_first_rank(lambda: sample_rounds.begin_round(folder, BY), world)
    made: list[Entry] = sample_rounds.entries(wanted.spec)
    what = f"{run.name} step {taken.step} {wanted.shown}"

    def mine() -> None:
        own = made[world.rank :: world.size]
        for entry in progress(own, what, tell if world.is_first else lambda text: None):
            frames = model.clip(taken, wanted.spec, entry)
            sample_clips.write_clip(partial / entry.file, frames, wanted.spec.fps)

    mesh.run_on_all_ranks(mine, world)
    facts = sample_rounds.listing(
        wanted.name, taken.step, wanted.spec, weights=taken.kind, digest=taken.digest
    )
    mesh.run_on_first_rank(lambda: sample_rounds.finish_round(partial, folder, facts), world)
    return [folder / entry.file for entry in made]
