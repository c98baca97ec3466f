"""`python -m trainer RECIPE`: train, in one process or under torchrun.

stdout is the answer (the last line, or JSON), stderr is the telling. Exit codes: 0 done, 1 the work failed,
2 the request was wrong, 75 stopped by a signal after saving (give the same command again).
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from vidcurate.errors import VidcurateError

# Read when torch is loaded, below: threads that spin while they wait starve the decode workers of a small
# machine (a step took 4 times as long, docs/decisions.md).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

EXIT_REQUEUE = 75
EXIT_INTERRUPTED = 130

EXAMPLE = """\
example:
  python -m trainer recipes/first-steps.yaml --set output=runs/first --set stages.0.data.shards=run/shards

The same command given again goes on where the run stopped. Under torchrun:
  torchrun --nproc-per-node 2 -m trainer recipes/first-steps.yaml

exit codes: 0 done, 1 the work failed, 2 the request was wrong, 75 saved after SIGTERM or SIGUSR1
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer",
        description="Train an STDiT3 on shards, as one YAML recipe says.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="the recipe, a YAML file")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one setting of the recipe, such as seed=7 or stages.0.optim.lr=2e-4; may be repeated",
    )
    parser.add_argument(
        "--load",
        type=Path,
        metavar="CHECKPOINT",
        help="begin with a checkpoint's weights, moving average, optimizer, step and data position",
    )
    parser.add_argument(
        "--start-from-scratch",
        action="store_true",
        help="with --load: keep weights, average and optimizer, but begin at step 0 of the data",
    )
    parser.add_argument(
        "--ckpt-path",
        type=Path,
        metavar="PATH",
        help="begin with weights only: a .safetensors file, or a checkpoint (its raw weights)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be trained, on which clips; write nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument("--traceback", action="store_true", help="show where in the code an error was raised")
    return parser


def _act(arguments: argparse.Namespace) -> int:
    # torch is loaded here, so that --help and a recipe's typing error answer at once.
    from trainer import loop, plan, recipe
    from trainer.resume import Origin

    origin = Origin(
        load=arguments.load,
        ckpt_path=arguments.ckpt_path,
        start_from_scratch=arguments.start_from_scratch,
    )
    wanted = recipe.load(arguments.recipe, arguments.settings)
    if arguments.dry_run:
        report = plan.dry_run(wanted)
        print(json.dumps(report, indent=1) if arguments.json else plan.in_words(report))
        return 0
    outcome = loop.train(wanted, origin, arguments.settings)
    if outcome.is_first_rank:
        print(json.dumps(outcome.as_json()) if arguments.json else outcome.in_words())
    return EXIT_REQUEUE if outcome.stopped_by else 0


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        return _act(given)
    except KeyboardInterrupt:
        print("error: interrupted; the same command goes on from the last checkpoint.", file=sys.stderr)
        return EXIT_INTERRUPTED
    except VidcurateError as error:
        if given.traceback:
            raise
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
