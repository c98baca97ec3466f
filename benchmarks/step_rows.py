"""Make the rows of measured steps: each form beside its peer."""

from collections.abc import Mapping, Sequence

from rows import Row, row
from step_shapes import CAPTION_TOKENS, READ_TOKENS, TEXT_TOKENS, Shape

Figures = dict[str, float]
UNITS = {
    "tokens_per_s": "tokens/s",
    "tflops": "TFLOP/s",
    "forward_ms": "ms",
    "backward_ms": "ms",
    "optimizer_ms": "ms",
    "peak_gib": "GiB",
    "sm_mhz": "MHz",
    "watts": "W",
}
HIGHER = ("tokens_per_s", "tflops", "sm_mhz")
CAPTIONED = {  # forms with captions of READ_TOKENS: whether packed by their true lengths
    "padded": False,
    "packed": True,
    "float8_packed": True,
}
WHOLE = f"{TEXT_TOKENS} tokens to each caption"
BESIDE = {  # forms that are compared with another: that one, and its words
    "float8": ("fast", "fast, all products of bfloat16"),
    "padded": ("fast", f"fast, {WHOLE}"),
    "packed": ("fast", f"fast, {WHOLE}"),
    "float8_packed": ("float8", f"float8, {WHOLE}"),
}
READ = f"{READ_TOKENS} tokens read in the mean: captions of {CAPTION_TOKENS}, one in ten dropped"
# Its batches, checkpointing and frame masks as published, with the fastest attention that it can be given;
# 656 to 668 W at 1,965 MHz.
ORIGINAL = "Open-Sora v1.2.0's own code, best attention, one H200 on 2026-11-23"
PLAIN = "plain eager"


def best_of(found: Mapping[str, Figures]) -> str:
    """Return the fastest form in the model's precision with whole captions, "" without one."""
    ours = [form for form in found if form not in BESIDE]
    return max(ours, key=lambda form: found[form]["tokens_per_s"], default="")


def plain_of(name: str, found: Mapping[str, Figures], kept: Sequence[Row]) -> tuple[str, Figures]:
    """Return the plain form's words and figures: of this run, or else of the kept rows, with their date."""
    if "plain" in found:
        return PLAIN, found["plain"]
    rows = {entry["metric"]: entry for entry in kept if entry["peer"].startswith(PLAIN)}
    of_shape = {metric: rows[f"{name}_{metric}"] for metric in UNITS if f"{name}_{metric}" in rows}
    if not of_shape:
        return "", {}
    words = {f"{PLAIN} of {entry['date']}" for entry in of_shape.values() if " of " not in entry["peer"]}
    words |= {entry["peer"].partition(" (ours")[0] for entry in of_shape.values() if " of " in entry["peer"]}
    return min(words), {metric: entry["peer_value"] for metric, entry in of_shape.items()}


def rows_of(
    name: str, shape: Shape, found: Mapping[str, Figures], hardware: str, kept: Sequence[Row] = ()
) -> list[Row]:
    """Return the rows of a shape whose forms were measured in one run.

    The fastest form stands beside plain blocks, the others beside the form of BESIDE. `kept`: earlier rows
    of the same script, whose plain blocks serve where this run has none.
    """
    best, rows = best_of(found), []
    words, plain = plain_of(name, found, kept)
    for metric, unit in UNITS.items():
        if best and metric in plain:
            goal = f">= {shape.goal:,}" if metric == "tokens_per_s" and shape.goal else ""
            rows.append(
                row(f"{name}_{metric}", found[best][metric], unit, peer=f"{words} (ours is {best})",
                    peer_value=plain[metric], goal=goal, higher_is_better=metric in HIGHER, hardware=hardware)
            )  # fmt: skip
    for form, metric in ((best, "over_original"), ("float8", "float8_over_original")):
        if shape.original and form in found:
            rows.append(
                row(f"{name}_{metric}", found[form]["tokens_per_s"], "tokens/s", peer=ORIGINAL,
                    peer_value=shape.original, goal="4 x" if form == best else "", hardware=hardware)
            )  # fmt: skip
    for form, (usual, called) in BESIDE.items():
        if {form, usual} <= found.keys():
            for metric in (one for one in UNITS if one != "tflops"):
                value, other = (found[one][metric] for one in (form, usual))
                rows.append(
                    row(f"{name}_{form}_{metric}", value, UNITS[metric], peer=called, peer_value=other,
                        higher_is_better=metric in HIGHER, hardware=hardware)
                )  # fmt: skip
    return rows


def merged(kept: Sequence[Row], made: Sequence[Row]) -> list[Row]:
    """Return the kept rows, those of a metric that was measured again replaced, and new ones at the end."""
    new = {entry["metric"]: entry for entry in made}
    rows = [new.pop(entry["metric"], entry) for entry in kept]
    return [*rows, *new.values()]
