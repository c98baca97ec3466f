"""Commands, columns, recipe keys and error classes are documented, and documented commands run."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import typer.main
from pydantic import BaseModel

from docs import generate
from tests.chat_server import chatting
from tests.forked_runs import Forks
from vidcurate import errors
from vidcurate.cli.common import SECTIONS, app
from vidcurate.curation.clip_table import schema

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_the_made_pages_and_schemas_are_in_step_with_the_code() -> None:
    for path, text in generate.pages().items():
        assert path.exists(), f"run `python docs/generate.py`: {path} is missing"
        assert path.read_text(encoding="utf-8") == text, f"run `python docs/generate.py`: {path} is behind"


def test_every_command_is_documented_and_its_help_has_an_example() -> None:
    group = typer.main.get_command(app)
    page = (DOCS / "cli.md").read_text(encoding="utf-8")

    for name, command in group.commands.items():  # type: ignore[attr-defined]
        assert f"## vidcurate {name}\n" in page
        assert "Example: vidcurate " in (command.help or ""), name


def test_the_help_lists_every_command_in_the_order_of_the_pipeline_and_cuts_no_sentence() -> None:
    reported = squeezed(run("vidcurate --help", ROOT))
    group = typer.main.get_command(app)
    commands = group.commands  # type: ignore[attr-defined]

    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(commands)
    for command in commands.values():
        assert squeezed((command.help or "").split("\n\n")[0]) in reported


def test_every_column_is_documented() -> None:
    page = (DOCS / "columns.md").read_text(encoding="utf-8")

    for name in schema.COLUMNS:
        assert f"`{name}`" in page


def test_every_error_class_is_documented_and_drawn_in_the_tree() -> None:
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    tree = errors.__doc__ or ""

    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.VidcurateError):
            assert f"`{name}`" in page
            assert name in tree


def _models() -> list[type[BaseModel]]:
    seen: dict[str, type[BaseModel]] = {}
    for model, _ in generate.RECIPES.values():
        generate.collect_models(model, seen)
    return list(seen.values())


@pytest.mark.parametrize("model", _models(), ids=lambda model: model.__name__)
def test_every_recipe_key_says_what_it_means(model: type[BaseModel]) -> None:
    silent = [name for name, field in model.model_fields.items() if not field.description]

    assert not silent, f"{model.__name__} has keys without a description: {', '.join(silent)}"


def test_the_page_of_keys_and_the_schemas_repeat_no_key() -> None:
    page = (DOCS / "recipe-keys.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\w+)$", page, re.M)

    assert sorted(headings) == sorted(model.__name__ for model in _models())
    assert len(page.encode()) < 45_000
    schema = json.loads((ROOT / "recipes" / "experiment.schema.json").read_text(encoding="utf-8"))
    assert set(schema["$defs"]) == {"ArmSpec", "SegmentSpec", "TrainRecipe"}
    assert schema["$defs"]["TrainRecipe"] == {"$ref": "train.schema.json"}


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if "://" in target:
                continue
            name, _, anchor = target.partition("#")
            leads_to = page.parent / name if name else page
            assert leads_to.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in _anchors(leads_to), f"{page.name} links to {target}"


def test_the_list_of_pages_leads_to_each_page_and_the_readme_to_the_list() -> None:
    listed = re.findall(r"\]\(([^)]+)\)", (DOCS / "README.md").read_text(encoding="utf-8"))

    assert set(listed) == {page.name for page in DOCS.glob("*.md") if page.name != "README.md"}
    assert "(docs/README.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def _examples() -> list[str]:
    group = typer.main.get_command(app)
    return [
        match
        for command in group.commands.values()  # type: ignore[attr-defined]
        for match in re.findall(r"Example: (vidcurate .*)", command.help or "")
    ]


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "100",
        "OMP_NUM_THREADS": "1",
    }


def run(command: str, folder: Path) -> str:
    done = subprocess.run(
        shlex.split(command), cwd=folder, capture_output=True, text=True, env=_environment(), check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_examples_of_the_help_run_in_the_order_of_the_pipeline(forks: Forks, tmp_path: Path) -> None:
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    examples = {command.split()[1]: command for command in _examples()}
    pipeline = [
        "demo-data",
        "ingest",
        "probe",
        "score",
        "filter",
        "split-by-difficulty",
        "build-shards",
        "report",
    ]
    rest = [name for name in examples if name not in pipeline and name != "curate"]

    for name in [*pipeline, *rest]:
        if name == "fetch-plan":  # the published form of the clips
            shutil.make_archive(str(tmp_path / "demo/parts/part0"), "zip", tmp_path / "demo/videos")
        if name == "review":  # runs until Ctrl-C
            answers_until_interrupted(examples[name], tmp_path)
            continue
        if name == "caption":  # a server of this test in the place of vLLM
            with chatting() as server:
                forks.call(examples[name].replace("http://127.0.0.1:8000/v1", server.url), tmp_path)
                assert server.asked
            continue
        if name == "push":  # the hub is out of reach in a test, and the command says so
            offline = {**_environment(), "HF_HUB_OFFLINE": "1"}
            done = subprocess.run(
                shlex.split(examples[name]),
                cwd=tmp_path,
                capture_output=True,
                text=True,
                env=offline,
                check=False,
            )
            assert (done.returncode, "HF_HUB_OFFLINE is set" in done.stderr) == (2, True), done.stderr
            continue
        forks.call(examples[name], tmp_path)
    recipe_run = examples["curate"].replace("run=run", "run=whole")
    settings = " --set ingest.metadata=demo/captions.csv --set ingest.videos=demo/videos"
    run(recipe_run + settings, tmp_path)

    assert set(examples) == {*pipeline, *rest, "curate"}


def answers_until_interrupted(command: str, folder: Path) -> None:
    """Start a command that serves a page, open the address that it prints, and stop it by Ctrl-C."""
    with subprocess.Popen(
        shlex.split(command), cwd=folder, stdout=subprocess.PIPE, text=True, env=_environment()
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            with httpx.Client(follow_redirects=True) as client:
                assert "<title>Review</title>" in client.get(address).text
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()


def console(page: Path) -> list[tuple[str, list[str]]]:
    """Return the commands of a page's console blocks, each with the output that the page shows."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_the_tutorials_commands_print_what_the_tutorial_shows(forks: Forks, tmp_path: Path) -> None:
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")

    for command, shown in console(DOCS / "tutorial.md"):
        starts_anew = command.startswith(("vidcurate demo-data", "python -m trainer report"))
        printed = squeezed(run(command, tmp_path) if starts_anew else forks.call(command, tmp_path))
        if shown:
            assert squeezed("\n".join(shown)) == printed, command
