"""Preflight commands: the check at every start, and `--preflight` alone."""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainer.data import open_stage
from trainer.data import stages as data_stages
from trainer.data.stages import StageData
from trainer.distributed import environment, mesh
from trainer.distributed.mesh import World
from trainer.health.checks.check import Bounded, Check
from trainer.recipe import recipe as recipes
from trainer.recipe.recipe import TrainRecipe
from trainer.report.preview import dry_run
from trainer.run_folder import jsonl
from trainer.run_folder import layout as run_folder_layout
from trainer.training.preflight import run_checks
from trainer.training.preflight.run_checks import Preflight
from trainer.training.state import Origin
from vidcurate.errors import BadNodeError, StorageError, VidcurateError, counted
from vidcurate.storage import atomic_file

FILE = "preflight.json"
DATA_SECONDS = 60.0  # limit for opening the stages, and for reading one step's clips


def _newest_step(run: Path) -> int:
    there = run_folder_layout.checkpoints(run)
    return run_folder_layout.step_of(there[-1]) if there else 0


def write_report(found: Preflight, run: Path, more: dict[str, Any]) -> None:
    """Write RUN/preflight.json and the event; an unwritable disk is already in the verdict."""
    try:
        text = json.dumps({**found.to_json(), **more}, indent=1) + "\n"
        atomic_file.write_text(run / FILE, text)
        jsonl.record_event(
            run,
            "preflight",
            _newest_step(run),
            form=found.form,
            verdict=found.verdict,
            seconds=found.seconds,
            nodes={node["host"]: node["verdict"] for node in found.nodes},
            problems=found.problems,
        )
    except StorageError as error:
        print(f"preflight: {error}", file=sys.stderr, flush=True)


def _print_table(found: Preflight) -> None:
    """Print the table; a start without findings prints nothing."""
    if found.lines:
        print("\n".join(found.lines), file=sys.stderr, flush=True)


def _end(found: Preflight, has_hung: bool = False) -> None:
    """Raise BadNodeError on every rank if a node is bad; a rank with a hanging check exits at once."""
    if found.has_hung or has_hung:
        run_checks.leave_at_once(found.error)
    if found.error:
        raise BadNodeError(found.error)


def at_start(recipe: TrainRecipe, stages: tuple[StageData, ...], world: World) -> Preflight | None:
    """Run the short checks before a training starts; all ranks call it together.

    Returns None for a finished run. The caller writes the report once the run is known to start, because a
    refused start must leave the run's folder unchanged; this function writes a bad node's report itself.
    Raises BadNodeError, the same on all ranks.
    """
    last_step = stages[-1].first_step + stages[-1].num_steps
    if mesh.run_on_first_rank(lambda: _newest_step(recipe.output) == last_step, world):
        return None
    found = run_checks.run_checks(recipe, world, stages, full=False)
    if found.prints:
        _print_table(found)
        if found.error or found.has_hung:
            write_report(found, recipe.output, {})
    _end(found)
    return found


# ── alone ───────────────────────────────────────────────────────────────────────────────────────────────────


def _of_data(
    read: Callable[[], tuple[StageData, ...]], first_loader: Callable[..., Any], bounded: Bounded
) -> tuple[tuple[StageData, ...], list[Check], list[VidcurateError]]:
    """Return the stages that `read` opens on this rank, their checks, and the errors of reading them.

    `first_loader` opens a stage's loader as the training would.
    """
    stages: list[StageData] = []
    failures: list[VidcurateError] = []

    def dataset() -> list[Check]:
        try:
            stages.extend(read())
        except VidcurateError as error:
            failures.append(error)
            raise
        steps = stages[-1].first_step + stages[-1].num_steps
        clips = sum(stage.plan.num_clips for stage in stages)
        value = f"{counted(len(stages), 'stage')}, {counted(steps, 'step')}, {counted(clips, 'clip')}"
        return [Check(name="dataset", verdict="ok", value=value)]

    def first_step() -> list[Check]:
        """Read this rank's clips of the first step, as the training would."""
        events: list[dict[str, Any]] = []
        with first_loader(stages[0], on_event=events.append) as opened:
            batches = opened.step(0)
        value = f"{counted(len(batches), 'micro-batch', 'es')} read"
        replaced = [event["clip_id"] for event in events if event["event"] == "clip_substituted"]
        if replaced:
            value += f", {counted(len(replaced), 'clip')} cannot be read ({', '.join(replaced[:3])})"
        return [Check(name="first step", verdict="warn" if replaced else "ok", value=value)]

    found = bounded.run("dataset", dataset)
    if found[0].verdict == "ok":
        found += bounded.run("first step", first_step)
    return tuple(stages), found, failures


def _same(digest: str, stages: tuple[StageData, ...]) -> dict[str, str]:
    """Return what must be equal on all ranks: the recipe, the clips and their order."""
    return {
        "recipe": digest[:12],
        "dataset": " ".join(stage.index.structure_fingerprint[:12] for stage in stages),
        "order": " ".join(stage.plan.fingerprint[:12] for stage in stages),
    }


def run_preflight(recipe: TrainRecipe, origin: Origin, settings: Sequence[str]) -> dict[str, Any] | None:
    """Run the full checks and the data's without training; return the report on rank 0, else None.

    Raises BadNodeError. If no rank can read the data, every rank raises the reading's error.
    """
    environment.apply(recipe.environment)
    world = mesh.init_process_groups()
    bounded = Bounded(DATA_SECONDS)
    try:
        first_loader = partial(
            open_stage.open_loader,
            loader_spec=recipe.loader,
            encoder_spec=recipe.video_encoder,
            rank=world.rank,
            world_size=world.size,
        )
        read = partial(data_stages.open_stages, recipe)
        stages, checks, failures = _of_data(read, first_loader, bounded)
        if all(mesh.all_gather(bool(failures), world)):
            raise failures[0]  # the request is wrong, not a node
        same = _same(recipes.digest(recipe), stages) if stages else {}
        found = run_checks.run_checks(recipe, world, stages, full=True, data_checks=checks, same=same)
        more: dict[str, Any] = {}
        if world.is_first and stages:
            more["data"] = dry_run.dry_run(recipe, origin, settings)
            print(dry_run.to_text(more["data"]), file=sys.stderr, flush=True)
        if found.prints:
            _print_table(found)
            write_report(found, recipe.output, more)
        _end(found, bool(bounded.hung))
        return {**found.to_json(), **more} if world.is_first else None
    finally:
        mesh.destroy_process_groups(world)
