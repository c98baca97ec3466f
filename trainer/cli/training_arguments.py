"""Parse the arguments of `python -m trainer RECIPE`; `launch` reads them too."""

import argparse
from pathlib import Path

EXAMPLE = """\
example:
  python -m trainer recipes/first-steps.yaml --set output=runs/first --set stages.0.data.shards=run/shards

The same command given again goes on where the run stopped. On several GPUs and hosts, one of:
  torchrun --nproc-per-node 8 -m trainer RECIPE
  srun --ntasks-per-node 8 python -m trainer RECIPE
  python -m trainer launch RECIPE --hostfile nodes.txt

Beside the training, each with a --help of its own:
  python -m trainer launch       start the ranks and keep them going
  python -m trainer serve        sample every checkpoint, draw the gallery
  python -m trainer report       a run as one page
  python -m trainer cluster      status, health, clocks, dump, stop on all nodes
  python -m trainer experiment   several runs that answer one question
  python -m trainer plan         which clips a step reads, before and after
  python -m trainer inspect      what a run or a checkpoint holds
  python -m trainer sample       clips from a checkpoint; trainer.report.gallery: their page
  python -m trainer convert      PixArt's and Open-Sora's weights in, a run's average out
  python -m trainer precompute  latents and text features ahead
  python -m trainer gpus     the GPUs of this host

exit codes: 0 done, 1 the work failed, 2 the request was wrong, 75 saved after SIGTERM or SIGUSR1,
76 begin again (hung, or a rank was lost), 77 a node is bad, 78 the guard has stopped the run
"""


# Of vidcurate.sampler.order_state.FLAGS, which is not imported before --help is answered.
CHANGES = {
    "--append": "clips were added: what is unseen, old or new, is shown once before anything again",
    "--tombstone": "clips were removed: spares take their places",
    "--accept-content": "captions were edited or videos encoded again",
    "--accept-plan": "buckets, micro-batch sizes, weights, levels or micro-batches per step are others",
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m trainer RECIPE`."""
    made = argparse.ArgumentParser(
        prog="python -m trainer",
        description="Train an STDiT3 on shards, as one YAML recipe says.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("recipe", type=Path, metavar="RECIPE", help="the recipe, a YAML file")
    made.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one setting of the recipe, such as seed=7 or stages.0.optim.lr=2e-4; may be repeated",
    )
    made.add_argument(
        "--load",
        type=Path,
        metavar="CHECKPOINT",
        help="begin with a checkpoint's weights, moving average, optimizer, step and data position",
    )
    made.add_argument(
        "--start-from-scratch",
        action="store_true",
        help="with --load: keep weights, average and optimizer, but begin at step 0 of the data",
    )
    made.add_argument(
        "--ckpt-path",
        type=Path,
        metavar="PATH",
        help="begin with weights only: a .safetensors file, or a checkpoint (its raw weights)",
    )
    changed = made.add_argument_group(
        "when data or recipe were changed on purpose",
        "A run goes on only with what it was saved with. Each flag accepts one kind of change; --dry-run "
        "shows which there are.",
    )
    for flag, meaning in CHANGES.items():
        changed.add_argument(flag, dest="accept", action="append_const", const=flag, help=meaning)
    before = made.add_mutually_exclusive_group()
    before.add_argument(
        "--preflight",
        action="store_true",
        help="check GPUs, links, disks, clocks and the data, write RUN/preflight.json, train nothing",
    )
    before.add_argument(
        "--no-preflight", action="store_true", help="begin without the short checks of preflight.at_start"
    )
    made.add_argument(
        "--dry-run", action="store_true", help="say what would be trained, on which clips; write nothing"
    )
    made.add_argument(
        "--print-env",
        action="store_true",
        help="show the variables of NCCL, torch, CUDA and OpenMP in force, who set each and why; with or "
        "without a RECIPE",
    )
    made.add_argument("--json", action="store_true", help="print the answer as JSON")
    made.add_argument("--traceback", action="store_true", help="show where in the code an error was raised")
    return made
