"""Parse the arguments of `python -m trainer RECIPE`; `launch` reads them too."""

from pathlib import Path

from trainer.cli import commands

EXAMPLE = """\
  python -m trainer recipes/first-steps.yaml --set output=runs/first --set stages.0.data.shards=run/shards

The same command resumes the run where it stopped. On several GPUs and hosts, one of:
  torchrun --nproc-per-node 8 -m trainer RECIPE
  srun --ntasks-per-node 8 python -m trainer RECIPE
  python -m trainer launch RECIPE --hostfile nodes.txt

Other commands, each with its own --help:
  python -m trainer launch       start the ranks and restart them after a failure
  python -m trainer serve        sample every checkpoint, draw the gallery
  python -m trainer report       a run as one page
  python -m trainer cluster      status, health, dump, stop on all nodes
  python -m trainer experiment   run several trainings and compare them
  python -m trainer track        measure the seconds to a target loss on generated clips
  python -m trainer plan         show which clips a step reads
  python -m trainer inspect      show what a run or a checkpoint holds
  python -m trainer clips        show the clips of a step, a clip's losses; reject clips
  python -m trainer sample       generate clips from a checkpoint
  python -m trainer gallery      show generated clips as a page
  python -m trainer convert      read PixArt's and Open-Sora's weights, write a run's EMA
  python -m trainer precompute   compute latents and text features before training
  python -m trainer gpus         show the GPUs of this host

exit codes: 0 done, 1 the work failed, 2 the request was wrong,
75 saved after SIGTERM, SIGUSR1, SIGHUP or Ctrl-C, 76 restart (hung, or a rank was lost),
77 a node is bad, 78 the guard has stopped the run
"""


# A copy of vidcurate.sampler.order_state.FLAGS, so that --help imports no other module.
CHANGES = {
    "--append": "clips were added: every unseen clip, old or new, is shown once before any repeats",
    "--tombstone": "clips were removed: fallback clips take their places",
    "--accept-content": "captions were edited or videos encoded again",
    "--accept-plan": "buckets, micro-batch sizes, weights, levels or micro-batches per step have changed",
}


def parser() -> commands.Parser:
    """Return the parser of `python -m trainer RECIPE`."""
    made = commands.parser("", "Train an STDiT3 on shards with a YAML recipe.", EXAMPLE)
    made.add_argument("recipe", type=Path, metavar="RECIPE", help="the recipe, a YAML file")
    commands.add_settings(
        made, "change one setting of the recipe, such as seed=7 or stages.0.optim.lr=2e-4; may be repeated"
    )
    made.add_argument(
        "--load",
        type=Path,
        metavar="CHECKPOINT",
        help="start from a checkpoint's weights, EMA, optimizer, step and data position",
    )
    made.add_argument(
        "--start-from-scratch",
        action="store_true",
        help="with --load: keep weights, EMA and optimizer, but start at step 0 of the data",
    )
    made.add_argument(
        "--ckpt-path",
        type=Path,
        metavar="PATH",
        help="start from weights only: a .safetensors file, or a checkpoint (its raw weights)",
    )
    changed = made.add_argument_group(
        "when data or recipe were changed on purpose",
        "A run resumes only with the data and recipe that it was saved with. Each flag accepts one kind of "
        "change; --dry-run shows the changes.",
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
        "--no-preflight", action="store_true", help="start without the short checks of preflight.at_start"
    )
    made.add_argument(
        "--dry-run", action="store_true", help="show what would be trained, on which clips; write nothing"
    )
    made.add_argument(
        "--print-env",
        action="store_true",
        help="show the NCCL, torch, CUDA and OpenMP variables in force, who set each and why; with or "
        "without a RECIPE",
    )
    made.add_argument("--json", action="store_true", help="print the answer as JSON")
    commands.add_traceback(made)
    return made
