"""Make the tables of the projected speedrun for docs/speed.md."""

from collections.abc import Callable

from caption_lengths import mean_read
from real_share import most_gpus, share_of
from speed_budget import Figures, table
from speedrun_rows import NAMES
from step_shapes import READ_TOKENS, TEXT_TOKENS

CAPTIONS = "dense"  # the default of project_speedrun.py


def run_table(found: Figures) -> str:
    lines = []
    for stage in ("stage-1", "stage-2", "stage-3"):
        steps = found[f"{stage}_steps"]
        hours = [
            found[f"{stage}_gpu_hours_{part}"]["value"]
            for part in ("training", "update", "lost", "ahead", "online")
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
        [
            "",
            "steps",
            "published",
            "GPU hours of micro-batches",
            "updates",
            "lost in a real run",
            "precomputing",
            "online",
        ],
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
    if row := found.get("gpu_hours_ahead_48_ranks_float8"):
        ways.append(["48 ranks, float8", f"{row['value']:,.0f}", "", f"{ways[0][-1]}"])
    return f"{stages}\n\n" + table(
        ["all three, with waiting", "precomputed", "online", "published (H100)"], ways
    )


def captions_words(found: Figures, counted: Callable[[], Figures], has_waited: bool = False) -> str:
    """Return the projection with captions by their true lengths, and what it assumes of them; or nothing."""
    rows = [found.get(f"gpu_hours_ahead_48_ranks_{form}") for form in ("captions", "float8_captions")]
    lines = [
        [NAMES[form][0], f"{row['value']:,.0f}", f"{row['peer_value']:,.0f}"]
        for form, row in zip(("captions", "float8_captions"), rows, strict=True)
        if row
    ]
    if not lines:
        return ""
    read = ", ".join(f"{found[f'stage-{number}_tokens_read']['value']:,.0f}" for number in (1, 2, 3))
    mean = mean_read(list(counted().values()), CAPTIONS)
    return (
        f"With captions by their true lengths instead of {TEXT_TOKENS} tokens to each. Assumed: captions as "
        f"long as the {CAPTIONS} ones that were counted, {mean:.0f} tokens in the mean "
        f"(`caption_lengths.json`, T5's tokenizer), and {TEXT_TOKENS} tokens for the clips that only stage 3 "
        f"has. One in ten is dropped and reads the null caption's {TEXT_TOKENS}; a mean below the "
        f"{READ_TOKENS} of the measured steps counts as {READ_TOKENS}. So a clip reads {read} tokens in the "
        "three stages:\n\n"
        + table(["48 ranks, precomputed", "GPU hours", "bfloat16, 300 tokens"], lines)
        + ("\n\nThe rates marked † above are in these hours and in float8's." if has_waited else "")
    )


SOURCES = [
    ["GPU hours of micro-batches", "each shape's forward and backward, fitted", "`train_step_h200.json`"],
    ["updates", "the optimizer's milliseconds", "`train_step_h200.json`"],
    [
        "lost in a real run",
        "its rate over the one predicted, {shares}; training hours are divided by it",
        "{files}",
    ],
    ["precomputing, online", "rates kept up at five sizes; FLOPs by torch's counter", "`encoders_h200.json`"],
    ["waiting", "simulated on the real order with the times above", "`project_speedrun.json`"],
]


def sources_table() -> str:
    """Return what each figure of the projection comes from, and its file."""
    paths = dict.fromkeys(most_gpus(precision, "h200") for precision in ("bfloat16", "float8"))
    files = ", ".join(f"`{path.name}`" for path in paths)
    shares = ", ".join(f"{share_of(path)[1]:.3f}" for path in paths)
    if len(paths) > 1:
        shares += " in float8"
    lines = [[part, what.format(shares=shares), file.format(files=files)] for part, what, file in SOURCES]
    return table(["part", "measured", "file"], lines)


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
