"""Clips command: `python -m trainer clips RUN` lists clips by loss, rejects clips.

torch is imported when the command runs, so that --help and a wrong argument answer at once.
"""

import argparse
import getpass
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trainer.cli import commands
from vidcurate.errors import InputError, counted, printable

EXAMPLE = """\
  python -m trainer clips runs/first --step 1204
  python -m trainer clips runs/first --clip 0042-17
  python -m trainer clips runs/first --by-loss 5 --json
  python -m trainer clips runs/first --reject 0042-17 --reason "a slide show" --curation curation
"""


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _rows(rows: Iterable[dict[str, Any]], names: Sequence[str]) -> list[str]:
    return ["  ".join(_cell(row[name]) for name in names) for row in rows]


def _step_as_text(found: dict[str, Any]) -> list[str]:
    skipped = ", update skipped" if found["skipped"] else ""
    lines = [
        f"step {found['step']} of stage {found['stage']}: loss {_cell(found['loss'])}, "
        f"grad {_cell(found['grad_norm'])}{skipped}"
    ]
    lines += [f"{one['event']}: {one.get('reason') or one.get('kind')}" for one in found["findings"]]
    lines += [
        f"bucket {one['bucket']}: loss {_cell(one['loss'])}, usually {_cell(one['usual'])}, "
        f"{_cell(one['ratio'])} times"
        for one in found["buckets"]
    ]
    lines.append("loss  timestep  level  position  cell  clip_id  caption")
    return lines + _rows(
        found["clips"], ("loss", "timestep", "level", "position", "cell", "clip_id", "caption")
    )


def _by_loss_as_text(found: list[dict[str, Any]]) -> list[str]:
    lines = []
    for one in found:
        lines.append(f"level {one['level']}, timesteps {one['bin']}: {one['clips']} recorded")
        for word in ("highest", "lowest"):
            lines += [f"  {word}  {text}" for text in _rows(one[word], ("loss", "step", "clip_id"))]
    return lines


def _reject_as_text(found: dict[str, Any]) -> list[str]:
    settings = " ".join(f"--set {setting}" for setting in found["settings"])
    again = "" if found["is_new"] else " before"
    word = "rejected" if found["verdict"] == "reject" else "kept"
    return [
        f"{found['clip_id']}: {word}{again}, decision {found['decision']}; {found['file']} lists "
        f"{counted(found['clips'], 'clip')}",
        f"Resume without these: the command of the run with {settings} --accept-plan",
    ]


def _run(given: argparse.Namespace) -> None:
    chosen = [given.step, given.clip, given.by_loss, given.reject, given.keep]
    if sum(one is not None for one in chosen) != 1:
        raise InputError("clips: give one of --step N, --clip ID, --by-loss K, --reject ID and --keep ID.")
    if not given.path.is_dir() or (given.path / "manifest.json").is_file():
        raise InputError(f"{given.path}: is no run folder. Give the folder that `output` named.")
    with commands.loading():
        from trainer.report.preview import reject_clip, step_clips
        from trainer.report.preview.stages import read_stages

    found: Any
    if given.by_loss is not None:
        found = step_clips.by_loss(given.path, given.by_loss)
        words = _by_loss_as_text(found)
    elif given.step is not None:
        found = step_clips.clips_of_step(read_stages(given.path), given.path, given.step)
        words = _step_as_text(found)
    elif given.clip is not None:
        found = step_clips.showings(read_stages(given.path), given.path, given.clip)
        words = ["step  stage  cell  loss  timestep"]
        words += _rows(found, ("step", "stage", "cell", "loss", "timestep"))
    else:
        found = reject_clip.decide(
            read_stages(given.path),
            given.path,
            given.keep if given.reject is None else given.reject,
            "keep" if given.reject is None else "reject",
            reviewer=given.reviewer or getpass.getuser(),
            reason=given.reason,
            curation=given.curation,
        )
        words = _reject_as_text(found)
    commands.print_answer(found, "\n".join(map(printable, words)), as_json=given.json)


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is no whole number from 1")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = commands.parser(
        "clips", "Say which clips are behind a step's loss, and reject clips from here on.", EXAMPLE
    )
    parser.add_argument("path", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--step", type=_count, metavar="N", help="the micro-batches and clips of update N")
    parser.add_argument("--clip", metavar="ID", help="the steps that showed this clip")
    parser.add_argument(
        "--by-loss", type=_count, metavar="K",
        help="the K highest and lowest losses per level and timestep bin (stages.N.clip_losses_every)",
    )  # fmt: skip
    parser.add_argument("--reject", metavar="ID", help="leave this clip out of later steps")
    parser.add_argument("--keep", metavar="ID", help="take back your rejection of this clip")
    parser.add_argument("--reason", metavar="TEXT", help="of a decision: why, in one line")
    parser.add_argument("--reviewer", metavar="NAME", help="of a decision: who decides (default: your login)")
    parser.add_argument(
        "--curation", type=Path, metavar="CURATION", help="decide also in this run of vidcurate"
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    given = parser.parse_args(arguments)
    return commands.run_short_command(lambda: _run(given))
