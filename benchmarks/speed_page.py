"""Write the kept figures of the training step and of the projection into docs/speed.md.

    python benchmarks/speed_page.py

What stands between the marks of the page is replaced by tables of benchmarks/results/train_step_h200.json,
step_profile_h200.json, encoders_h200.json and project_speedrun.json; all else stays. Without a kept profile
the page's budget stays, too.
"""

import json
from functools import partial
from pathlib import Path

from rows import RESULTS
from speed_budget import BUDGET, Figures, budget, table, to_text
from speed_projection import captions_words, imbalance_table, run_table, sources_table
from step_parts import ALL
from step_rows import READ

PAGE = Path(__file__).resolve().parents[1] / "docs" / "speed.md"
BLOCKS = {  # name: how the page marks its beginning and its end
    name: (f"<!-- {name}: python benchmarks/speed_page.py -->", f"<!-- end of {name} -->")
    for name in ("budget", "figures")
}
MARK = " †"
WAITED = 0.97  # of the power limit; a step that computes all the time draws 98 to 99 %
PROFILE = "step_profile_h200"


def figures(name: str) -> Figures:
    """Return the kept rows of a script by metric."""
    return {row["metric"]: row for row in json.loads((RESULTS / f"{name}.json").read_text())}


def shapes(found: Figures) -> list[str]:
    """Return the shapes whose whole step was measured, in their order."""
    return [metric.removesuffix("_tflops") for metric in found if metric.endswith("_tflops")]


FORMS = {  # of train_step.py's rows that stand beside another form: their heading
    "packed": "bfloat16, true lengths",
    "float8": "float8",
    "float8_packed": "float8, true lengths",
}


def beside_table(found: Figures) -> str:
    """Return what float8 and packed captions give, as far as a shape was measured with them; or nothing."""
    lines = []
    for shape in shapes(found):
        rows = [found.get(f"{shape}_{form}_tokens_per_s") for form in FORMS]
        if any(rows):
            cells = [
                f"{row['value']:,.0f} ({row['ratio']:.3f}){MARK * waited(found, f'{shape}_{form}')}"
                if row
                else ""
                for form, row in zip(FORMS, rows, strict=True)
            ]
            lines.append([to_text(shape), f"{found[f'{shape}_tokens_per_s']['value']:,.0f}", *cells])
    return table(["tokens/s (ratio)", "bfloat16", *FORMS.values()], lines) if lines else ""


def waited(found: Figures, metric: str) -> bool:
    """Return whether the GPU drew less than WAITED of its power limit: the host held it back."""
    watts, limit = found.get(f"{metric}_watts"), found.get("product_8192_watts")
    return bool(watts and limit) and watts["value"] < WAITED * limit["peer_value"]


def peers_of_forms(found: Figures) -> str:
    """Return what each form's ratio is over, and when its rates were measured."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for form, heading in FORMS.items():
        for shape in shapes(found):
            if row := found.get(f"{shape}_{form}_tokens_per_s"):
                groups.setdefault((heading, row["peer"], row["date"]), []).append(to_text(shape))
    return "; ".join(
        f"{heading} over {peer}, {date} ({', '.join(of_shapes)})"
        for (heading, peer, date), of_shapes in groups.items()
    )


def step_table(found: Figures) -> str:
    """Return a line for each shape; without clock and power where they were not measured."""
    lines, has_power = [], any(metric.endswith("_sm_mhz") for metric in found)
    newest = max(row["date"] for row in found.values())
    for shape in shapes(found):
        rate, tflops = found[f"{shape}_tokens_per_s"], found[f"{shape}_tflops"]
        peak = found.get(f"{shape}_peak_gib")
        split = " / ".join(
            f"{found[f'{shape}_{part}_ms']['value']:,.0f}" for part in ("forward", "backward", "optimizer")
        )
        power = (
            [f"{found[f'{shape}_sm_mhz']['value']:,.0f}, {found[f'{shape}_watts']['value']:.0f}"]
            if has_power
            else []
        )
        is_older = rate["date"] != newest
        lines.append(
            [
                to_text(shape) + f" (of {rate['date']})" * is_older,
                f"{rate['value']:,.0f}",
                rate["goal"].removeprefix(">= ") or "none",
                f"{rate['peer_value']:,.0f}",
                f"{rate['ratio']:.2f}",
                split,
                f"{tflops['value']:.0f} ({tflops['value'] / 989:.1%})",
                f"{peak['value']:.0f}" if peak else "",
                *power,
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
        *["MHz, W"] * has_power,
        "form",
    ]
    return table(head, lines)


def power_words(found: Figures) -> str:
    """Return at which rate, clock and power a large product keeps going, as far as that was measured."""
    rate, clock, power = (found.get(f"product_8192_{what}") for what in ("kept_up", "sm_mhz", "watts"))
    if rate is None:
        return ""
    words = (
        f"An 8192³ bfloat16 product ran at {rate['peer_value']:.0f} TFLOP/s at first and at "
        f"{rate['value']:.0f} after seconds of it"
    )
    if clock is None or power is None:
        return f"{words}: the GPU's power limit lowers its clock. The steps run at the same limit."
    return (
        f"{words}: the GPU then draws {power['value']:.0f} W of its {power['peer_value']:.0f} and its clock "
        f"falls to {clock['value']:,.0f} of {clock['peer_value']:,.0f} MHz. The steps run at the same limit."
    )


def beside_words(found: Figures) -> str:
    """Return the table of forms that are compared with another, and what it holds; or nothing."""
    lines = beside_table(found)
    held = (
        f"\n\n{MARK.strip()} The GPU drew less than {WAITED:.0%} of its power limit, as where it waits for "
        "the host: a faster host may give more."
    )
    return lines and (
        "With `precision: float8`, and with captions by their true lengths instead of 300 tokens to each "
        f"({READ}). Each ratio is of one GPU and one run: {peers_of_forms(found)}.\n\n{lines}"
        f"{held if MARK in lines else ''}"
    )


def original_table(found: Figures) -> str:
    """Return each shape's rate over the original's own step; or nothing."""
    lines = []
    for shape in shapes(found):
        rows = [found.get(f"{shape}_{metric}") for metric in ("over_original", "float8_over_original")]
        if rows[0] and rows[1]:
            cells = [f"{row['value']:,.0f} ({row['ratio']:.2f})" for row in rows if row]
            lines.append([to_text(shape), f"{rows[0]['peer_value']:,.0f}", *cells])
    return table(["tokens/s", "the original", "bfloat16 (ratio)", "float8 (ratio)"], lines) if lines else ""


def original_words(found: Figures) -> str:
    """Return the table of the original's rates and whose they are; or nothing."""
    lines = original_table(found)
    peer = next((row["peer"] for row in found.values() if row["metric"].endswith("over_original")), "")
    return lines and f"Beside {peer}, each of its own run (`train_step_h200.json`):\n\n{lines}"


ENCODED = "kept up"  # of benchmarks/encoders.py's metrics


def encoders_table(found: Figures) -> str:
    """Return a line for each size that was encoded: rates kept up, power, and distance from float32."""
    lines = []
    for metric in found:
        if not metric.endswith(f": {ENCODED}"):
            continue
        size = metric.removesuffix(f": {ENCODED}")
        rate = found[metric]
        tflops, clock, power, energy = (
            found[f"{metric}, {what}"] for what in ("FLOPs", "clock", "power", "energy")
        )
        flops = found[f"{size}: FLOPs, torch's counter"]
        far = found[f"{size}: distance of the latents from float32"]
        lines.append(
            [
                size.partition(", ")[2],
                f"{rate['value']:,.1f}",
                f"{rate['peer_value']:,.1f}",
                f"{rate['ratio']:.2f}",
                f"{tflops['value']:.0f}",
                f"{flops['value']:.2f}",
                f"{clock['value']:,.0f}, {power['value']:.0f}",
                f"{energy['value']:.2f} ({energy['peer_value']:.2f})",
                f"{far['value']:.5f} ({far['peer_value']:.5f})",
            ]
        )
    head = [
        "frames x height x width",
        "frames/s kept up",
        "readable",
        "ratio",
        "TFLOP/s",
        "MFLOP a pixel",
        "MHz, W",
        "J a frame (readable)",
        "from float32 (readable)",
    ]
    return table(head, lines)


def put(page: str, block: str, text: str) -> str:
    """Return the page with `text` between the marks of `block`."""
    begin, end = BLOCKS[block]
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}"


def main() -> None:
    steps, run = figures("train_step_h200"), figures("project_speedrun")
    some = next(iter(steps.values()))
    has_waited = any(waited(steps, f"{shape}_{form}") for shape in shapes(steps) for form in FORMS)
    text = "\n\n".join(
        [
            f"One {some['hardware']}, measured {some['date']}:",
            step_table(steps),
            *filter(None, [power_words(steps), beside_words(steps), original_words(steps)]),
            "The VAE's encoding and the readable encoders', one run, each kept up for seconds "
            "(`encoders_h200.json`):",
            encoders_table(figures("encoders_h200")),
            "The published run with these rates, and what it was (`project_speedrun.json`). How many clips "
            "there are, how long and how large, is assumed, from what is published of the data sets; "
            "`python benchmarks/project_speedrun.py` prints it. Not in it: starts, validation, samples and "
            "networks between hosts.",
            run_table(run),
            *filter(None, [captions_words(run, partial(figures, "caption_lengths"), has_waited)]),
            "Each part, and what it comes from:",
            sources_table(),
            "Round-robin → assigned by time:",
            imbalance_table(run),
        ]
    )
    page = put(PAGE.read_text(encoding="utf-8"), "figures", text)
    found = figures(PROFILE) if (RESULTS / f"{PROFILE}.json").exists() else {}
    if f"{BUDGET} {ALL}" in found:
        page = put(page, "budget", budget(found, steps))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
