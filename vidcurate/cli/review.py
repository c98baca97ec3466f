"""Command `review`: start the review app, draw a blind sample, sum up decisions."""

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from vidcurate.cli.common import Json, Run, Videos, app, known_videos, print_summary
from vidcurate.cli.trainer_commands import refuse_training_run
from vidcurate.errors import InputError


@app.command()
def review(
    run: Run,
    videos: Videos = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port on 127.0.0.1. Default: 8765, or a free one.", metavar="N"),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(min=2, help="Draw N clips of all rules and kept ones; with --blind.", metavar="N"),
    ] = None,
    blind: Annotated[
        bool, typer.Option("--blind", help="The sample is reviewed without showing the verdicts.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample.", metavar="N")] = 0,
    name: Annotated[
        str | None, typer.Option(help="Name of the sample. Default: seed-SEED-N.", metavar="NAME")
    ] = None,
    summary: Annotated[
        bool,
        typer.Option("--summary", help="Print decisions, agreement and the filter's errors; start no app."),
    ] = False,
    level: Annotated[
        float, typer.Option(min=0.5, max=0.999, help="Confidence of the intervals.", metavar="SHARE")
    ] = 0.95,
    reviewer: Annotated[
        str | None, typer.Option("--reviewer", help="Who decides. Default: your login name.", metavar="NAME")
    ] = None,
    to_json: Json = False,
) -> None:
    """Watch, search and sort the clips of a run in a browser, try thresholds, decide on clips.

    Decisions go to RUN/reviews.jsonl; `vidcurate filter RUN` applies them.

    The app listens on 127.0.0.1 and needs the token of the printed address. Ctrl-C stops it. From another
    machine: ssh -L 8765:127.0.0.1:8765 HOST, then open the same address. With --sample N --blind the command
    draws clips, --blind --name NAME reviews them without their verdicts, and --summary then says how often
    the filter is wrong.

    Example: vidcurate review run
    """
    refuse_training_run(run, "report")
    if sample is not None and not blind:
        raise InputError("--sample N and --blind go together: a sample is reviewed without the verdicts.")
    if blind and sample is None and name is None:
        raise InputError("--blind: which sample? Draw one with --sample N --blind, or name it with --name.")
    if summary and sample is not None:
        raise InputError("--summary and --sample exclude each other. Draw the sample first.")
    if sample is not None:
        _draw(run, sample, seed, name, to_json=to_json)
    elif summary:
        _sum_up(run, level, to_json=to_json)
    else:
        _serve(run, videos, port, reviewer, name if blind else None, to_json=to_json)


def _serve(
    run: Path,
    videos: Path | None,
    port: int | None,
    reviewer: str | None,
    sample: str | None,
    *,
    to_json: bool,
) -> None:
    from vidcurate.curation.review.decide import login_name
    from vidcurate.curation.review.serve import serve_review

    def announce(address: str) -> None:
        if to_json:
            print(json.dumps({"url": address, "run": str(run)}), flush=True)
        else:
            print(f"review → {address}", flush=True)
            print("Open this address in a browser. Ctrl-C stops the app.", file=sys.stderr)

    folder = videos or known_videos(run)
    if videos is None and folder is not None and not folder.is_dir():
        print(f"{folder}: the videos are not there; clips have no pictures. Add --videos.", file=sys.stderr)
        folder = None
    with suppress(KeyboardInterrupt):
        serve_review(
            run,
            videos=folder,
            port=port,
            reviewer=reviewer or login_name(),
            blind_sample=sample,
            announce=announce,
        )


def _draw(run: Path, size: int, seed: int, name: str | None, *, to_json: bool) -> None:
    from vidcurate.curation.review_decisions.blind_sample import path_of
    from vidcurate.curation.review_decisions.draw_sample import draw_sample

    drawn = draw_sample(run, size, seed=seed, name=name)
    strata = [
        {"stratum": stratum, "clips": count, "drawn": list(drawn.strata.values()).count(stratum)}
        for stratum, count in drawn.populations.items()
    ]
    found = {"sample": drawn.name, "seed": seed, "drawn": len(drawn.strata)}
    print_summary(
        {**found, "file": str(path_of(run, drawn.name)), "strata": strata},
        title=f"blind sample → {run}",
        to_json=to_json,
    )
    if not to_json:
        print(
            f"Review it: vidcurate review {run} --blind --name {drawn.name}. "
            f"Then: vidcurate review {run} --summary",
            file=sys.stderr,
        )


def _sum_up(run: Path, level: float, *, to_json: bool) -> None:
    from vidcurate.curation.report.review_summary import review_summary

    found = review_summary(run, level=level)
    if to_json:
        print(json.dumps(found))
        return
    samples: list[dict[str, Any]] = found.pop("blind_samples")
    print_summary(found, title=f"review → {run}", to_json=False)
    for one in samples:
        name = one.pop("sample")
        print_summary(one, title=f"blind sample {name}", to_json=False)
