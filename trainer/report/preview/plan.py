"""`python -m trainer plan`: what a recipe or a run reads, step by step, before, while and after it does.

The home of these questions is the trainer, because the order hangs on a stage of a recipe (its buckets,
weights, seed and length) and the ranks' shares on what its model costs. The answers come from the functions
that the loader asks.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer.cli import commands as cli_commands
from trainer.data import stages as data_stages
from trainer.data.stages import StageData
from trainer.report.preview import contact_sheet, plan_text, simulate
from trainer.report.preview import stages as preview_stages
from trainer.report.preview.stages import RunStages
from trainer.run_folder import metrics, whole_file
from vidcurate.errors import InputError, MediaError
from vidcurate.loader.loader import Loader
from vidcurate.loader.spec import LoaderSpec
from vidcurate.sampler import order, plan_diff, plan_stats
from vidcurate.sampler.build_plan import clips_of_step

MOST_PICTURES = 2000  # on one page
STEPS_COMPARED = 200

EXAMPLE = """\
  python -m trainer plan show recipes/first-steps.yaml --steps 1:2 --captions
  python -m trainer plan show runs/first --steps 1 --world 2 --html first-step.html
  python -m trainer plan show runs/first --clip CLIP --until 40
  python -m trainer plan diff runs/first recipes/first-steps.yaml
  python -m trainer plan simulate recipes/first-steps.yaml --world 1,2,8 --step-seconds 0.5
"""


# ── show ────────────────────────────────────────────────────────────────────────────────────────────────────


def micro_batches(
    found: RunStages, first: int, last: int, world_size: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the micro-batches of the steps `first` to `last`, in their order; `rank` among `world_size`."""
    for step, stage, number in preview_stages.steps(found, first, last):
        read = data_stages.data_step(stage, number)
        now = order.at_step(stage.plan, read)
        ranks = plan_stats.ranks_of(stage.plan, read, world_size) if world_size else {}
        clips: dict[int, list[Any]] = {}
        for clip in clips_of_step(stage.plan, stage.index, read):
            clips.setdefault(clip.position, []).append(clip)
        for part in order.step_micro_batches(stage.plan, read):
            cell = now.cells[part.cell]
            yield {
                "step": step,
                "stage": stage.stage.name,
                "position": part.position,
                **({"rank": ranks[part.position]} if world_size else {}),
                "cell": cell.name,
                "bucket": cell.bucket.name,
                "num_frames": cell.bucket.num_frames,
                "height": cell.bucket.height,
                "width": cell.bucket.width,
                "clips": [
                    {
                        "slot": clip.slot,
                        "clip_id": clip.clip_id,
                        "pass": int(part.passes[clip.slot]),
                        "caption": clip.caption,
                    }
                    for clip in clips[part.position]
                ],
            }


def _check_has_pictures(stage: StageData) -> None:
    if stage.folder is not None:
        raise InputError(
            f"--html: stage {stage.stage.name} reads latents, of which there are no pictures; show a recipe "
            "whose stage has data.shards and no data.latents."
        )
    if stage.index.remote is None and not (stage.index.folder / stage.index.shards[0]).exists():
        raise InputError(
            f"--html: the shards of stage {stage.stage.name} are not those that the run was saved with, of "
            "which it keeps the index alone; leave out --html, or show a recipe."
        )


def _with_pictures(found: RunStages, batches: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the micro-batches with the first frame of each clip, as the loader of the run decodes it."""
    for batch in batches:
        stage, _ = preview_stages.at(found, batch["step"])
        _check_has_pictures(stage)
        events: list[dict[str, Any]] = []
        spec = stage.stage.data
        reader = LoaderSpec(remote=found.recipe.loader.remote, max_failure_share=1.0)
        try:
            with Loader(
                stage.index,
                stage.plan,
                reader,
                num_views=spec.views,
                captions=spec.captions,
                crop=spec.crop,
                flip=spec.flip,
                conversion=spec.conversion,
                on_event=events.append,
            ) as loader:
                (read,) = loader.load([order.micro_batch(stage.plan, batch["position"])])
        except MediaError as error:
            yield {**batch, "clips": [{**clip, "problem": str(error)} for clip in batch["clips"]]}
            continue
        replaced = {event["slot"]: event for event in events if event["event"] == "clip_substituted"}
        clips = []
        for clip, frames, caption in zip(batch["clips"], read.frames, read.captions, strict=True):
            event = replaced.get(clip["slot"])
            clips.append(
                {
                    **clip,
                    "problem": f"{event['kind']}: {event['fallback']} stands in",
                    "fallback": event["fallback"],
                }
                if event
                else {**clip, "caption": caption, "thumbnail": contact_sheet.thumbnail(frames[0])}
            )
        yield {**batch, "clips": clips}


def showings(found: RunStages, clip_id: str, until: int) -> list[dict[str, Any]]:
    """Return where a clip is shown up to step `until`: stage, step, micro-batch; is_past: by this run.

    Raises InputError for a clip that no stage's index has.
    """
    shown: list[dict[str, Any]] = []
    known = False
    for stage in found.stages:
        row = _row_of(stage, clip_id)
        if row is None:
            continue
        known = True
        for position in order.positions_of_row(stage.plan, row):
            read = order.step_of(stage.plan, position)
            number = data_stages.update_of(stage, read)
            if number is None:
                continue  # in a window that is skipped
            step = stage.first_step + number + 1
            if number >= stage.num_steps or step > until:
                break
            cell = order.at_step(stage.plan, read).cells[order.turn(stage.plan, position)[0]].name
            shown.append(
                {
                    "clip_id": clip_id,
                    "stage": stage.stage.name,
                    "step": step,
                    "position": position,
                    "cell": cell,
                    "is_past": step <= found.done,
                }
            )
    if not known:
        raise InputError(f"--clip {clip_id}: no stage of {found.recipe.name} has a clip of this name.")
    return shown


def _row_of(stage: StageData, clip_id: str) -> int | None:
    import pyarrow.compute as pc

    row = int(pc.index(stage.index.words("clip_id"), clip_id).as_py())
    return row if row >= 0 else None


def why_not(found: RunStages, clip_id: str) -> dict[str, str]:
    """Return stage → why the clip is in no cell of it, for the stages whose index has it."""
    reasons: dict[str, str] = {}
    for stage in found.stages:
        row = _row_of(stage, clip_id)
        if row is None or any(row in cell.rows for cell in stage.plan.cells):
            continue
        left_out = stage.plan.left_out.items()
        reasons[stage.stage.name] = next(
            (reason for reason, rows in left_out if row in rows), "of another fold, level or source"
        )
    return reasons


def _range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last:
        raise InputError(f"--steps {text}: write A:B, the first and the last step, counted from 1; or one.")
    return first, last


def _show(given: argparse.Namespace) -> tuple[Any, str]:
    if (given.steps is None) == (given.clip is None):
        raise InputError("show: give --steps A:B, or --clip ID with --until STEP.")
    found = preview_stages.read_stages(given.place, given.settings)
    if given.clip is not None:
        until = given.until or found.num_steps
        shown = showings(found, given.clip, until)
        reasons = why_not(found, given.clip)
        return (
            {"clip_id": given.clip, "until": until, "shown": shown, "not_in": reasons},
            plan_text.of_clip(given.clip, until, shown, reasons),
        )
    first, last = _range(given.steps)
    batches = list(micro_batches(found, first, last, given.world))
    if given.html:
        count = sum(len(batch["clips"]) for batch in batches)
        if count > MOST_PICTURES:
            raise InputError(
                f"--html: {count:,} clips are more than the {MOST_PICTURES:,} of one page; give fewer steps."
            )
        title = f"{found.recipe.name}: steps {first:,} to {last:,}"
        whole_file.write_atomically(given.html, contact_sheet.page(title, _with_pictures(found, batches)))
    words = plan_text.of_steps(batches, captions=given.captions)
    if not given.captions:
        batches = [
            {**batch, "clips": [{k: v for k, v in clip.items() if k != "caption"} for clip in batch["clips"]]}
            for batch in batches
        ]
    return batches, f"{words}\nwrote {given.html}" if given.html else words


# ── diff ────────────────────────────────────────────────────────────────────────────────────────────────────


def difference(old: RunStages, new: RunStages, steps_compared: int = STEPS_COMPARED) -> dict[str, Any]:
    """Return what differs of the data of two recipes or runs, stage by stage in their order."""
    from trainer.recipe import changes
    from trainer.recipe import recipe as recipes

    changed = changes.changes(recipes.to_json(old.recipe), new.recipe)
    decides = re.compile(r"^(seed|stages\.\d+\.(name|steps|passes|skip|data\.(?!latents).*))$")
    stages: list[dict[str, Any]] = []
    for one, other in zip(old.stages, new.stages, strict=False):
        steps = min(one.num_steps, other.num_steps)
        found = plan_diff.compare_plans(
            (one.index, one.plan), (other.index, other.plan), min(steps, steps_compared)
        )
        first = found.first_step
        if first is None and found.steps_compared == steps and one.num_steps != other.num_steps:
            first = steps
        stages.append(
            {
                "stage": (one.stage.name, other.stage.name),
                "steps": (one.num_steps, other.num_steps),
                "seed": (one.plan.seed, other.plan.seed),
                "algorithm_version": (one.plan.algorithm_version, other.plan.algorithm_version),
                "micro_batches_per_step": (
                    one.plan.micro_batches_per_step,
                    other.plan.micro_batches_per_step,
                ),
                **found.to_json(),
                "first_step": None if first is None else other.first_step + first + 1,
            }
        )
    return {
        "settings": {key: values for key, values in changed.items() if decides.match(key)},
        "stages": stages,
        "stages_only_in": ([s.stage.name for s in old.stages[len(stages) :]],
                           [s.stage.name for s in new.stages[len(stages) :]]),
    }  # fmt: skip


def _diff(given: argparse.Namespace) -> tuple[Any, str]:
    old = preview_stages.read_stages(given.place)
    new = preview_stages.read_stages(given.new, given.settings)
    report = difference(old, new, given.look)
    return report, plan_text.of_difference(report)


# ── simulate ────────────────────────────────────────────────────────────────────────────────────────────────


def _simulate(given: argparse.Namespace) -> tuple[Any, str]:
    found = preview_stages.read_stages(given.place, given.settings)
    worlds = [int(word) for word in given.world.split(",") if word.isdecimal() and int(word)]
    if len(worlds) != len(given.world.split(",")):
        raise InputError(f"--world {given.world}: numbers of ranks from 1 on, with commas.")
    asked = simulate.Asked(
        worlds=worlds,
        step_seconds=given.step_seconds or _measured_seconds(given.place),
        clips_per_core_second=given.clips_per_core_second,
        measure=given.measure,
        most_steps=given.look,
    )
    report = simulate.report(found, asked)
    return report, plan_text.of_simulation(report)


def _measured_seconds(path: Path) -> float | None:
    """Return the median seconds of a step of a run, None for anything else."""
    lines = metrics.read_metrics(path / metrics.METRICS) if path.is_dir() else []
    times = sorted(float(line["seconds"]) for line in lines if line.get("seconds"))
    return times[len(times) // 2] if times else None


# ── the command ─────────────────────────────────────────────────────────────────────────────────────────────


def _parser() -> argparse.ArgumentParser:
    parser = cli_commands.parser("plan", "Say which clips the steps of a recipe or run read.", EXAMPLE)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    about = {
        "show": "the clips of some steps, or the steps of a clip",
        "diff": "what differs between two plans, and the first step that reads other clips",
        "simulate": "mixture, exposures, what ranks wait for, decode cores, for numbers of ranks",
    }
    made = {name: commands.add_parser(name, help=text, description=text) for name, text in about.items()}
    for name, command in made.items():
        command.add_argument(
            "place", type=Path, metavar="OLD" if name == "diff" else "RECIPE",
            help="a recipe (YAML), a run folder, or a checkpoint folder",
        )  # fmt: skip
        if name == "diff":
            command.add_argument("new", type=Path, metavar="NEW", help="the same, to compare it with")
        command.add_argument(
            "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE",
            help=f"change one setting of the recipe{' NEW' if name == 'diff' else ''}; may be repeated",
        )  # fmt: skip
        command.add_argument("--json", action="store_true", help="print the answer as JSON")
    show, diff, simulation = made["show"], made["diff"], made["simulate"]
    show.add_argument("--steps", metavar="A:B", help="the steps from A to B, counted from 1; or one step")
    show.add_argument("--world", type=int, metavar="W", help="say which of W ranks runs each micro-batch")
    show.add_argument("--captions", action="store_true", help="with the captions")
    show.add_argument("--html", type=Path, metavar="OUT", help="write a page with captions and first frames")
    show.add_argument("--clip", metavar="ID", help="the steps that show this clip")
    show.add_argument("--until", type=int, metavar="STEP", help="with --clip: up to here (all)")
    diff.add_argument(
        "--look", type=int, default=STEPS_COMPARED, metavar="N",
        help=f"compare the first N steps of a stage ({STEPS_COMPARED})",
    )  # fmt: skip
    simulation.add_argument("--world", default="1", metavar="W[,W…]", help="numbers of ranks (1)")
    simulation.add_argument(
        "--step-seconds", type=float, metavar="S", help="seconds of a step (a run: its median)"
    )
    simulation.add_argument(
        "--clips-per-core-second", type=float, metavar="C", help="clips that one core decodes a second"
    )
    simulation.add_argument(
        "--measure", type=int, default=2, metavar="N",
        help="without that: decode N clips of each cell here to find out (2; 0: do not)",
    )  # fmt: skip
    simulation.add_argument(
        "--look", type=int, default=STEPS_COMPARED, metavar="N",
        help=f"deal N steps of a stage to the ranks, spread over it ({STEPS_COMPARED})",
    )  # fmt: skip
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    for name in ("world", "until", "look"):
        value = getattr(given, name, None)
        if isinstance(value, int) and value < 1:
            print(f"error: --{name} {value}: must be 1 or more.", file=sys.stderr)
            return 2
    act = {"show": _show, "diff": _diff, "simulate": _simulate}[given.command]

    def run() -> None:
        report, words = act(given)
        print(json.dumps(report, indent=1, ensure_ascii=False, default=str) if given.json else words)

    return cli_commands.run_short_command(run)
