"""Precompute command: encode a recipe's clips once, before training.

`python -m trainer precompute RECIPE --out FOLDER`. The same command resumes, or reports that everything is
there. Several processes share the work with `--part i/n`; under torchrun each rank takes its part
automatically.
"""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainer.cli import commands
from trainer.cli.output_paths import output_folder
from vidcurate.errors import InputError, counted

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as for training: spinning threads starve the decoders

LINE_EVERY_SECONDS = 5.0

# ruff: noqa: E501
EXAMPLE = """\
  python -m trainer precompute recipes/smoke.yaml --stage level-1 --out demo/latents --set stages.0.data.views=1

then train on them, with the same views:
  python -m trainer recipes/smoke.yaml --set stages.0.data.latents=demo/latents --set stages.0.data.views=1

Eight GPUs:
  torchrun --nproc-per-node 8 -m trainer precompute RECIPE --out FOLDER
"""


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser(
        "precompute",
        "Encode the clips of a recipe's stages once, into shards of latents and text features.",
        EXAMPLE,
    )
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="the training recipe, YAML or JSON")
    parser.add_argument(
        "--out",
        type=output_folder,
        required=True,
        metavar="FOLDER",
        help="the folder of latents; made if not there",
    )
    commands.add_settings(
        parser, "change one setting of the recipe, such as encoded.latent_dtype=bfloat16; may be repeated"
    )
    parser.add_argument(
        "--stage",
        dest="stages",
        action="append",
        default=[],
        metavar="NAME",
        help="encode what this stage reads; may be repeated (default: every stage)",
    )
    parser.add_argument(
        "--part", metavar="I/N", help="write the I-th of N parts (default: 1/1, under torchrun this rank's)"
    )
    parser.add_argument(
        "--ckpt-path",
        metavar="PATH",
        help="with model.skip_y_embedder: the weights whose frozen caption projection is applied",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be written and how large; write nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    commands.add_traceback(parser)
    return parser


def _part(text: str | None) -> tuple[int, int]:
    if text is None:
        rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
        text = f"{int(rank) + 1}/{size}" if rank.isdigit() else f"{rank}/{size}"
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match:
        raise InputError(f"--part {text}: write it as I/N, for example --part 1/8.")
    return int(match[1]), int(match[2])


def forecast_as_text(report: dict[str, Any]) -> str:
    clips, shards = counted(report["clips"], "clip"), counted(report["shards"], "shard")
    lines = [f"{clips} of {', '.join(report['stages'])}, {shards}"]
    for line in report["shapes"]:
        views = f" x {line['views']} views" if line["views"] > 1 else ""
        lines.append(f"  {line['shape']:<20} {line['clips']:>10,} clips{views}  {line['bytes'] / 1e9:.3g} GB")
    lines.append(
        f"  {'texts':<20} {report['texts']:>10,}  at most {report['text_bytes_at_most'] / 1e9:.3g} GB"
    )
    return "\n".join(lines)


def _as_text(outcome: Any, part: tuple[int, int]) -> str:
    if not outcome.is_finished:
        written = counted(outcome.shards_written, "shard")
        return (
            f"part {part[0]}/{part[1]}: wrote {written} into {outcome.out}; the part that ends last writes the "
            "tables"
        )
    failed = f", {counted(outcome.failed, 'view')} could not be decoded" if outcome.failed else ""
    state = "up to date" if outcome.up_to_date else f"wrote {counted(outcome.shards_written, 'shard')}"
    return (
        f"{outcome.out}: {state}; {outcome.latents:,} latents and {outcome.tokens:,} text tokens of "
        f"{counted(outcome.clips, 'clip')}, {outcome.size_bytes / 1e9:.3g} GB in "
        f"{counted(outcome.shards, 'shard')}{failed}"
    )


def _progress_bar() -> Callable[[int, int, str], None]:
    """Return a callback that prints progress, rate and time left on stderr every few seconds."""
    start = last = time.monotonic()
    first: int | None = None

    def tell(done: int, total: int, unit: str) -> None:
        nonlocal first, last
        first = done if first is None else first
        now = time.monotonic()
        if now - last >= LINE_EVERY_SECONDS or (done == total and done > first):
            last = now
            rate = (done - first) / max(now - start, 1e-6)
            left = f", {(total - done) / rate / 60:.1f} min left" if done < total and rate else ""
            print(f"encode: {done:,} of {total:,} {unit}, {rate:,.1f}/s{left}", file=sys.stderr, flush=True)

    return tell


def _run(given: argparse.Namespace) -> int:
    # torch is imported here, so that --help and a typing error in the recipe answer at once.
    with commands.loading():
        from trainer.data.latents import precompute
        from trainer.recipe import recipe

    request = precompute.request_of(recipe.load(given.recipe, given.settings), given.stages)
    if given.dry_run:
        report = precompute.forecast(request)
        commands.print_answer(report, forecast_as_text(report), as_json=given.json)
        return 0
    part = _part(given.part)
    outcome = precompute.encode_ahead(
        request, given.out, part=part, weights=given.ckpt_path, progress=_progress_bar()
    )
    print(json.dumps(outcome.to_json()) if given.json else _as_text(outcome, part))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    return commands.run_long_command(_run, _parser().parse_args(arguments), "with the next shard")
