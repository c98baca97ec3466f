"""Write the pages that follow from the code: commands, columns, recipe keys, errors, and the JSON Schemas.

    python docs/generate.py          # write them
    python docs/generate.py --check  # say which are out of step, exit 1

A test runs the check, so a command, a column, a key or an error class cannot go undocumented.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer.main
from pydantic import BaseModel

import trainer.report.experiment.run_arms
import trainer.train  # noqa: F401 - with all errors that a training or an experiment can end with
from trainer.recipe.recipe import TrainRecipe
from trainer.report.experiment.spec import ExperimentSpec
from vidcurate import errors
from vidcurate.cli.main import app
from vidcurate.curate import CurateRecipe
from vidcurate.curation.clip_table import schema
from vidcurate.recipe import recipe

ROOT = Path(__file__).resolve().parents[1]
MADE = "<!-- Made by docs/generate.py; change the code, then run it. -->\n"
RECIPES: dict[str, tuple[type[recipe.Recipe], str]] = {
    "curate": (CurateRecipe, "A curation recipe: `vidcurate curate RECIPE`"),
    "train": (TrainRecipe, "A training recipe: `python -m trainer RECIPE`"),
    "experiment": (ExperimentSpec, "An experiment: `python -m trainer experiment FILE`"),
}
# A recipe that holds another one whole: keys and schema of the inner one are not repeated.
REFERS = {"experiment": "train"}


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    return f"`{value}`" if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""


def commands() -> str:
    """Return docs/cli.md."""
    group: Any = typer.main.get_command(app)
    lines = [
        "# Commands\n",
        MADE,
        "stdout has the summary, stderr the progress. Exit code 0: done; 1: the work failed; 2: the request",
        "was wrong; 3: done and written, and a larger share failed than the limit that was set.",
        "`--traceback` before the command shows where an error came from.\n",
    ]
    for name, command in sorted(group.commands.items()):
        lines.append(f"## vidcurate {name}\n")
        lines.append((command.help or "").strip() + "\n")
        if not command.params:
            continue
        lines.append("| argument | meaning | default |\n| --- | --- | --- |")
        for parameter in command.params:
            if parameter.name == "help":
                continue
            shown = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
            lines.append(f"| `{shown}` | {getattr(parameter, 'help', '') or ''} | {_default(parameter)} |")
        lines.append("")
    return "\n".join(lines)


def columns() -> str:
    """Return docs/columns.md."""
    lines = [
        "# Columns\n",
        MADE,
        "One table runs through every stage, a row a clip. A stage adds its columns and takes none away.\n",
    ]
    for stage in schema.STAGES:
        lines.append(f"## {stage}\n\n| column | type | unit | meaning |\n| --- | --- | --- | --- |")
        for name, column in schema.COLUMNS.items():
            if column.stage == stage:
                lines.append(f"| `{name}` | {column.dtype} | {column.unit} | {column.meaning} |")
        lines.append("")
    return "\n".join(lines)


def _tree(error: type[errors.VidcurateError]) -> Iterator[type[errors.VidcurateError]]:
    yield error
    # Not as modules were loaded: first the errors of vidcurate, as they stand there, then the rest.
    children = sorted(
        error.__subclasses__(), key=lambda child: child.__module__ * (child.__module__ != errors.__name__)
    )
    for child in children:
        yield from _tree(child)


def error_classes() -> str:
    """Return docs/errors.md."""
    lines = [
        "# Errors\n",
        MADE,
        "Every error that a user can meet is one of these, and one line.\n",
        "| class | exit code | meaning |\n| --- | --- | --- |",
    ]
    for error in _tree(errors.VidcurateError):
        meaning = " ".join((error.__doc__ or "").split())
        lines.append(f"| `{error.__name__}` | {error.exit_code} | {meaning} |")
    return "\n".join(lines) + "\n"


def collect_models(model: type[BaseModel], seen: dict[str, type[BaseModel]]) -> None:
    """Collect `model` and the models that its fields hold, outermost first."""
    if model.__name__ in seen:
        return
    seen[model.__name__] = model
    for field in model.model_fields.values():
        stack: list[Any] = [field.annotation]
        while stack:
            kind = stack.pop()
            stack.extend(getattr(kind, "__args__", ()))
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                collect_models(kind, seen)


BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
NAMES = {str: "text", Path: "path", type(None): "null"}


def _bounds(metadata: Iterable[Any]) -> str:
    """Return the limits on a value, such as `>= 0, <= 1`."""
    flat = [inner for one in metadata for inner in getattr(one, "metadata", (one,))]
    found = (
        f"{sign} {getattr(one, name)}" for one in flat for name, sign in BOUNDS.items() if hasattr(one, name)
    )
    return ", ".join(found)


def _type(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Return a key's type in the words of YAML: text or null, list of float, text → int, auto or openvid."""
    kind, parts = get_origin(annotation), get_args(annotation)
    limits = f" ({_bounds(metadata)})" if _bounds(metadata) else ""
    if kind is Annotated:
        return _type(parts[0], parts[1:])
    if kind in (Union, UnionType):
        return " or ".join(_type(part) for part in parts) + limits
    if kind is Literal:
        return " or ".join("null" if part is None else str(part) for part in parts)
    if kind is dict:
        return f"{{{_type(parts[0])}: {_type(parts[1])}}}"
    if kind in (tuple, list) and (kind is list or parts[-1] is Ellipsis):
        return f"list of {_type(parts[0])}{limits}"
    if kind is tuple:
        return f"[{', '.join(_type(part) for part in parts)}]"
    return NAMES.get(annotation, getattr(annotation, "__name__", str(annotation))) + limits


def _shown(value: Any) -> str:
    if isinstance(value, BaseModel):
        return "its own defaults"
    if isinstance(value, (str, Path, float)):
        return f"`{value}`"
    return f"`{json.dumps(value, default=str)}`"  # null, true and lists as YAML has them


def _schema(name: str) -> str:
    """Return the JSON Schema of a recipe; a recipe within it refers to the schema of its own."""
    model, title = RECIPES[name]
    inside = REFERS.get(name)
    elsewhere = {RECIPES[inside][0].__name__: f"{inside}.schema.json"} if inside else {}
    return recipe.json_schema(model, title.split(":")[0], elsewhere)


def recipe_keys() -> str:
    """Return docs/recipe-keys.md."""
    lines = [
        "# Recipe keys\n",
        MADE,
        "A recipe is YAML, whole and readable alone. A key that is not here is an error.\n",
    ]
    listed: set[str] = set()
    for name, (model, title) in RECIPES.items():
        seen: dict[str, type[BaseModel]] = {}
        collect_models(model, seen)
        lines.append(f"# {title}\n\nJSON Schema for editors: `recipes/{name}.schema.json`.\n")
        if name in REFERS:
            inside = RECIPES[REFERS[name]][0].__name__
            lines.append(f"`recipe` is a whole {inside}: [its keys](#{inside.lower()}) are above.\n")
        for inner in seen.values():
            if inner.__name__ in listed:
                continue
            listed.add(inner.__name__)
            lines.append(f"## {inner.__name__}\n")
            lines.append(" ".join((inner.__doc__ or "").split()) + "\n")
            lines.append("| key | type | default | meaning |\n| --- | --- | --- | --- |")
            for key, field in inner.model_fields.items():
                default = (
                    "required"
                    if field.is_required()
                    else _shown(field.get_default(call_default_factory=True))
                )
                meaning = " ".join((field.description or "").split())
                lines.append(
                    f"| `{key}` | {_type(field.annotation, field.metadata)} | {default} | {meaning} |"
                )
            lines.append("")
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """Return every made file and what it should hold."""
    made = {
        ROOT / "docs" / "cli.md": commands(),
        ROOT / "docs" / "columns.md": columns(),
        ROOT / "docs" / "errors.md": error_classes(),
        ROOT / "docs" / "recipe-keys.md": recipe_keys(),
    }
    for name in RECIPES:
        made[ROOT / "recipes" / f"{name}.schema.json"] = _schema(name)
    return made


def main() -> None:
    behind = []
    for path, text in pages().items():
        if "--check" in sys.argv:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                behind.append(str(path.relative_to(ROOT)))
        else:
            path.write_text(text, encoding="utf-8")
    if behind:
        sys.exit(f"out of step with the code: {', '.join(behind)}. Run `python docs/generate.py`.")


if __name__ == "__main__":
    main()
