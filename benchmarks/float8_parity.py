"""Loss parity of float8 and bfloat16 over thousands of steps at full depth, on the track's clips.

    python benchmarks/float8_parity.py OUT.json [--steps 3000] [--batch 2] [--budget-seconds 540] [--keep]
    python benchmarks/float8_parity.py OUT.json --recipe recipes/track-tiny.yaml --forms bfloat16,float32 \\
        --set blocks=eager --depth 2 --steps 4

The model has the 28 pairs of blocks of STDiT3-XL/2 at the track's width, a third of its 1152: at full width
so many steps are hours. Each seed trains both forms from the same weights on the same clips, timesteps and
noise, in turn on one GPU. Compared at the end: the dense validation loss of the averaged weights, and the
mean training loss of the last LAST steps. How far the peer's seeds end apart is the spread in which a
form's distance must lie. OUT.json is written after each run, with all curves; a run that is in it is not
repeated. Ends with 3, before it trains, where the timed steps would not fit into the budget.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rows import Row, as_table, cpu, keep, row

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.training.track import run as track
from trainer.training.track.spec import TrackRecipe
from vidcurate.recipe import recipe as strict

LAST = 1500  # steps whose mean training loss is compared; each validation costs as much as 200 of them
TIMED = 40
SETTINGS = ["routing=null", "target.prompts=0", "target.loss=null", f"target.every={LAST}"]


def recipe_of(given: argparse.Namespace) -> TrackRecipe:
    """Return the recipe of all runs, but for precision and seed."""
    settings = [*SETTINGS, f"steps={given.steps}", f"batch={given.batch}", f"optim.lr={given.lr}"]
    if given.depth:
        settings.append(f"model.depth={given.depth}")
    return strict.load(given.recipe, TrackRecipe, settings=[*settings, *given.settings])


def step_seconds(recipe: TrackRecipe, data: track.Data) -> float:
    """Return the seconds of a step, kernels and graphs made before."""
    one = track.Run(recipe.model_copy(update={"steps": TIMED}), data, graphs=True)
    one.warm_up()
    began = 0.0
    for number, _ in enumerate(one.steps()):
        if number == TIMED // 2 - 1:
            one.wait()
            began = time.perf_counter()
    one.wait()
    return (time.perf_counter() - began) / (TIMED - TIMED // 2)


def ends(records: list[dict[str, Any]], form: str) -> dict[int, tuple[float, float]]:
    """Return the final validation loss and the last training loss of a form, by seed."""
    found = [one for one in records if one["recipe"]["precision"] == form]
    return {one["seed"]: (one["final_loss"], one["log"][-1]["loss"]) for one in found}


def report(records: list[dict[str, Any]], form: str, peer: str, steps: int, depth: int) -> list[Row]:
    """Return how far `form` ends from `peer`, seed by seed, beside how far the peer's seeds end apart."""
    ours, theirs = ends(records, form), ends(records, peer)
    seeds = sorted(ours.keys() & theirs.keys())
    gpu = torch.cuda.is_available()
    hardware = torch.cuda.get_device_name() if gpu else cpu()
    rows = []
    for place, what in enumerate(("validation loss", "training loss")):
        pairs = [(ours[seed][place], theirs[seed][place]) for seed in seeds]
        spread = statistics.stdev(other for _, other in pairs) if len(pairs) > 1 else 0.0
        apart = statistics.mean(abs(one - other) for one, other in pairs)
        after = f"after {steps} steps, {depth} pairs, {len(seeds)} seeds, {form}"
        rows += [
            row(f"{what} {after}", statistics.mean(one for one, _ in pairs), "", peer=peer,
                peer_value=statistics.mean(other for _, other in pairs), hardware=hardware,
                higher_is_better=False),
            row(f"distance of the {what} {after}", apart, "", peer=f"deviation of {peer}'s seeds",
                peer_value=spread, goal="within it", hardware=hardware, higher_is_better=False),
        ]  # fmt: skip
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("out", type=Path, metavar="OUT")
    arguments.add_argument("--recipe", type=Path, default=Path("recipes/track.yaml"))
    arguments.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    arguments.add_argument("--forms", default="float8,bfloat16", help="the form, and its peer")
    arguments.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    arguments.add_argument("--steps", type=int, default=3000)
    arguments.add_argument("--depth", type=int, default=28, help="pairs of blocks; 0: the recipe's")
    arguments.add_argument("--batch", type=int, default=2)
    arguments.add_argument("--lr", type=float, default=5e-4)
    arguments.add_argument("--budget-seconds", type=float, default=float("inf"))
    arguments.add_argument("--keep", action="store_true", help="keep the figures in benchmarks/results")
    given = arguments.parse_args()
    began = time.perf_counter()
    form, peer = given.forms.split(",")
    recipe = recipe_of(given)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    records = json.loads(given.out.read_text()) if given.out.exists() else []

    def of(form: str, seed: int) -> TrackRecipe:
        named = {"name": form, "precision": form, "seed": seed}
        return TrackRecipe.model_validate(recipe.model_dump() | named)

    def has(form: str, seed: int) -> bool:
        return seed in ends(records, form)

    waiting = [(each, seed) for seed in given.seeds for each in (peer, form) if not has(each, seed)]
    if waiting:
        data = track.load_data(recipe, device)
        each = {one: step_seconds(of(one, given.seeds[0]), data) for one in (peer, form)}
        needs = sum(each[one] for one, _ in waiting) * given.steps * 1.05
        passed = time.perf_counter() - began
        times = ", ".join(f"{one} {1e3 * seconds:.1f} ms" for one, seconds in each.items())
        print(f"{passed:.0f} s: a step of {times}; {len(waiting)} runs need {needs:.0f} s", flush=True)
        if passed + needs > given.budget_seconds:
            sys.exit(3)
    for one, seed in waiting:
        records.append(track.run(of(one, seed), data))
        given.out.write_text(json.dumps(records) + "\n")
        gc.collect()
        print(
            f"{time.perf_counter() - began:.0f} s: {one}, seed {seed}: validation loss "
            f"{records[-1]['final_loss']:.5f}, of the last {LAST} steps {records[-1]['log'][-1]['loss']:.5f}",
            flush=True,
        )
    rows = report(records, form, peer, given.steps, recipe.model.depth)
    if given.keep:
        kind = "cpu" if device.type == "cpu" else torch.cuda.get_device_name().split()[-1].lower()
        keep(f"float8_parity_{kind}", rows)
    else:
        print(as_table(rows))


if __name__ == "__main__":
    main()
