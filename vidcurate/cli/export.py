"""Export commands: which clips a model takes, and folders that trainers read."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from vidcurate.cli.common import (
    Json,
    MaxFailureShare,
    Run,
    Videos,
    Workers,
    app,
    output_file,
    print_summary,
    stage_progress,
    videos_of,
)
from vidcurate.errors import InputError, counted
from vidcurate.executor.map_clips import usable_cpus

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
    return f"{counted(clips, 'clip')}, {hours:,.2f} h" if clips else "none"


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
        "still_images": _counted(record, "still_image"),
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
    from vidcurate.curation.model_fit.models import models_named
    from vidcurate.curation.model_fit.summary import run_fit

    found = asdict(run_fit(run, models_named(model), size=size, frames=frames))
    if to_json:
        print(json.dumps(found))
        return
    models = found.pop("models")
    print_summary(found, title=f"fit → {run}", to_json=False)
    for record in models:
        print_summary(_as_text(record), title=f"\n{record['title']}", to_json=False)


@app.command()
def export(
    run: Run,
    out: Annotated[Path, typer.Argument(help="A new folder, or the file of a table.", metavar="OUT")],
    for_: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="Trainers, with commas: finetrainers, diffusion-pipe, musubi, ltx, videox-fun, fastvideo, "
            "diffsynth, automodel, cosmos-predict2, cogvideo, mochi, simpletuner, hf. Or the table alone: "
            "csv, jsonl, parquet.",
            metavar="NAMES",
        ),
    ] = None,
    fit_model: Annotated[
        str | None,
        typer.Option(
            "--fit", help="Write each clip at the size, rate and frames of this model.", metavar="MODEL"
        ),
    ] = None,
    size: Size = None,
    frames: Frames = None,
    caption: Annotated[
        str | None,
        typer.Option(
            "--caption", help="Name of the caption to export. Default: the main one.", metavar="NAME"
        ),
    ] = None,
    videos: Videos = None,
    workers: Workers = None,
    max_failure_share: MaxFailureShare = None,
    to_json: Json = False,
) -> None:
    """Export the kept clips as a folder that other trainers read, or the whole table of a run.

    The folder has FOLD/KEY.mp4 with FOLD/KEY.txt, and for each trainer its manifest, a configuration and the
    next command, as a script. Clips that need no change are linked, others are transcoded once and decoded to
    verify. The same command resumes a stopped export; another --for adds manifests only.

    Example: vidcurate export run travel --for musubi,hf --fit wan2.1
    """
    from vidcurate.curation.export.trainers.registry import TABLES, trainers_named

    table_format = for_ if for_ in TABLES else out.suffix[1:] if for_ is None else None
    if for_ is None and table_format not in TABLES:
        raise InputError(f"{out}: say for whom: --for musubi,hf (trainers) or --for csv (the table).")
    if table_format is not None:
        _export_table(run, out, table_format, to_json=to_json)
        return
    from vidcurate.curation.clip_table.rejection_ledger import check_share
    from vidcurate.curation.export.clips import ExportSpec
    from vidcurate.curation.export.stage import run_export

    assert for_ is not None
    with stage_progress(run, "export", quiet=to_json) as progress:
        summary = run_export(
            run,
            out,
            trainers_named(for_),
            ExportSpec(model=fit_model, size=size, frames=frames, caption=caption),
            videos=videos_of(run, videos),
            num_workers=workers or usable_cpus(),
            progress=progress,
        )
    shown = asdict(summary) if to_json else asdict(summary) | {"warnings": len(summary.warnings)}
    print_summary(shown, title=f"export → {out}", to_json=to_json)
    if not to_json:
        for warning in summary.warnings:
            print(f"\nwarning: {warning}")
        for name, script in summary.next_commands.items():
            print(f"\nnext, with {name} ({script}):\n{_commands_of(Path(script))}")
    failures = sum(summary.failed.values())
    check_share(
        failures,
        summary.clips + failures,
        max_failure_share,
        what="could not be exported",
        key="--max-failure-share",
        see=f"{out}/EXPORT.json lists them under failed.",
    )


def _commands_of(script: Path) -> str:
    """Return the lines of a script without its head."""
    return "\n".join(f"  {line}" for line in script.read_text(encoding="utf-8").splitlines()[2:])


def _export_table(run: Path, out: Path, table_format: str, *, to_json: bool) -> None:
    from vidcurate.curation.clip_table import table

    stage = table.newest_stage(run)
    if out.is_dir():
        name = out / f"clips.{table_format}"
        raise InputError(f"{out}: is a folder. Name the table's file: vidcurate export {run} {name}")
    target = out if out.suffix == f".{table_format}" else out.with_name(f"{out.name}.{table_format}")
    output_file(target)
    table.export(table.scan(run, stage), target)
    facts = {"stage": stage, "file": str(target), "size_bytes": target.stat().st_size}
    print_summary(facts, title="export", to_json=to_json)
