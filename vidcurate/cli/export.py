"""Commands for other trainers: which clips a model takes."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from vidcurate.cli.common import Json, Run, app, print_summary

Size = Annotated[
    str | None,
    typer.Option("--size", help="One of the model's size classes. Default: the largest.", metavar="CLASS"),
]
Frames = Annotated[
    int | None,
    typer.Option(
        "--frames", min=1, help="Frames of every clip. Default: as many as the model takes.", metavar="N"
    ),
]


def _counted(record: dict[str, Any], name: str) -> str:
    clips, hours = record[f"{name}_clips"], record[f"{name}_hours"]
    return f"{clips:,} clips, {hours:,.2f} h" if clips else "none"


def _share(value: float | None) -> str:
    return "" if value is None else f" (median {value:.1%})"


def _as_text(record: dict[str, Any]) -> dict[str, str]:
    """Return one model's counts as short text."""
    factor = record["rate_factor_median"]
    most = f", most {record['crop_share_most']:.1%})" if record["crop_share_most"] is not None else ""
    return {
        "model": record["model"],
        "taken": f"{_counted(record, 'taken')}; {record['hours_written']:,.2f} h written",
        "too_short": _counted(record, "too_short"),
        "too_small": _counted(record, "too_small"),
        "unknown": _counted(record, "unknown"),
        "retimed": _counted(record, "retimed") + ("" if factor is None else f" (median x{factor:.3g})"),
        "repeated_frames": _counted(record, "repeated"),
        "cropped": _counted(record, "cropped") + _share(record["crop_share_median"]).rstrip(")") + most,
        "shortened": _counted(record, "shortened"),
        "below_sizes": _counted(record, "below_smallest"),
        "frames": _listed(record["frame_counts"]),
        "sizes": _listed(record["sizes"]),
        "tokens": f"{record['tokens_median'] or 0:,} in the middle, {record['tokens_most'] or 0:,} at most",
    }


def _listed(counts: dict[str, int]) -> str:
    shown = ", ".join(f"{name}: {clips:,}" for name, clips in list(counts.items())[:6])
    return f"{shown}, and {len(counts) - 6} more" if len(counts) > 6 else shown or "none"


@app.command()
def fit(
    run: Run,
    model: Annotated[
        str, typer.Option("--model", help="Models, with commas, such as wan2.1 or ltx2.", metavar="NAMES")
    ],
    size: Size = None,
    frames: Frames = None,
    to_json: Json = False,
) -> None:
    """Count which kept clips a video model takes, and which are too short, retimed or cropped.

    Reads the table only; RUN/fit.json keeps the counts for the report. No clip is scaled up. The models and
    the sources of their rules are in docs/exports.md.

    Example: vidcurate fit run --model wan2.1,ltx2
    """
    from vidcurate.curation.fit.models import models_named
    from vidcurate.curation.fit.summary import run_fit

    found = asdict(run_fit(run, models_named(model), size=size, frames=frames))
    if to_json:
        print(json.dumps(found))
        return
    models = found.pop("models")
    print_summary(found, title=f"fit → {run}", to_json=False)
    for record in models:
        print_summary(_as_text(record), title=f"\n{record['title']}", to_json=False)
