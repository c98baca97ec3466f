"""Serve command: `python -m trainer serve RUN …` starts the inference server."""

import argparse
import ipaddress
import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from trainer.cli import commands, exit_codes
from vidcurate.errors import InputError, counted

EXAMPLE = """\
  python -m trainer serve runs/first --once

Beside a training, on a GPU that it does not use, until it is done:
  python -m trainer serve runs/speedrun --preset low4s --preset high4s --gpus 7
On another machine, over a copy without optimizer state:
  watch -n 100 rsync -a --exclude '*/optimizer' --exclude serve --exclude samples HOST:runs/speedrun runs/
  python -m trainer serve runs/speedrun --preset low4s
"""
LEAST_TOKEN = 16


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser(
        "serve",
        "Sample every checkpoint of a run, newest first, with prompts and seeds that stay; measure the "
        "validation loss; draw the gallery. Runs until the training is done.",
        EXAMPLE,
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="a run's folder, or a copy of it")
    parser.add_argument(
        "--expnums",
        metavar="1,2,3",
        help="runs by the numbers that their names begin with, or a file of them",
    )
    parser.add_argument(
        "--runs-dir", type=Path, default=Path("runs"), metavar="DIR", help="where --expnums looks (runs)"
    )
    parser.add_argument(
        "--preset",
        action="append",
        dest="presets",
        metavar="NAME",
        help="own: the recipe's (default); low4s: 102 frames of 360 x 640; high4s: 102 of 720 x 1280; "
        "low16s: 408 of 360 x 640; may be repeated",
    )
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="one a line (default: the recipe's)")
    parser.add_argument("--seeds", metavar="0,1", help="a clip for each prompt and seed (the recipe's)")
    parser.add_argument("--steps", type=int, metavar="N", help="Euler steps (the recipe's, or 30)")
    parser.add_argument("--guidance", type=float, metavar="G", help="guidance scale (the recipe's, or 7)")
    parser.add_argument("--raw", action="store_true", help="the weights themselves, not their moving average")
    parser.add_argument("--once", action="store_true", help="do all that is there, then end")
    parser.add_argument(
        "--poll-seconds", type=float, default=10.0, metavar="S", help="between two looks at the runs (10)"
    )
    parser.add_argument("--gpus", metavar="6,7", help="the server's GPUs, a process each")
    parser.add_argument("--no-validation", action="store_true", help="do not measure the validation loss")
    parser.add_argument("--no-trackers", action="store_true", help="nothing to W&B and TensorBoard")
    http = parser.add_argument_group("clips on request, over HTTP (docs/serve.md)")
    http.add_argument("--http", metavar="HOST:PORT", help="listen here; :PORT is 127.0.0.1:PORT")
    http.add_argument("--token-file", type=Path, metavar="FILE", help="a token that every request must bring")
    http.add_argument("--max-queue", type=int, default=4, metavar="N", help="requests that wait at most (4)")
    http.add_argument(
        "--max-pixels", type=int, metavar="N", help="height x width x frames of a clip (those of high4s)"
    )
    http.add_argument(
        "--time-limit-seconds", type=float, default=600.0, metavar="S", help="for one request (600)"
    )
    parser.add_argument("--json", action="store_true", help="print each round as a line of JSON")
    commands.add_traceback(parser)
    return parser


def _check_numbers(given: argparse.Namespace) -> None:
    for name, least in (
        ("poll_seconds", 0.05),
        ("max_queue", 1),
        ("time_limit_seconds", 0.1),
        ("steps", 1),
        ("max_pixels", 1),
        ("guidance", 0),
    ):
        value = getattr(given, name)
        if value is not None and not least <= value < float("inf"):
            raise InputError(f"--{name.replace('_', '-')} {value:g}: {least:g} is the least.")
    if given.once and given.http:
        raise InputError("--once ends when all is sampled, --http never ends. Leave one of them out.")


def _address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT. Raises InputError."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65_535:
        raise InputError(f"--http {text}: write it as HOST:PORT, such as 127.0.0.1:8080.")
    return host.strip("[]") or "127.0.0.1", int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token(given: argparse.Namespace, host: str) -> str | None:
    """Return the token that requests must bring. Raises InputError for an address that needs one."""
    if given.token_file is None:
        if not _is_loopback(host):
            raise InputError(
                f"--http {given.http}: others can reach this address, so requests must bring a token; "
                "write one into a file (openssl rand -hex 32 > FILE) and say --token-file FILE."
            )
        return None
    try:
        token: str = given.token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--token-file {given.token_file}: cannot be read ({error}).") from error
    if len(token) < LEAST_TOKEN or not re.fullmatch(r"[!-~]+", token):
        raise InputError(
            f"--token-file {given.token_file}: holds {len(token)} characters; a token is one word of at "
            f"least {LEAST_TOKEN}. Make one: openssl rand -hex 32 > {given.token_file}"
        )
    return token


def _choose_gpus(given: argparse.Namespace, words: Sequence[str]) -> None:
    """Restrict this process to the server's GPUs; with several GPUs, launch one process per GPU.

    Must be called before torch initializes CUDA. Raises InputError.
    """
    if given.gpus is None:
        return
    if not re.fullmatch(r"\d+(,\d+)*", given.gpus):
        raise InputError(f"--gpus {given.gpus}: write their numbers with commas, such as 6,7.")
    os.environ["CUDA_VISIBLE_DEVICES"] = given.gpus
    count = given.gpus.count(",") + 1
    if count > 1 and "RANK" not in os.environ:
        launcher = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={count}",
        ]
        os.execv(sys.executable, [*launcher, "-m", "trainer", "serve", *words])


def _check_gpus(given: argparse.Namespace) -> None:
    import torch

    count = torch.cuda.device_count()
    if given.gpus and not count:
        raise InputError(f"--gpus {given.gpus}: there is no such GPU on this machine.")
    if not given.gpus and count > 1 and "RANK" not in os.environ:
        raise InputError(
            f"this machine has {count} GPUs; say which are the server's, and not the training's: "
            f"--gpus {count - 1}."
        )


def _runs(given: argparse.Namespace) -> tuple[Path, ...]:
    from trainer.generation.server import checkpoints

    numbered = checkpoints.by_number(given.expnums, given.runs_dir) if given.expnums else []
    runs = tuple(dict.fromkeys((*given.runs, *numbered)))
    if not runs:
        raise InputError("no run is named; give its folder, or --expnums 1,2,3 --runs-dir runs.")
    return runs


def _tell(line: dict[str, Any], to_json: bool) -> None:
    text = f"{line['run']}/{line['folder']}  {counted(line['clips'], 'clip')}, {line['seconds']:.1f} s"
    print(json.dumps(line) if to_json else text, flush=True)


def _run(given: argparse.Namespace) -> int:
    with commands.loading():
        from trainer.distributed import mesh
        from trainer.generation.server import follow, presets
        from trainer.generation.server.generate import Generator
        from trainer.generation.server.http_server import Endpoint
        from trainer.generation.server.request import Limits
        from trainer.generation.server.weights import Model

    _check_numbers(given)
    chosen = tuple(dict.fromkeys(given.presets or (presets.OWN,)))
    for preset in chosen:
        if preset not in (presets.OWN, *presets.PRESETS):
            raise InputError(
                f"--preset {preset}: the presets are {', '.join((presets.OWN, *presets.PRESETS))}."
            )
    address = _address(given.http) if given.http else None
    token = _token(given, address[0]) if address else None
    _check_gpus(given)
    service = follow.Service(
        runs=_runs(given),
        presets=chosen,
        changes=presets.Changes(
            prompts=presets.read_prompts(given.prompts) if given.prompts else (),
            seeds=presets.parse_seeds(given.seeds),
            steps=given.steps,
            guidance=given.guidance,
        ),
        raw=given.raw,
        validates=not given.no_validation,
        tracks=not given.no_trackers,
        once=given.once,
        is_kept=address is not None,
        poll_seconds=given.poll_seconds,
    )
    limits = Limits(max_queue=given.max_queue, time_limit_seconds=given.time_limit_seconds)
    if given.max_pixels:
        limits = Limits(
            max_queue=given.max_queue,
            time_limit_seconds=given.time_limit_seconds,
            max_pixels=given.max_pixels,
        )
    world = mesh.init_process_groups()
    try:
        with follow.held(service, world), follow.Server(service, world, Model(world)) as server:
            generator = Generator(server, limits)
            endpoint = (
                Endpoint(
                    address, limits, token, generator, generator.facts, generator.gauges, generator.prepare
                )
                if address and world.is_first
                else None
            )
            if endpoint:
                follow.say(f"listening on http://{endpoint.host}:{endpoint.port}")
            with endpoint or nullcontext():
                server.act(lambda line: _tell(line, given.json))
    finally:
        mesh.destroy_process_groups(world)
    return exit_codes.DONE


def main(words: Sequence[str]) -> int:
    """Parse the arguments of `serve`, serve, and return the exit code."""
    given = _parser().parse_args(words)

    def act(given: argparse.Namespace) -> int:
        _choose_gpus(given, words)
        return _run(given)

    return commands.run_long_command(act, given, "with what is not sampled yet")
