"""Arms of the track on one GPU: AdamW, Muon, token routing, and both, three seeds each.

    python benchmarks/track_arms.py --out FILE.json [--budget-seconds 540]
    python benchmarks/track_arms.py --recipe recipes/track-tiny.yaml --set steps=6 --out FILE
    python benchmarks/track_arms.py --out FILE --budget-seconds 300 --factor 4 --arms adamw "muon + routing" \
        --arm "muon + routing, EMA 0.97" ema_decay=0.97 optim.warmup_steps=10

The runs are one after the other, so that seconds and joules are a run's own. First each arm's step is timed;
`steps` is reduced, in whole validations, until all runs fit into the budget. Muon's rate is the best of
FACTORS after SWEEP_STEPS. The score of an arm: seconds and FLOPs until the dense validation loss of its
seed's AdamW run is reached. The script writes the file again after each run, so that nothing is lost if it is
stopped. `--set` changes all arms, `--arm` adds one: a name that begins with one of the four arms, and what it
changes.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rows import commit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.model.routing import RoutingSpec
from trainer.training.track import run as track
from trainer.training.track.spec import TrackRecipe
from vidcurate.errors import InputError
from vidcurate.recipe import recipe as strict

SEEDS = (1, 2, 3)
ARMS = ("adamw", "muon", "adamw + routing", "muon + routing")
REST_LR = 1e-3  # of what AdamW updates beside Muon
FACTORS = (1.0, 2.0, 4.0)
SWEEP_STEPS, TIMED_STEPS = 200, 30
SHARE, FINISH = 0.5, 0.17
RUN_SECONDS, PROMPT_SECONDS = 2.0, 0.1  # of a run beside its steps and validations, as seen on an H200


def arm(recipe: TrackRecipe, name: str, factor: float, settings: Sequence[str] = ()) -> TrackRecipe:
    """Return the recipe of an arm; half of the tubes skip all pairs but the first and the last.

    `settings`: what an arm of `--arm` changes, as `key=value`.
    """
    kind = max((one for one in ARMS if name.startswith(one)), key=len, default=None)
    if kind is None:
        raise InputError(f"--arm {name}: begin the name with one of {', '.join(ARMS)}.")
    changes: dict[str, Any] = {"name": name}
    if kind.startswith("muon"):
        changes["optim"] = recipe.optim.model_copy(update={"lr": REST_LR, "muon": factor})
    if kind.endswith("routing"):
        pairs = (1, recipe.model.depth - 2)
        changes["routing"] = RoutingSpec(share=SHARE, pairs=pairs, dense_finish=FINISH)
    made = recipe.model_copy(update=changes)
    if not settings:
        return made
    return strict.parse(made.model_dump_json(), TrackRecipe, where=f"{name}.json", settings=settings)


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def timed(recipe: TrackRecipe, data: track.Data, graphs: bool) -> dict[str, Any]:
    """Return seconds of a step and of a validation, and whether graphs were captured."""
    short = recipe.model_copy(update={"steps": TIMED_STEPS})
    one = track.Run(short, data, graphs=graphs)
    began = time.perf_counter()
    one.warm_up()
    warm = time.perf_counter() - began
    marks = []
    for _ in one.steps():
        marks.append(time.perf_counter())
    one.wait()
    steps = len(marks) // 2
    one.validate()  # builds what validation needs
    began = time.perf_counter()
    loss = one.validate()
    return {
        "step_seconds": (marks[-1] - marks[-1 - steps]) / steps,
        "validation_seconds": time.perf_counter() - began,
        "warm_up_seconds": warm,
        "why_eager": one.gradient.why_eager,
        "loss": loss,
        "gib": torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None,
    }


def scores(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return of each arm: final losses, and how many times faster each seed reached AdamW's final loss."""
    finals = {one["seed"]: one["final_loss"] for one in records if one["name"] == "adamw"}
    costs = {one["seed"]: one for one in records if one["name"] == "adamw"}
    found = []
    for name in dict.fromkeys(one["name"] for one in records):
        runs = [one for one in records if one["name"] == name and one["seed"] in finals]
        line: dict[str, Any] = {"arm": name, "seeds": [one["seed"] for one in runs]}
        line["final_loss"] = [one["final_loss"] for one in runs]
        line["prompts_followed"] = [one["prompts_followed"] for one in runs]
        line["step_ms"] = [1000 * one["seconds"] / one["steps"] for one in runs]
        for key in ("seconds", "model_flops", "joules"):
            reached = [track.reached(one["log"], finals[one["seed"]], key) for one in runs]
            line[f"times_less_{key}"] = [
                None if not value or costs[one["seed"]][key] is None else costs[one["seed"]][key] / value
                for one, value in zip(runs, reached, strict=True)
            ]
        found.append(line)
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--recipe", type=Path, default=Path("recipes/track.yaml"))
    arguments.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    arguments.add_argument("--arms", nargs="+", default=ARMS)
    arguments.add_argument(
        "--arm",
        dest="more",
        action="append",
        nargs="+",
        default=[],
        metavar=("NAME", "KEY=VALUE"),
        help="an arm more; may be repeated",
    )
    arguments.add_argument("--budget-seconds", type=float, default=540.0)
    arguments.add_argument("--factor", type=float, help="Muon's factor, instead of a sweep")
    arguments.add_argument("--no-graphs", action="store_true")
    given = arguments.parse_args()
    began, graphs = time.perf_counter(), not given.no_graphs
    recipe = strict.load(given.recipe, TrackRecipe, settings=given.settings)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    more = {name: settings for name, *settings in given.more}
    names = list(dict.fromkeys([*given.arms, *more]))
    answer: dict[str, Any] = {"device": str(device), "torch": torch.__version__, "settings": more}
    if code := commit():
        answer["commit"] = code
    for name in names:
        arm(recipe, name, FACTORS[-1], more.get(name, ()))  # a fault ends the call here
    if device.type == "cuda":
        answer["device"] = torch.cuda.get_device_name(device)

    def passed() -> float:
        return time.perf_counter() - began

    def save() -> None:
        answer["passed_seconds"] = passed()
        given.out.write_text(json.dumps(answer, indent=1) + "\n")

    def say(text: str) -> None:
        print(f"{passed():6.1f} s  {text}", flush=True)

    expected, clips = recipe.clips.sha256, recipe.clips.model_copy(update={"sha256": None})
    recipe = recipe.model_copy(update={"clips": clips})  # a wrong hash is reported and does not end the call
    data = track.load_data(recipe, device)
    answer |= {"clips_sha256": data.clips.sha256, "same_clips": expected in (None, data.clips.sha256)}
    say(f"{len(data.clips.pixels)} clips, sha256 {data.clips.sha256}, as expected: {answer['same_clips']}")

    factor = given.factor or FACTORS[-1]
    answer["timed"] = {}
    for name in names:
        answer["timed"][name] = timed(arm(recipe, name, factor, more.get(name, ())), data, graphs)
        free()
        say(f"{name}: {answer['timed'][name]}")
        save()

    if given.factor is None and any(name.startswith("muon") for name in names):
        answer["sweep"] = {}
        for tried in FACTORS:
            short = arm(recipe, "muon", tried).model_copy(update={"steps": min(SWEEP_STEPS, recipe.steps)})
            short = short.model_copy(
                update={"target": recipe.target.model_copy(update={"prompts": 0, "every": short.steps})}
            )
            answer["sweep"][tried] = track.run(short, data, graphs=graphs)["final_loss"]
            free()
            say(f"muon, factor {tried:g}: loss {answer['sweep'][tried]:.4f} after {short.steps} steps")
        factor = min(answer["sweep"], key=lambda tried: answer["sweep"][tried])
        save()

    every = recipe.target.every
    each = sum(
        answer["timed"][name]["step_seconds"] * every + answer["timed"][name]["validation_seconds"]
        for name in names
    ) * len(given.seeds)
    fixed = len(given.seeds) * len(names) * (RUN_SECONDS + PROMPT_SECONDS * recipe.target.prompts)
    fits = int((given.budget_seconds - passed() - fixed) / each)
    steps = max(every, min(recipe.steps, fits * every)) if device.type == "cuda" else recipe.steps
    recipe = recipe.model_copy(update={"steps": steps})
    answer |= {"steps": steps, "muon_lr_factor": factor, "records": []}
    say(f"{steps} steps a run, {each * steps / every:.0f} s in all, muon factor {factor:g}")

    longest = 0.0
    for seed in given.seeds:
        for name in names:
            if device.type == "cuda" and passed() + longest > given.budget_seconds + 30:
                say(f"{name}, seed {seed}: left out, no time")
                continue
            start = passed()
            chosen = arm(recipe, name, factor, more.get(name, ())).model_copy(update={"seed": seed})
            record = track.run(chosen, data, graphs=graphs)
            free()
            longest = max(longest, passed() - start)
            answer["records"].append(record)
            answer["scores"] = scores(answer["records"])
            save()
            say(
                f"{name}, seed {seed}: loss {record['final_loss']:.4f} in {record['seconds']:.1f} s, "
                f"{record['joules'] or 0:.0f} J, {record['prompts_followed']} of {record['prompts']} prompts"
            )
    for line in answer["scores"]:
        times = [value for value in line["times_less_seconds"] if value]
        mean = f"{statistics.mean(times):.2f}" if times else "–"
        shown = {key: value for key, value in line.items() if key != "seeds"}
        say(f"{line['arm']}: {mean} times faster; {json.dumps(shown)}")


if __name__ == "__main__":
    main()
