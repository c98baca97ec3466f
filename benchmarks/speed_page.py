"""Write the kept figures of the training step and of the projected run into docs/speed.md.

    python benchmarks/speed_page.py

What stands between the two marks of the page is replaced by tables of benchmarks/results/train_step_h200.json
and project_speedrun.json; all else stays.
"""

import json
from pathlib import Path
from typing import Any

from rows import RESULTS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "speed.md"
BEGIN, END = "<!-- figures: python benchmarks/speed_page.py -->", "<!-- end of figures -->"
Figures = dict[str, dict[str, Any]]


def figures(name: str) -> Figures:
    """Return the kept rows of a script by metric."""
    return {row["metric"]: row for row in json.loads((RESULTS / f"{name}.json").read_text())}


def table(head: list[str], lines: list[list[str]]) -> str:
    """Return a Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in rows)


def step_table(found: Figures) -> str:
    lines = []
    for metric, rate in found.items():
        shape = metric.removesuffix("_tokens_per_s")
        if shape == metric:
            continue
        tflops, peak = found[f"{shape}_tflops"], found.get(f"{shape}_peak_gib")
        split = " / ".join(
            f"{found[f'{shape}_{part}_ms']['value']:,.0f}" for part in ("forward", "backward", "optimizer")
        )
        lines.append(
            [
                shape.replace("_", " x "),
                f"{rate['value']:,.0f}",
                rate["goal"].removeprefix(">= ") or "none",
                f"{rate['peer_value']:,.0f}",
                f"{rate['ratio']:.2f}",
                split,
                f"{tflops['value']:.0f} ({tflops['value'] / 989:.1%})",
                f"{peak['value']:.0f}" if peak else "",
                rate["peer"].partition("ours is ")[2].removesuffix(")"),
            ]
        )
    head = [
        "shape",
        "tokens/s",
        "goal",
        "plain eager",
        "ratio",
        "forward / backward / optimizer, ms",
        "TFLOP/s (of 989)",
        "peak, GiB",
        "form",
    ]
    return table(head, lines)


def run_table(found: Figures) -> str:
    lines = []
    for stage in ("stage-1", "stage-2", "stage-3"):
        steps = found[f"{stage}_steps"]
        hours = [
            found[f"{stage}_gpu_hours_{part}"]["value"] for part in ("training", "update", "ahead", "online")
        ]
        lines.append(
            [
                stage,
                f"{steps['value']:,.0f}",
                f"{steps['peer_value']:,.0f}",
                *(f"{part:,.0f}" for part in hours),
            ]
        )
    stages = table(
        ["", "steps", "published", "GPU hours of micro-batches", "updates", "encoding ahead", "on line"],
        lines,
    )
    ways = []
    for ranks in ("8_ranks", "48_ranks", "192_ranks"):
        ahead, online = (found[f"gpu_hours_{way}_{ranks}"] for way in ("ahead", "online"))
        ways.append(
            [
                ranks.replace("_", " "),
                f"{ahead['value']:,.0f}",
                f"{online['value']:,.0f}",
                f"{ahead['peer_value']:,.0f}",
            ]
        )
    return f"{stages}\n\n" + table(
        ["all three, with waiting", "encoded ahead", "on line", "published (H100)"], ways
    )


def imbalance_table(found: Figures) -> str:
    lines = []
    for case in dict.fromkeys(metric.partition("_imbalance_")[2] for metric in found):
        if case:
            cells = [found[f"stage-{number}_imbalance_{case}"] for number in (1, 2, 3)]
            lines.append(
                [
                    case.replace("_", " "),
                    *(f"{cell['peer_value']:.2f} → {cell['value']:.3f}" for cell in cells),
                ]
            )
    return table(["slowest rank over the mean", "stage 1", "stage 2", "stage 3"], lines)


def main() -> None:
    steps, run = figures("train_step_h200"), figures("project_speedrun")
    some = next(iter(steps.values()))
    text = "\n\n".join(
        [
            BEGIN,
            f"One {some['hardware']}, measured {some['date']}:",
            step_table(steps),
            "The published run with this step, and what it was:",
            run_table(run),
            "Dealt in turn → dealt by time:",
            imbalance_table(run),
            END,
        ]
    )
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + text + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
