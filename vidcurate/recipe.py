"""Strict YAML to frozen models.

A recipe is a whole file, readable alone: no inheritance, no interpolation. An unknown key is an error
that names the file, the line and the nearest key that exists; so is a value of the wrong kind. Numbers
follow YAML 1.2 (`1e-4` is a number, `on` is a word). `--set a.b=c` goes through the same door.
"""

import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from vidcurate.errors import RecipeError


class Recipe(BaseModel):
    """Base of every recipe model: frozen, an unknown key is an error, docstrings describe the fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, use_attribute_docstrings=True
    )


M = TypeVar("M", bound=Recipe)


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's numbers and booleans."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag not in _REPLACED]
    for _REPLACED in [{"tag:yaml.org,2002:float", "tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp"}]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+|[0-9]+\.[0-9]*)$"),
    list("-+.0123456789"),
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|false)$"), list("tf"))

Path_ = tuple[str | int, ...]


def _lines(node: yaml.Node, path: Path_, where: str, lines: dict[Path_, int]) -> None:
    """Record the line of each key in `lines`; a key given twice is an error."""
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*path, _key(key))
            if inner in lines:
                raise RecipeError(
                    f"{where}:{key.start_mark.line + 1}: {_dotted(inner)} is given twice "
                    f"(first on line {lines[inner]}); keep one."
                )
            lines[inner] = key.start_mark.line + 1
            _lines(value, inner, where, lines)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            _lines(value, (*path, number), where, lines)


def _key(node: yaml.Node) -> str:
    return str(node.value)


def _dotted(path: Sequence[str | int]) -> str:
    return ".".join(str(part) for part in path) or "(the whole file)"


def _known_keys(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Return the keys allowed beside the last part of `path`, walking the model's JSON schema."""
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})

    def branches(node: dict[str, Any]) -> list[dict[str, Any]]:
        if "$ref" in node:
            return branches(definitions[node["$ref"].rsplit("/", 1)[-1]])
        found = [node]
        for word in ("anyOf", "oneOf", "allOf"):
            for inner in node.get(word, []):
                found.extend(branches(inner))
        return found

    nodes = branches(schema)
    for part in path[:-1]:
        step: list[dict[str, Any]] = []
        for node in nodes:
            if isinstance(part, int) and isinstance(node.get("items"), dict):
                step.extend(branches(node["items"]))
            elif isinstance(part, str) and part in node.get("properties", {}):
                step.extend(branches(node["properties"][part]))
            elif isinstance(part, str) and isinstance(node.get("additionalProperties"), dict):
                step.extend(branches(node["additionalProperties"]))
        nodes = step or nodes  # a part that names a union's member is not in the document
    return sorted({key for node in nodes for key in node.get("properties", {})})


def _line_of(path: Path_, lines: dict[Path_, int]) -> int | None:
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return lines.get(())


def _complaint(error: Any, model: type[BaseModel], where: str, lines: dict[Path_, int]) -> str:
    path: Path_ = tuple(error["loc"])
    line = _line_of(path, lines)
    place = f"{where}:{line}" if line else where
    name = _dotted(path)
    if error["type"] == "extra_forbidden":
        known = _known_keys(model, path)
        near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.5)
        if near:
            return f"{place}: {name} is not a setting. Did you mean {_dotted((*path[:-1], near[0]))}?"
        return f"{place}: {name} is not a setting; the settings here are {', '.join(known) or 'none'}."
    if error["type"] == "missing":
        return f"{place}: {name} is missing and has no default; add it."
    message = error["msg"].removeprefix("Value error, ")
    given = json.dumps(error["input"], default=str)
    if len(given) > 80:
        given = given[:77] + "..."
    return f"{place}: {name} is {given}: {message[:1].lower()}{message[1:]}."


def _override(document: dict[str, Any], setting: str) -> Path_:
    """Apply one `a.b.0.c=value` to the raw document and return its path."""
    name, equals, text = setting.partition("=")
    if not equals or not name:
        raise RecipeError(f"--set {setting}: write it as key=value, for example --set seed=7.")
    path: list[str | int] = [int(part) if part.isdigit() else part for part in name.split(".")]
    place: Any = document
    for number, part in enumerate(path[:-1]):
        if isinstance(place, list):
            if not isinstance(part, int) or part >= len(place):
                raise RecipeError(f"--set {setting}: {_dotted(path[:number])} has {len(place)} entries.")
            place = place[part]
        else:
            place = place.setdefault(str(part), {})
    try:
        value = yaml.load(text, Loader=_Loader)
        place[path[-1] if isinstance(place, list) else str(path[-1])] = value
    except (yaml.YAMLError, TypeError, IndexError) as error:
        raise RecipeError(f"--set {setting}: cannot be applied ({error}).") from error
    return tuple(path)


def _plain(value: Any) -> Any:
    """Turn YAML's keys into strings, as JSON has them (`51:` in a bucket table is the key "51")."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def parse(text: str, model: type[M], *, where: str = "recipe", settings: Sequence[str] = ()) -> M:
    """Return `text` (YAML) as a `model`; `settings` are `key=value` overrides, applied in order.

    Raises RecipeError, in one line, for what is not YAML, not a mapping, an unknown or repeated key, or a
    value that does not fit. `where` is the name that the message begins with.
    """
    lines: dict[Path_, int] = {}
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is not None:
            _lines(node, (), where, lines)
        document = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}:{mark.line + 1}" if mark else where
        problem = getattr(error, "problem", None) or str(error)
        raise RecipeError(f"{place}: not YAML: {problem}.") from error
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise RecipeError(f"{where}: a recipe is a mapping of settings, not a {type(document).__name__}.")
    document = _plain(document)
    for setting in settings:
        path = _override(document, setting)
        lines.pop(path, None)
    try:
        # JSON mode: lists become tuples and strings paths, while "4" stays no integer.
        return model.model_validate_json(json.dumps(document))
    except ValidationError as error:
        problems = error.errors(include_url=False)
        problems.sort(key=lambda problem: problem["type"] != "extra_forbidden")
        raise RecipeError(_complaint(problems[0], model, where, lines)) from error
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{where}: {error}.") from error


def load(path: Path | str, model: type[M], *, settings: Sequence[str] = ()) -> M:
    """Return the recipe file at `path` as a `model`. Raises RecipeError."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: the recipe cannot be read ({error}).") from error
    return parse(text, model, where=str(path), settings=settings)


def json_schema(model: type[Recipe], title: str) -> str:
    """Return the JSON Schema of `model` for editors, as stable text."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}
    schema["title"] = title
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"
