"""Plan text: the answers of `python -m trainer plan` for the console."""

from collections.abc import Mapping, Sequence
from typing import Any


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
    return "\n".join(lines)


def of_clip(clip_id: str, until: int, shown: Sequence[Mapping[str, Any]], reasons: Mapping[str, str]) -> str:
    """Return the steps that show a clip, one per line."""
    lines = [f"{clip_id}: shown {len(shown)} times up to step {until:,}"]
    lines += [
        f"  step {found['step']:>8,}  {found['stage']}  {found['cell']}  micro-batch {found['position']:,}"
        f"{'' if found['is_past'] else '  (to come)'}"
        for found in shown
    ]
    lines += [f"  in no cell of {stage}: {reason}" for stage, reason in reasons.items()]
    return "\n".join(lines)


def _clips(found: Mapping[str, Any]) -> str:
    names = ", ".join(found["clip_ids"])
    return f"{found['count']:,} ({names}{', …' if found['count'] > len(found['clip_ids']) else ''})"


def _pair(values: Sequence[Any], form: str = ",") -> str:
    return " → ".join("none" if value is None else format(value, form) for value in values)


def of_difference(report: Mapping[str, Any]) -> str:
    """Return the differences between two plans."""
    lines = [f"{key}: {old} → {new}" for key, (old, new) in report["settings"].items()]
    for stage in report["stages"]:
        found: list[str] = []
        for key in ("steps", "seed", "algorithm_version", "micro_batches_per_step"):
            if stage[key][0] != stage[key][1]:
                found.append(f"{key} {_pair(stage[key], '')}")
        for key, words in (
            ("added", "clips added"),
            ("removed", "clips removed"),
            ("edited", "clips with another caption or video"),
            ("reshaped", "clips with another fold, level, size, length or frame rate"),
        ):
            if stage[key]["count"]:
                found.append(f"{words}: {_clips(stage[key])}")
        found += [f"from {move['old']} to {move['new']}: {_clips(move['clips'])}" for move in stage["moved"]]
        for cell in stage["cells"]:
            parts = [
                f"{name} {_pair(cell[key], form)}"
                for key, name, form in (
                    ("clips", "clips", ","),
                    ("micro_batch_size", "clips of a micro-batch", ","),
                    ("share", "share of the micro-batches", ".4f"),
                )
                if cell[key][0] != cell[key][1]
            ]
            found.append(f"cell {cell['name']}: {'; '.join(parts)}")
        if stage["first_step"] is not None:
            found.append(f"the first step that reads other clips is {stage['first_step']:,}")
        else:
            found.append(f"the first {stage['steps_compared']:,} steps read the same clips")
        lines += [f"{' → '.join(dict.fromkeys(stage['stage']))}:", *(f"  {line}" for line in found)]
    for whose, names in zip(("old", "new"), report["stages_only_in"], strict=True):
        if names:
            lines.append(f"stages of the {whose} alone: {', '.join(names)}")
    return "\n".join(lines)


def of_simulation(report: Mapping[str, Any]) -> str:
    """Return the statistics of every stage."""
    lines: list[str] = []
    for stage in report["stages"]:
        phases = f", phases from steps {', '.join(map(str, stage['phases']))}" if stage["phases"][1:] else ""
        lines.append(
            f"{stage['stage']}: {stage['steps']:,} steps of {stage['micro_batches_per_step']} micro-batches, "
            f"{stage['clips_a_step']:.1f} clips a step; a pass over {stage['clips']:,} clips takes "
            f"{stage['steps_per_pass']:,} steps{phases}"
        )
        for at in stage["mix"]:
            groups = ", ".join(
                f"{name} {share['asked']:.4f} asked {share['given']:.4f} given"
                for name, share in at["groups"].items()
            )
            lines.append(
                f"  after step {at['step']:>9,}: {groups}; no cell further off than "
                f"{at['largest_error']:.2f} micro-batches"
            )
        for cell in stage["cells"]:
            low, high = cell["exposures"]
            often = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            lines.append(
                f"  {cell['name']:<32} {cell['clips']:>9,} clips, each shown {often} times, "
                f"{cell['cut_away']:.1%} of the picture cut away, {cell['frames_used']:.0%} of the length "
                "used"
            )
        for world in stage["worlds"]:
            seconds = world["seconds"]
            by_table = (
                f"; by the cost table the slowest rank of a step takes {seconds['slowest_rank']:.3g} s, "
                f"the mean {seconds['mean_rank']:.3g} s"
                if seconds
                else ""
            )
            lines.append(
                f"  {world['world_size']:>4} ranks: {world['waste']:.1%} of their time is waiting where they "
                f"meet once a step, {world['waste_in_lockstep']:.1%} at every micro-batch; worst rank "
                f"{world['worst']:.2f} x the mean; {world['idle']:.1%} without a micro-batch "
                f"({world['steps']:,} steps){by_table}"
            )
        lines.append(_decoding(stage["decoding"], report["step_seconds"]))
    return "\n".join(lines)


def _decoding(found: Mapping[str, Any] | None, step_seconds: float | None) -> str:
    if found is None:
        return "  decoding: not known (latents, or --measure 0 without --clips-per-core-second)"
    how = "measured here" if found["measured_here"] else "as given"
    needed = f"  decoding: {found['core_seconds_a_step']:.3g} core seconds a step ({how})"
    if found["cores"] is None:
        return f"{needed}; divided by the seconds of a step (--step-seconds) it is the cores that are needed"
    return f"{needed}, {found['cores']:.2f} cores for steps of {step_seconds:.3g} s"
