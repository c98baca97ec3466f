"""Training run of XL/2 on latents, killed and resumed: tokens/s, memory, save time, loss.

    python benchmarks/train_run.py OUT --ranks 2 --steps 120 --kill-at 70 --then-ranks 1 [--keep]
    python benchmarks/train_run.py OUT --ranks 1 --steps 200 --kill-at 110 --keep
    OMP_NUM_THREADS=1 python benchmarks/train_run.py OUT --recipe tests/tiny.yaml --ranks 2 --kill-at 70

It makes the latents (make_latents.py), trains with the command that users have (`python -m trainer`, under
torchrun for more ranks, FSDP2 over them, checkpoints in the background), sends every rank SIGKILL after
update `--kill-at`, gives the same command again until the run is done, and then trains `--then-steps` more
updates on `--then-ranks`, from the same checkpoint; with eight or more of them their rate is the peer. It
fails unless the resumed run proves what it loaded, no update is missing or twice there, and the loss of a
small set that is shown again and again falls. Imports are those of training itself: torch, numpy, pyarrow,
pydantic.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from make_latents import CLIPS
from rows import Row, as_table, card, cpu, keep, row

HERE = Path(__file__).resolve().parent
UNSTEADY = 3  # updates after each start that count for no rate


def children(process: int) -> list[int]:
    """Return the ids of all processes that `process` and its children have started."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has just ended
        parents.setdefault(int(words[1]), []).append(int(path.parent.name))
    found, waiting = [], [process]
    while waiting:
        mine = parents.get(waiting.pop(), [])
        found += mine
        waiting += mine
    return found


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a log file."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def train(recipe: Path, run: Path, ranks: int, settings: list[str], kill_at: int | None = None) -> None:
    """Train to the end, or until every rank is killed after update `kill_at`."""
    command = [sys.executable, "-m", "trainer"]
    if ranks > 1:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command += ["-m", "trainer"]
    command += [str(recipe), *(word for setting in settings for word in ("--set", setting))]
    print("$", " ".join(command[1:]), flush=True)
    with subprocess.Popen(command, cwd=HERE.parent) as process:
        while process.poll() is None:
            reached = len(lines(run / "metrics.jsonl"))
            if kill_at is not None and reached >= kill_at:
                victims = [*children(process.pid), process.pid]
                print(f"killing {len(victims)} processes after update {reached}", flush=True)
                for victim in victims:
                    with contextlib.suppress(ProcessLookupError):  # ended with its parent
                        os.kill(victim, signal.SIGKILL)
                break
            time.sleep(0.2)
    if kill_at is None and process.returncode != 0:
        raise SystemExit(f"the run ended with code {process.returncode}")


def check(run: Path, steps: int) -> None:
    """Stop unless every update is there once and every start after the first proved what it loaded."""
    numbers = [line["step"] for line in lines(run / "metrics.jsonl")]
    if numbers != list(range(1, steps + 1)):
        raise SystemExit(f"{run}: the updates are {numbers[:3]} … {numbers[-3:]}, not 1 to {steps}")
    for proof in (event for event in lines(run / "events.jsonl") if event["event"] == "resume"):
        if not proof["checksums_match_the_manifest"] or proof["optimizer_updates"] != proof["step"]:
            raise SystemExit(f"{run}: a resume without proof: {proof}")
        print(
            f"resumed at step {proof['step']}, saved on {proof['saved_on_ranks']} rank(s), read on "
            f"{proof['world_size']}: checksums match, lr {proof['lr_before']} then {proof['lr_after']}"
        )


def steady(updates: list[dict[str, Any]], events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the updates without the first ones of each start."""
    begun = [event["step"] for event in events if event["event"] in ("start", "resume")]
    return [
        line
        for line in updates
        if line["step"] - max(step for step in begun if step < line["step"]) > UNSTEADY
    ]


def rate_of(updates: list[dict[str, Any]]) -> float:
    """Return tokens/s of all ranks together."""
    return float(sum(line["tokens"] for line in updates) / sum(line["seconds"] for line in updates))


def report(
    run: Path, ranks: int, then_ranks: int, extra: int, hardware: str, gpu_gib: float | None
) -> list[Row]:
    """Return the run's figures; the last `extra` updates were made on `then_ranks`."""
    updates, events = lines(run / "metrics.jsonl"), lines(run / "events.jsonl")
    even = steady(updates[:-extra], events)
    others = steady(updates[-extra:], events)
    saves = [event for event in events if event["event"] == "save"]
    tenth = max(1, len(updates) // 10)
    first = statistics.mean(line["loss"] for line in updates[:tenth])
    last = statistics.mean(line["loss"] for line in updates[-tenth:])
    update_seconds = sum(line["seconds"] for line in even) / len(even)
    rate = rate_of(even)
    clocks = [line["data_seconds"] / line["seconds"] for line in even]
    rows = [
        row("tokens/s, all ranks", rate, "tokens/s", peer="72 thousand a rank", peer_value=72_000 * ranks,
            hardware=hardware),
        row("wait for data, median share of an update", statistics.median(clocks), "share", peer="an update",
            peer_value=1.0, higher_is_better=False, hardware=hardware),
        row("save in the background, till whole", statistics.median(event["seconds"] for event in saves), "s",
            peer="an update", peer_value=update_seconds, higher_is_better=False, hardware=hardware),
        row("stall of a save", statistics.median(event["stall_seconds"] for event in saves), "s",
            peer="an update", peer_value=update_seconds, goal="<= 1 s", higher_is_better=False,
            hardware=hardware),
        row("loss, last tenth of the updates", last, "", peer="first tenth", peer_value=first, goal="falls",
            higher_is_better=False, hardware=hardware),
    ]  # fmt: skip
    if len(others) >= 5 and then_ranks != ranks:
        rows.append(
            row("tokens/s of a rank", rate / ranks, "tokens/s", peer=f"the run resumed on {then_ranks}",
                peer_value=rate_of(others) / then_ranks, goal=">= 0.97", hardware=hardware)
        )  # fmt: skip
    if gpu_gib:
        peak = max(line["peak_gib"] for line in updates[:-extra])
        rows.append(
            row("peak memory of the first rank", peak, "GiB", peer="the GPU's", peer_value=gpu_gib,
                higher_is_better=False, hardware=hardware)
        )  # fmt: skip
    if not last < first:
        raise SystemExit(f"the loss did not fall: {first:.4f} to {last:.4f}")
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("out", type=Path, metavar="OUT")
    arguments.add_argument("--recipe", type=Path, help="another recipe than XL/2 in mixed buckets")
    arguments.add_argument("--clips", type=int, default=CLIPS)
    arguments.add_argument("--ranks", type=int, default=1)
    arguments.add_argument("--then-ranks", type=int, default=1, help="ranks of the updates at the end")
    arguments.add_argument("--then-steps", type=int, default=5, help="how many of them")
    arguments.add_argument("--steps", type=int, default=200)
    arguments.add_argument("--kill-at", type=int)
    arguments.add_argument("--checkpoint-every", type=int, default=50)
    arguments.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    arguments.add_argument("--keep", action="store_true", help="keep the figures in benchmarks/results")
    given = arguments.parse_args()
    recipe, run = given.out / "recipe.json", given.out / f"run-{given.ranks}"
    if not recipe.exists():
        command = [sys.executable, str(HERE / "make_latents.py"), str(given.out), "--clips", str(given.clips)]
        subprocess.run([*command, *(["--recipe", str(given.recipe)] if given.recipe else [])], check=True)

    def settings(steps: int) -> list[str]:
        return [
            f"output={run}",
            f"stages.0.steps={steps}",
            f"stages.0.checkpoint_every={given.checkpoint_every}",
            "stages.0.checkpoint_in_background=true",
            "parallel.sharding=full",
            "sample=null",
            *given.settings,
        ]

    if given.kill_at:
        train(recipe, run, given.ranks, settings(given.steps), given.kill_at)
    train(recipe, run, given.ranks, settings(given.steps))
    train(recipe, run, given.then_ranks, settings(given.steps + given.then_steps))
    check(run, given.steps + given.then_steps)
    hardware, kind, gib = cpu(), "cpu", None
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        hardware, kind = f"{given.ranks} x {name}", card(name)
        gib = torch.cuda.get_device_properties(0).total_memory / 2**30
    rows = report(run, given.ranks, given.then_ranks, given.then_steps, hardware, gib)
    if given.keep:
        keep(f"train_run_{given.ranks}x{kind}", rows)
    else:
        print(as_table(rows))


if __name__ == "__main__":
    main()
