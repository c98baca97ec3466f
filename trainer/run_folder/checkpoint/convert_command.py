"""Command `python -m trainer convert`: convert, check, export or show weights.

    python -m trainer convert pixart   SOURCE FOLDER    convert, and print a report of every key
    python -m trainer convert opensora SOURCE FOLDER    check names and shapes, and write a copy
    python -m trainer convert export   RUN    FOLDER    write the EMA of one of the trainer's checkpoints
    python -m trainer convert export   RUN    FOLDER --ema WIDTH    write the average of another width
    python -m trainer convert show     SOURCE           print configuration, sizes, dtypes

The command imports torch only when it runs, so that --help and a wrong argument answer at once.
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

from trainer.cli import commands
from vidcurate.errors import InputError, counted


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser(
        "convert",
        "Convert weights: read PixArt and Open-Sora checkpoints, write Open-Sora safetensors.",
        "  python -m trainer convert pixart PixArt-Sigma-XL-2-2K-MS.pth weights/pixart-sigma\n"
        "  python -m trainer convert opensora OpenSora-STDiT-v3 weights/opensora\n"
        "  python -m trainer convert export runs/smoke weights/smoke --dtype bfloat16\n"
        "  python -m trainer convert export runs/smoke weights/wide --ema 0.13\n"
        "  python -m trainer convert show weights/smoke\n",
    )
    parser.add_argument(
        "action",
        choices=["pixart", "opensora", "export", "show"],
        help="convert PixArt's weights, check and copy Open-Sora's, write a run's EMA, or print a summary",
    )
    parser.add_argument("source", type=Path, help="a weights file, a folder with one, or a run to export")
    parser.add_argument("folder", type=Path, nargs="?", help="the folder to write (not for show)")
    parser.add_argument(
        "--size", choices=["XL/2", "3B/2"], help="the model; default: config.json beside SOURCE, or XL/2"
    )
    parser.add_argument(
        "--allow", action="append", default=[], metavar="KEY", help="an unexpected key to leave out"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the weights that SOURCE lacks (default 0)"
    )
    parser.add_argument("--raw", action="store_true", help="with export: the weights, not their EMA")
    parser.add_argument(
        "--ema",
        type=float,
        metavar="WIDTH",
        help="with export: the average of this width, for a run with power_ema (such as 0.05 or 0.13)",
    )
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16", "float16"], help="dtype of the output; default: SOURCE's"
    )
    parser.add_argument("--shard-gb", type=float, help="split the output into shards of at most so many GB")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 0 done, 1 wrong file, 2 wrong request."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if (given.folder is None) != (given.action == "show"):
        parser.error("pixart, opensora and export take SOURCE FOLDER, show takes SOURCE")
    if given.ema is not None and (given.action != "export" or given.raw):
        parser.error("--ema belongs to export, without --raw")
    if given.shard_gb is not None and not 0 < given.shard_gb < math.inf:
        parser.error(f"--shard-gb {given.shard_gb:g}: must be a number above 0")
    return commands.run_short_command(lambda: _run(given))


def _run(given: argparse.Namespace) -> None:
    if given.folder is not None and given.folder.exists():
        raise InputError(f"{given.folder}: exists already; name a new folder.")
    with commands.loading():
        import torch

        from trainer.model.stdit import GIANT_3B_2, XL_2
        from trainer.run_folder.checkpoint import average_of_width, convert
        from trainer.run_folder.checkpoint.pixart import convert_pixart

    config = {"XL/2": XL_2, "3B/2": GIANT_3B_2, None: None}[given.size]
    if given.action == "pixart":
        config = config or XL_2
        held = convert.read_tensors(given.source)
        state, report = convert_pixart(
            held, config, seed=given.seed, allow=given.allow, where=str(given.source)
        )
        answer, words = report.to_json(), report.lines()
    else:
        source = given.source
        if given.action == "export":
            source = convert.part_of(source, raw=given.raw)
        config = config or convert.read_config(source) or XL_2
        made = None if given.ema is None else average_of_width.average_of_width(source.parent, given.ema)
        state = convert.read_open_sora(source, config) if made is None else made.weights
        answer = convert.facts(state, config) | {"source": str(source)}
        if made is not None:
            answer["ema"] = {"width": given.ema, "error": made.error, "checkpoints": [*made.checkpoints]}
        words = [
            f"{len(state)} tensors, {answer['parameters']:,} parameters, {', '.join(answer['dtypes'])}",
            f"depth {config.depth}, width {config.hidden_size}, {config.num_heads} heads",
        ]
        if made is not None:
            words.append(
                f"average of width {given.ema:g} from {counted(len(made.checkpoints), 'checkpoint')}, "
                f"error {made.error:.2%}"
            )
    if given.folder is not None:
        dtype = getattr(torch, given.dtype) if given.dtype else None
        written = {name: value.to(dtype) if dtype else value for name, value in state.items()}
        shard_bytes = int(given.shard_gb * 1e9) if given.shard_gb else None
        convert.write_open_sora(written, config, given.folder, shard_bytes=shard_bytes)
        answer["wrote"] = str(given.folder)
        words.append(f"wrote {given.folder}")
    print(json.dumps(answer, indent=1) if given.json else "\n".join(words))
