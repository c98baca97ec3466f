"""Plan text: the answers of `python -m trainer plan` for the console."""

from collections.abc import Mapping, Sequence
from typing import Any

from vidcurate.errors import counted, printable


def of_steps(batches: Sequence[Mapping[str, Any]], *, captions: bool) -> str:
    """Return micro-batches, one per line; with captions one clip per line."""
    lines: list[str] = []
    step = None
    for batch in batches:
        if batch["step"] != step:
            step = batch["step"]
            lines.append(f"step {step:,} ({batch['stage']})")
        rank = f"rank {batch['rank']:<3} " if "rank" in batch else ""
        ids = ", ".join(clip["clip_id"] for clip in batch["clips"])
        lines.append(
            f"  {batch['position']:>8,}  {rank}{batch['cell']:<32} {'' if captions else ids}".rstrip()
        )
        if captions:
            lines += [f"            {clip['clip_id']}  {clip['caption']}" for clip in batch["clips"]]
    return "\n".join(map(printable, lines))


def of_clip(clip_id: str, until: int, shown: Sequence[Mapping[str, Any]], reasons: Mapping[str, str]) -> str:
    """Return the steps that show a clip, one per line."""
    lines = [f"{clip_id}: shown {counted(len(shown), 'time')} up to step {until:,}"]
    lines += [
        f"  step {found['step']:>8,}  {found['stage']}  {found['cell']}  micro-batch {found['position']:,}"
        f"{'' if found['is_past'] else '  (to come)'}"
        for found in shown
    ]
    lines += [f"  in no cell of {stage}: {reason}" for stage, reason in reasons.items()]
    return "\n".join(map(printable, lines))
