"""Loss parity of float8 and bfloat16 over thousands of steps at full depth, on the track's clips.

    python benchmarks/float8_parity.py OUT.json [--steps 3000] [--batch 1] [--budget-seconds 540] [--keep]
    python benchmarks/float8_parity.py OUT.json --recipe recipes/track-tiny.yaml --forms bfloat16,float32 \\
        --set blocks=eager --depth 2 --steps 4

The model has the 28 pairs of blocks of STDiT3-XL/2 at the track's width, a third of its 1152: at full width
so many steps are hours. With one seed both forms begin with the same weights and see the same clips,
timesteps and noise. All runs are trained side by side, step by step, each on a stream of its own, as the
kernels of one clip leave most of a GPU idle; no time is taken. Compared at the end: the dense validation loss
of the averaged weights, and the mean training loss of the second half of the steps. How far the peer's seeds
end apart is the spread in which a form's distance must lie. Where the budget ends first, all runs end after
the same number of steps, and the rows say how many. OUT.json has the curves.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rows import Row, as_table, card, cpu, keep, row

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.training.track import run as track
from trainer.training.track.spec import TrackRecipe
from vidcurate.recipe import recipe as strict

CURVE = 100  # steps whose mean training loss is a point of a curve
SETTINGS = ["routing=null", "target.prompts=0", "target.loss=null", "target.every=100"]


def recipe_of(given: argparse.Namespace) -> TrackRecipe:
    """Return the recipe of all runs, but for precision and seed."""
    settings = [*SETTINGS, f"steps={given.steps}", f"batch={given.batch}", f"optim.lr={given.lr}"]
    settings.append(f"model.depth={given.depth}")
    return strict.load(given.recipe, TrackRecipe, settings=[*settings, *given.settings])


def train_side_by_side(
    runs: dict[tuple[str, int], track.Run], steps: int, deadline: float
) -> tuple[int, dict[tuple[str, int], list[float]]]:
    """Train all runs step by step, until `steps` or the deadline of `time.perf_counter`.

    Return the steps made and each run's mean training loss of every CURVE steps.
    """
    streams: dict[tuple[str, int], Any] = {}
    steppers, pending = {}, {}
    curves: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    for key, one in runs.items():
        one.warm_up()
        streams[key] = torch.cuda.Stream() if one.device.type == "cuda" else None
        steppers[key], pending[key] = one.steps(), []
    for done in range(1, steps + 1):
        for key, stepper in steppers.items():
            with torch.cuda.stream(streams[key]):  # None: the CPU
                _, losses = next(stepper)
                pending[key].append(losses.mean())
        if done % CURVE == 0 or done == steps:
            for key, one in runs.items():
                one.wait()
                curves[key].append(float(torch.stack(pending[key]).mean()))
                pending[key] = []
            left = deadline - time.perf_counter()
            print(
                f"{done} steps, {left:.0f} s left: {[round(one[-1], 4) for one in curves.values()]}",
                flush=True,
            )
            if left < 0:
                return done, curves
    return steps, curves


def report(records: list[dict[str, Any]], form: str, peer: str, depth: int) -> list[Row]:
    """Return how far `form` ends from `peer`, seed by seed, beside how far the peer's seeds end apart."""
    ours, theirs = ({one["seed"]: one for one in records if one["form"] == name} for name in (form, peer))
    seeds = sorted(ours.keys() & theirs.keys())
    gpu = torch.cuda.is_available()
    hardware = torch.cuda.get_device_name() if gpu else cpu()
    rows = []
    for what in ("validation loss", "training loss"):
        pairs = [(ours[seed][what], theirs[seed][what]) for seed in seeds]
        spread = statistics.stdev(other for _, other in pairs) if len(pairs) > 1 else 0.0
        apart = statistics.mean(abs(one - other) for one, other in pairs)
        after = f"after {records[0]['steps']} steps, {depth} pairs, {len(seeds)} seeds, {form}"
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
    arguments.add_argument("--depth", type=int, default=28, help="pairs of blocks")
    arguments.add_argument("--batch", type=int, default=1, help="clips of a step")
    arguments.add_argument("--lr", type=float, default=5e-4)
    arguments.add_argument("--budget-seconds", type=float, default=float("inf"))
    arguments.add_argument("--keep", action="store_true", help="keep the figures in benchmarks/results")
    given = arguments.parse_args()
    deadline = time.perf_counter() + given.budget_seconds
    form, peer = given.forms.split(",")
    recipe = recipe_of(given)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = track.load_data(recipe, device)
    runs = {}
    for seed in given.seeds:
        for name in (peer, form):
            named = {"name": name, "precision": name, "seed": seed}
            one = TrackRecipe.model_validate(recipe.model_dump() | named)
            runs[name, seed] = track.Run(one, data, graphs=True)
    steps, curves = train_side_by_side(runs, given.steps, deadline)
    records = [
        {
            "form": name,
            "seed": seed,
            "steps": steps,
            "validation loss": one.validate(),
            "training loss": statistics.mean(curves[name, seed][len(curves[name, seed]) // 2 :]),
            "curve": curves[name, seed],
        }
        for (name, seed), one in runs.items()
    ]
    given.out.write_text(json.dumps(records) + "\n")
    rows = report(records, form, peer, recipe.model.depth)
    if given.keep:
        kind = "cpu" if device.type == "cpu" else card(torch.cuda.get_device_name())
        keep(f"float8_parity_{kind}", rows)
    else:
        print(as_table(rows))


if __name__ == "__main__":
    main()
