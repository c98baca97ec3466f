"""Commands on rules and results: presets, what-if, ledger, fetch-plan, card."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from vidcurate.cli.common import (
    Json,
    RecipeFile,
    Run,
    Settings,
    app,
    output_file,
    print_summary,
    screen,
    spec_of,
)
from vidcurate.executor.progress import progress_bar


@app.command()
def presets(
    name: Annotated[str | None, typer.Argument(help="One preset: show its settings.", metavar="NAME")] = None,
    to_json: Json = False,
) -> None:
    """List published filter thresholds, with their sources and what was left out.

    Example: vidcurate presets open-sora-1.2
    """
    from vidcurate.curation.filter.presets import PRESETS
    from vidcurate.errors import InputError

    if name is not None and name not in PRESETS:
        raise InputError(f"{name}: unknown preset. Presets: {', '.join(PRESETS)}.")
    chosen = {key: asdict(value) for key, value in PRESETS.items() if name in (None, key)}
    if to_json:
        print(json.dumps(chosen))
        return
    if name is None:
        rows = [{"preset": key, **value, "settings": "", "left_out": ""} for key, value in chosen.items()]
        shown = [{key: row[key] for key in ("preset", "title", "source")} for row in rows]
        print_summary({"presets": shown}, title="presets", to_json=False)
        return
    one = chosen[name]
    settings = [f"{key}: {json.dumps(value)}" for key, value in one["settings"].items()]
    print_summary({**one, "settings": settings}, title=name, to_json=False)


@app.command("what-if")
def what_if(
    run: Run,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset", help="Start from a preset instead of the run's own settings.", metavar="NAME"
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            "--sweep", help="One setting, several values: key=1,2,3 or key=0:10:2.", metavar="KEY=VALUES"
        ),
    ] = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    to_json: Json = False,
) -> None:
    """Count what other thresholds would keep, from the scores in the table. Nothing is written.

    Example: vidcurate what-if run --sweep max_duration_seconds=1,2,4
    """
    from vidcurate.curation.report import what_if as report_what_if

    spec = report_what_if.spec_of(run, preset=preset, recipe=recipe, settings=settings or [])
    found = report_what_if.what_if(run, spec) if sweep is None else report_what_if.sweep(run, spec, sweep)
    if to_json:
        print(json.dumps(found))
    elif sweep is None:
        print_summary(_as_records(found), title=f"what-if → {run}", to_json=False)
    else:
        print_summary(
            {**found, "points": [_clips_only(point) for point in found["points"]]},
            title=f"what-if → {run}",
            to_json=False,
        )


def _as_records(found: dict[str, Any]) -> dict[str, Any]:
    """Return groups of {name: {clips, hours}} as tables."""
    return {
        name: [{name[3:]: key, **counts} for key, counts in value.items()]
        if name.startswith("by_")
        else value
        for name, value in found.items()
    }


def _clips_only(point: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {key: counts["clips"] for key, counts in value.items()} if name.startswith("by_") else value
        for name, value in point.items()
    }


@app.command("ledger")
def ledger_(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Argument(help="Write one row for each rejected clip: .parquet, .csv, .jsonl.", metavar="FILE"),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Replay every ledger entry and compare it with the table.")
    ] = False,
    to_json: Json = False,
) -> None:
    """Count rejected clips per rule; with FILE, write each rejected clip with rule, value and threshold.

    Example: vidcurate ledger run rejected.csv --check
    """
    from vidcurate.curation.clip_table import rejection_ledger, table

    found = rejection_ledger.overview(run)
    if check:
        found = {**found, "check": rejection_ledger.check_ledger(run)}
    if out is not None:
        table.export(rejection_ledger.rejected(run), out)
        found["file"] = str(out)
    print_summary(found, title=f"ledger → {run}", to_json=to_json)


@app.command("fetch-plan")
def fetch_plan(
    run: Run,
    parts: Annotated[
        list[str],
        typer.Option(
            "--parts",
            help="A folder of zips, a zip, a URL, or a .txt that lists them. Repeatable.",
            metavar="PLACE",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", callback=output_file, help="The download list.", metavar="FILE")
    ] = Path("plan.csv"),
    fetch: Annotated[
        Path | None, typer.Option("--fetch", help="Also fetch the files into this folder.", metavar="FOLDER")
    ] = None,
    connections: Annotated[int, typer.Option(min=1, help="Requests at the same time.", metavar="N")] = 4,
    max_failure_share: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of the files that may fail, 0 to 1; above it: exit code 3.",
            metavar="SHARE",
        ),
    ] = 0.0,
    to_json: Json = False,
) -> None:
    """List the byte ranges of published zip parts that hold the kept clips; fetch only those.

    Reads the central directories by range, on disk or over HTTP; pieces (_partaa, .001) are read as one.
    The same command resumes a stopped download.

    Example: vidcurate fetch-plan run --parts demo/parts --out plan.csv --fetch subset
    """
    from vidcurate.curation.fetch.plan import run_fetch_plan

    with progress_bar("fetch-plan", quiet=to_json) as progress:
        summary = asdict(run_fetch_plan(run, parts, out, progress=progress))
    if fetch is None:
        print_summary(summary, title=f"fetch-plan → {out}", to_json=to_json)
        return
    from vidcurate.curation.clip_table.rejection_ledger import check_share
    from vidcurate.curation.fetch.stage import run_fetch

    with progress_bar("fetch", quiet=to_json) as progress:
        fetched = run_fetch(out, fetch, num_workers=connections, progress=progress)
    print_summary({**summary, **asdict(fetched)}, title=f"fetch-plan → {fetch}", to_json=to_json)
    check_share(
        fetched.files_failed,
        fetched.files,
        max_failure_share,
        what="do not match their zip directory",
        key="max_failure_share",
        see="The summary above names them; download their zip parts again.",
    )


@app.command()
def card(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option("--out", callback=output_file, help="The file. Default: RUN/card.md.", metavar="FILE"),
    ] = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    to_json: Json = False,
) -> None:
    """Write the data card: licences by source, counts per level and bucket, rules, versions and hashes.

    Where RUN/shards is built, its README.md too: the card with the front matter of the Hugging Face hub.

    Example: vidcurate card run --set licences.openvid=CC-BY-4.0
    """
    from vidcurate.curation.publish.readme import run_readme
    from vidcurate.curation.report.card import CardSpec, facts, run_card
    from vidcurate.shards.manifest import MANIFEST_NAME

    spec = spec_of(CardSpec, recipe, settings)
    files = [run_card(run, spec, out)]
    if (run / "shards" / MANIFEST_NAME).exists():
        files.append(run_readme(run, run / "shards", spec))
    if to_json:
        print(
            json.dumps({"file": str(files[0]), "files": [*map(str, files)], **facts(run, spec)}, default=str)
        )
    else:
        for target in files:
            screen(is_wide=False).print(f"card → {target}", highlight=False)
