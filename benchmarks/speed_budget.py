"""Budget of a training step for docs/speed.md: each part's time beside its floor.

A part of benchmarks/speed_page.py, which writes the page.
"""

from typing import Any

from step_parts import ALL, PARTS, WITHOUT_FLOOR, Part

BUDGET = "240p_102f"  # the shape whose budget the page has in full
Figures = dict[str, dict[str, Any]]


def table(head: list[str], lines: list[list[str]]) -> str:
    """Return a Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in rows)


def to_text(shape: str) -> str:
    return shape.replace("_", " x ")


def shown_parts(found: Figures, shape: str) -> list[Part]:
    """Return the parts from the costliest on, those without a floor last."""
    return sorted(
        PARTS,
        key=lambda part: (
            part.name in WITHOUT_FLOOR,
            -found[f"{shape} {part.name}"]["value"] if f"{shape} {part.name}" in found else 0.0,
        ),
    )


def floor_of(line: dict[str, Any]) -> float | None:
    return line["peer_value"] if line["peer"].startswith("floor") else None


def budget_table(found: Figures, shape: str) -> str:
    """Return every part of one shape's step beside its floor, and what the floor counts."""
    lines = []
    for part in shown_parts(found, shape):
        line = found.get(f"{shape} {part.name}")
        if line is None:
            continue
        floor = floor_of(line)
        counts = part.counts
        if floor is not None:
            counts = counts.format(gflop=floor * found["product"]["value"] / 1000)
        lines.append([part.name, f"{line['value']:.2f}", "" if floor is None else f"{floor:.2f}", counts])
    whole = found[f"{shape} {ALL}"]
    rates = " and ".join(f"{1e6 / whole[which]:,.0f}" for which in ("value", "peer_value"))
    lines.append([ALL, f"{whole['value']:.2f}", f"{whole['peer_value']:.2f}", f"{rates} tokens/s"])
    return table(["part", "measured, µs a token", "floor", "what the floor counts"], lines)


def budgets_table(found: Figures) -> str:
    """Return the parts of every shape that was profiled: measured / floor."""
    shapes = [metric.removesuffix(f" {ALL}") for metric in found if metric.endswith(f" {ALL}")]
    parts = shown_parts(found, BUDGET)
    lines = []
    for shape in shapes:
        cells = []
        for name in (*(part.name for part in parts), ALL):
            line = found.get(f"{shape} {name}")
            floor = None if line is None else floor_of(line)
            cell = "" if line is None else f"{line['value']:.2f}"
            cells.append(cell if floor is None else f"{cell} / {floor:.2f}")
        lean = ", lean" if "lean" in found[f"{shape} {ALL}"]["peer"] else ""
        lines.append([to_text(shape) + lean, *cells])
    return table(["µs a token: measured / floor", *(part.short for part in parts), ALL], lines)


def budget_words(found: Figures, steps: Figures, shape: str) -> str:
    """Return what the budget of a shape says: the linears' rate, and how far a step is from its goal."""
    linears, kernels = found[f"{shape} linears"], found[f"{shape} kernels"]
    whole = found[f"{shape} {ALL}"]["value"]
    rate = linears["ratio"] * found["product"]["value"]
    words = f"The micro-batch has {kernels['value']:,.0f} kernels. Its linears run at {rate:,.0f} TFLOP/s."
    step = steps.get(f"{shape}_tokens_per_s")
    if step is None:
        return words
    words += (
        f" A whole step, measured by itself: {1e6 / step['value']:.2f} µs, {step['value']:,.0f} tokens/s."
    )
    if not step["goal"]:
        return words
    goal = step["goal"].removeprefix(">= ")
    wanted = 1e6 / float(goal.replace(",", ""))
    rest, other = (microseconds - linears["value"] for microseconds in (wanted, whole))
    return (
        f"{words} The goal of {goal} tokens/s is {wanted:.2f} µs: the linears and {rest:.2f} for all else, "
        f"which is {other:.2f}."
    )


def budget(found: Figures, steps: Figures) -> str:
    """Return the block of the page with the budget of a step."""
    some = found[f"{BUDGET} {ALL}"]
    product, copy = (found[name]["value"] for name in ("product", "copy"))
    return "\n\n".join(
        [
            f"One {some['hardware']}, measured {some['date']} by benchmarks/step_profile.py, "
            f"{to_text(BUDGET)}. An 8192³ bfloat16 product ran at {product:.0f} TFLOP/s and a copy at "
            f"{copy:.2f} TB/s; the floors are of these rates.",
            budget_table(found, BUDGET),
            budget_words(found, steps, BUDGET),
            budgets_table(found),
        ]
    )
