"""Plan of a recipe or a run: which clips each step reads.

The trainer answers this question, because the order depends on a stage of a recipe (its buckets, weights,
seed and length), and the ranks' shares on the cost of its model. The answers come from the functions that the
loader uses.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from trainer.data import stages as data_stages
from trainer.data.stages import StageData
from trainer.report.preview import contact_sheet
from trainer.report.preview import stages as preview_stages
from trainer.report.preview.stages import RunStages
from vidcurate.errors import InputError, MediaError
from vidcurate.loader.loader import Loader
from vidcurate.loader.spec import LoaderSpec
from vidcurate.sampler import order, plan_stats
from vidcurate.sampler.build_plan import clips_of_step


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
                        "pass": int(part.epochs[clip.slot]),
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


def with_pictures(found: RunStages, batches: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the micro-batches with the first frame of each clip, as the loader of the run decodes it."""
    for batch in batches:
        stage, _ = preview_stages.at(found, batch["step"])
        _check_has_pictures(stage)
        events: list[dict[str, Any]] = []
        spec = stage.stage.data
        given = found.recipe.loader
        reader = LoaderSpec(
            cache_folder=given.cache_folder, cache_bytes=given.cache_bytes, max_failure_share=1.0
        )
        try:
            with Loader(
                stage.index,
                stage.plan,
                reader,
                num_views=spec.views,
                captions=spec.caption_names,
                caption_weights=spec.caption_weights,
                caption_weights_from=spec.caption_weights_from,
                crop=spec.crop,
                flip=spec.flip,
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
                    "problem": f"{event['kind']}: shows {event['fallback']}",
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
                continue  # in a skipped window
            step = stage.first_step + number + 1
            if number >= stage.num_steps or step > until:
                break
            cell = order.at_step(stage.plan, read).cells[order.cell_at(stage.plan, position)[0]].name
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
    """Return stage → why none of its cells has the clip, for the stages whose index has it."""
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
