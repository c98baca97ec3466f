"""GPU hours of the speed run for equal dense validation loss: an extrapolation from the track.

    python benchmarks/equal_quality.py benchmarks/track_records/arms-nvidia-h200-800.json [--keep]

The track measures, of 40 M parameters, how many times fewer updates an arm needs to its seed's AdamW loss.
The speed run's training hours (`project_speedrun.json`) are divided by that number and multiplied by what an
update of the arm costs at XL/2, by FLOPs: routing as in recipes/speedrun-fast.yaml with its dense finish, and
Muon's products shared by the ranks of a host. Encoding and the update are left as they are, what a real run
loses is in both, waiting in neither. The interval is
that of the seeds (95 %, Student's t); no interval covers the step from 40 M to 1.2 billion parameters.
"""

import argparse
import json
import math
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rows import RESULTS, Row, as_table, keep, row

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.model.flops import forward_flops
from trainer.model.routing import RoutingSpec
from trainer.model.stdit import XL_2, STDiT3Config
from trainer.training.track.run import reached

T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571}  # two-sided, by degrees of freedom
STAGES = (1, 2, 3)
SHAPE = (30, 30, 53)  # latent of 240p x 102f, where most tokens are
CLIPS, TEXT_TOKENS = 10, 120  # of a micro-batch there; tokens of a caption
MICRO_BATCHES, RANKS = 192, 8  # of an update; ranks that share the matrices
ROUTING = RoutingSpec(share=0.5, pairs=(2, 25), dense_finish=0.15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How many times fewer updates: geometric mean over seeds and its interval."""

    mean: float
    low: float
    high: float


def fewer_updates(records: list[dict[str, Any]], arm: str) -> Times | None:
    """Return the ratio of updates to AdamW's final loss, seed by seed; None if a seed did not reach it."""
    base = {one["seed"]: one for one in records if one["name"] == "adamw"}
    logs = []
    for one in records:
        if one["name"] != arm or one["seed"] not in base:
            continue
        step = reached(one["log"], base[one["seed"]]["final_loss"], "step")
        if step is None:
            return None
        logs.append(math.log(base[one["seed"]]["steps"] / step))
    if len(logs) < 2:
        return None
    mean = statistics.fmean(logs)
    half = T_95[len(logs) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return Times(mean=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


def orthogonal_flops(config: STDiT3Config) -> int:
    """Return the FLOPs of Muon's products in one update of all matrices."""
    d, hidden = config.hidden_size, int(config.hidden_size * config.mlp_ratio)
    one = {(d, d): 8, (d, hidden): 2}  # of a block
    total = sum(count * 5 * (4 * r * r * c + 2 * r**3) for (r, c), count in one.items())
    return 2 * config.depth * total


def cost_of_update(config: STDiT3Config, *, muon: bool, routed: bool) -> float:
    """Return the FLOPs of an update over those of AdamW's dense one."""
    dense = forward_flops(config, *SHAPE, TEXT_TOKENS)
    share = 1.0
    if routed:
        finish = ROUTING.dense_finish
        share = finish + (1 - finish) * forward_flops(config, *SHAPE, TEXT_TOKENS, ROUTING) / dense
    extra = orthogonal_flops(config) / RANKS / (3 * dense * CLIPS * MICRO_BATCHES / RANKS) if muon else 0.0
    return share + extra


def projected(kept: list[Row], records: list[dict[str, Any]]) -> list[Row]:
    """Return the rows: hours of each arm, beside those of AdamW."""
    hours = {one["metric"]: one["value"] for one in kept}

    def of_stages(what: str) -> float:
        return float(sum(hours[f"stage-{number}_gpu_hours_{what}"] for number in STAGES))

    steps = of_stages("training") + of_stages("update")
    real = 1 + of_stages("lost") / steps  # a real run takes so many times longer
    training, rest = real * of_stages("training"), real * of_stages("update") + of_stages("ahead")
    rows = []
    for arm in ("adamw + routing", "muon", "muon + routing"):
        times = fewer_updates(records, arm)
        if times is None:
            continue
        cost = cost_of_update(XL_2, muon="muon" in arm, routed="routing" in arm)
        for name, value in (("", times.mean), (", low", times.high), (", high", times.low)):
            rows.append(
                row(
                    f"extrapolated hours for equal loss, {arm}{name}",
                    training * cost / value + rest,
                    "GPU hours",
                    peer="AdamW, dense: sum of the projection's stages",
                    peer_value=training + rest,
                    goal="<= 1500" if arm == "muon + routing" and not name else "",
                    higher_is_better=False,
                    hardware="H200, extrapolated from 40 M parameters",
                )
            )
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("arms", type=Path, help="the file of benchmarks/track_arms.py")
    arguments.add_argument("--keep", action="store_true", help="keep the figures in benchmarks/results")
    given = arguments.parse_args()
    kept = json.loads((RESULTS / "project_speedrun.json").read_text())
    rows = projected(kept, json.loads(given.arms.read_text())["records"])
    if given.keep:
        keep("equal_quality", rows)
    else:
        print(as_table(rows))


if __name__ == "__main__":
    main()
