"""Command `caption`: captions that a vision-language model writes."""

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from vidcurate.cli.common import (
    Json,
    MaxFailureShare,
    RecipeFile,
    Run,
    Settings,
    VideosOrUrl,
    Workers,
    app,
    print_summary,
    spec_of,
    stage_progress,
    videos_or_url_of,
)
from vidcurate.errors import InputError
from vidcurate.executor.map_clips import usable_cpus


@app.command()
def caption(
    run: Run,
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", help="Address of the server, with its /v1.", metavar="URL"),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Name of the model, as the server lists it.", metavar="NAME")
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt",
            help="Caption to ask for: long, short, or one of the recipe's prompts. May be repeated. "
            "Default: all.",
            metavar="NAME",
        ),
    ] = None,
    videos: VideosOrUrl = None,
    workers: Workers = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Ask also for captions that a clip has, and replace them.")
    ] = False,
    price: Annotated[
        str | None,
        typer.Option(
            "--price-per-million-tokens", help="Two prices, for the estimate: 0.15,0.60.", metavar="IN,OUT"
        ),
    ] = None,
    only_estimate: Annotated[
        bool,
        typer.Option("--estimate", help="Ask about 8 clips, print what the rest costs, write no table."),
    ] = False,
    max_failure_share: MaxFailureShare = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    to_json: Json = False,
) -> None:
    """Ask a vision-language model for captions, through vLLM, SGLang or any OpenAI-compatible server.

    Each answer is kept in RUN/captions.jsonl; the same command resumes and asks nothing twice. A caption that
    a clip has stays, unless --replace. The key comes from VIDCURATE_API_KEY or OPENAI_API_KEY. Run `vidcurate
    score` and the later stages afterwards.

    Example: vidcurate caption run --endpoint http://127.0.0.1:8000/v1 --model Qwen/Qwen3-VL-8B-Instruct
    """
    from vidcurate.curation.captioning.estimate import parse_price
    from vidcurate.curation.captioning.spec import CaptionSpec
    from vidcurate.curation.captioning.stage import run_caption
    from vidcurate.curation.clip_table.rejection_ledger import check_share

    spec = spec_of(CaptionSpec, recipe, settings, endpoint=endpoint, model=model, replace=replace or None)
    if prompt:
        unknown = [name for name in prompt if name not in spec.prompts]
        if unknown:
            raise InputError(f"--prompt {unknown[0]}: no such prompt. Prompts: {', '.join(spec.prompts)}.")
        spec = spec.model_copy(update={"prompts": {name: spec.prompts[name] for name in prompt}})
    with stage_progress(run, "caption", quiet=to_json) as progress:
        summary = run_caption(
            run,
            spec,
            videos=videos_or_url_of(run, videos),
            price=None if price is None else parse_price(price),
            only_estimate=only_estimate,
            num_workers=workers or usable_cpus(),
            say=lambda line: print(line, file=sys.stderr, flush=True),
            progress=progress,
        )
    fields = asdict(summary)
    if not to_json:
        fields["estimate"] = None if summary.estimate is None else summary.estimate.text()
    print_summary(fields, title=f"caption → {run}", to_json=to_json)
    check_share(
        summary.clips_without_answer,
        summary.rows_in,
        max_failure_share,
        what="got no answer",
        key="--max-failure-share",
        see="The same command asks for them again.",
    )
