"""Loss parity of fast bfloat16 blocks and plain float32: same data, weights and steps.

    python benchmarks/loss_parity.py OUT [--forms fast,float8] [--seeds 1,2,3] [--together 3] [--keep]
    python benchmarks/loss_parity.py OUT --recipe tests/tiny.yaml --forms bfloat16 --steps 40

Every run is `python -m trainer` on the same latent shards (make_latents.py: patterns that can be learnt).
With one seed, two forms begin with the same weights and see the same clips, noise and timesteps; another seed
changes all of these, and how far seeds end apart is the spread that a form must lie within. The model is
STDiT3 in XL/2's width and heads, with `--depth` of its 28 pairs of blocks, as float32 is ten times slower.
Runs share the GPUs there are, `--together` of them a GPU at a time: no time is taken.
"""

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from make_latents import XL_2
from rows import Row, as_table, card, cpu, keep, row

HERE = Path(__file__).resolve().parent
PEER = "float32"
FORMS = {
    "float32": ["precision=float32", "blocks=eager"],
    "bfloat16": ["precision=bfloat16", "blocks=eager"],
    "fast": ["precision=bfloat16", "blocks=fast"],
    "float8": ["precision=float8", "blocks=fast"],
}
LAST = 50  # updates whose mean loss is compared


def recipe_of(depth: int) -> dict[str, Any]:
    """Return the recipe of the latents and of all runs."""
    made: dict[str, Any] = json.loads(json.dumps(XL_2))
    made |= {"name": "loss-parity", "output": "run"}  # each run names its own
    made["model"]["depth"] = depth
    made["parallel"] = {}
    stage = made["stages"][0]
    stage["data"]["shards"] = "none"  # make_latents.py sets where they are
    stage["data"]["micro_batches_per_step"] = 1
    stage["data"]["buckets"]["table"] = {"144p": {"51": [1.0, 1]}, "256": {"1": [1.0, 8]}}
    return made


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES has for them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


def train(recipe: Path, run: Path, form: str, seed: int, steps: int, gpu: str | None) -> None:
    """Train one form with one seed; its output goes to a file beside the run."""
    settings = [*FORMS[form], f"seed={seed}", f"output={run}", "sample=null"]
    settings += [f"stages.0.steps={steps}", f"stages.0.checkpoint_every={steps}", "stages.0.log_every=50"]
    command = [sys.executable, "-m", "trainer", str(recipe)]
    command += [word for setting in settings for word in ("--set", setting)]
    environment = dict(os.environ, **({"CUDA_VISIBLE_DEVICES": gpu} if gpu is not None else {}))
    with (run.parent / f"{run.name}.log").open("w") as log:
        subprocess.run(command, cwd=HERE.parent, env=environment, stdout=log, stderr=log, check=True)
    print(f"{run.name}: the last {LAST} of {steps} steps {tail(run):.5f}", flush=True)


def tail(run: Path) -> float:
    """Return the mean loss of the last updates."""
    return statistics.mean(losses(run)[-LAST:])


def train_all(recipe: Path, out: Path, forms: list[str], seeds: list[int], steps: int, together: int) -> None:
    """Train every form with every seed, the slow ones first, `together` at a time on each GPU."""
    waiting: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    for form in forms:
        for seed in seeds:
            waiting.put((form, seed))
    failed: list[Exception] = []

    def work(gpu: str | None) -> None:
        while not failed:
            try:
                form, seed = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                train(recipe, out / f"{form}-{seed}", form, seed, steps, gpu)
            except subprocess.CalledProcessError as error:
                failed.append(error)

    gpus = together * ([*visible_gpus()] or [None])
    threads = [threading.Thread(target=work, args=(gpu,)) for gpu in gpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise SystemExit(f"{failed[0]}; its output is in {out}")


def report(out: Path, forms: list[str], seeds: list[int], steps: int, hardware: str) -> list[Row]:
    """Return how far each form ends from float32, seed by seed, beside how far the seeds end apart."""
    ends = {form: [tail(out / f"{form}-{seed}") for seed in seeds] for form in {PEER, *forms}}
    spread = statistics.stdev(ends[PEER])
    rows = []
    for form in forms:
        if form == PEER:
            continue
        apart = statistics.mean(abs(a - b) for a, b in zip(ends[form], ends[PEER], strict=True))
        rows.append(
            row(f"loss after {steps} steps, {form}", statistics.mean(ends[form]), "", peer="readable float32",
                peer_value=statistics.mean(ends[PEER]), hardware=hardware, higher_is_better=False)
        )  # fmt: skip
        rows.append(
            row(f"distance from float32, {form}", apart, "", peer="deviation of the seeds", peer_value=spread,
                goal="within it", hardware=hardware, higher_is_better=False)
        )  # fmt: skip
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("out", type=Path, metavar="OUT")
    arguments.add_argument("--recipe", type=Path, help="another recipe than XL/2's blocks")
    arguments.add_argument("--steps", type=int, default=500)
    arguments.add_argument("--depth", type=int, default=6)
    arguments.add_argument("--seeds", default="1,2,3")
    arguments.add_argument("--together", type=int, default=1, help="runs at a time on each GPU")
    arguments.add_argument("--forms", default="fast", help=f"compared with {PEER}: {', '.join(FORMS)}")
    arguments.add_argument("--keep", action="store_true", help="keep the figures in benchmarks/results")
    given = arguments.parse_args()
    forms, seeds = [PEER, *given.forms.split(",")], [int(seed) for seed in given.seeds.split(",")]
    recipe = given.out / "recipe.json"
    if not recipe.exists():
        source = given.recipe
        if source is None:
            given.out.mkdir(parents=True, exist_ok=True)
            source = given.out / "wanted.json"
            source.write_text(json.dumps(recipe_of(given.depth)))
        command = [sys.executable, str(HERE / "make_latents.py"), str(given.out), "--clips", "120"]
        subprocess.run([*command, "--recipe", str(source)], check=True)
    train_all(recipe, given.out, forms, seeds, given.steps, given.together)
    gpu = torch.cuda.is_available()
    hardware = torch.cuda.get_device_name() if gpu else cpu()
    rows = report(given.out, forms, seeds, given.steps, hardware)
    if given.keep:
        kind = card(hardware) if gpu else "cpu"
        keep(f"loss_parity_{kind}", rows)
    else:
        print(as_table(rows))


if __name__ == "__main__":
    main()
