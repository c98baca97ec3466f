"""Recipe loader: strict YAML or JSON to frozen models.

A recipe is one complete file: no inheritance, no interpolation. An unknown key is an error that names the
file, the line and the nearest known key; so is a value of the wrong type. Numbers follow YAML 1.2 (`1e-4` is
a number, `on` is a word). `--set a.b=c` obeys the same rules. A file that ends in `.json` is JSON, and
reading it needs no YAML package on a GPU machine.
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from vidcurate.errors import RecipeError
from vidcurate.recipe import removed_keys
from vidcurate.recipe.removed_keys import branches, schema_of


class Recipe(BaseModel):
    """Base of every recipe model: frozen, no unknown keys, finite numbers; docstrings describe the fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, use_attribute_docstrings=True,
        allow_inf_nan=False,
    )  # fmt: skip


M = TypeVar("M", bound=Recipe)

# What a file is by its keys, and the command that reads it; for one that was given to another.
KINDS = (
    ("a training recipe", {"model", "stages"}, "python -m trainer"),
    ("a track recipe", {"clips", "target"}, "python -m trainer track"),
    ("an experiment", {"recipe", "arms"}, "python -m trainer experiment"),
    ("a curation recipe", {"run", "ingest"}, "vidcurate curate"),
)

Path_ = tuple[str | int, ...]
_NUMBER = re.compile(r"[0-9]{1,9}")  # the place of a value in a list
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_PLAIN_WORD = re.compile(r"([A-Za-z_/]|\.{1,2}/)[^#:\[\]{},]*")  # of --set: a string in YAML, too


def _dotted(path: Sequence[str | int]) -> str:
    text = ".".join(str(part) for part in path) or "(the whole file)"
    return text if len(text) <= 200 else f"{text[:197]}..."


def _nodes(model: type[BaseModel], path: Sequence[str | int]) -> list[Mapping[str, Any]]:
    """Return the parts of the model's JSON schema that hold the last part of `path`."""
    schema = schema_of(model)
    definitions = schema.get("$defs", {})
    nodes = [*branches(schema, definitions)]
    for part in path[:-1]:
        step: list[Mapping[str, Any]] = []
        for node in nodes:
            if isinstance(part, int) and isinstance(node.get("items"), dict):
                step.extend(branches(node["items"], definitions))
            elif isinstance(part, str) and part in node.get("properties", {}):
                step.extend(branches(node["properties"][part], definitions))
            elif isinstance(part, str) and isinstance(node.get("additionalProperties"), dict):
                step.extend(branches(node["additionalProperties"], definitions))
        # A part that names a union's member is not in the document; the member has it as its `kind`.
        member = [node for node in nodes if node.get("properties", {}).get("kind", {}).get("const") == part]
        nodes = step or member or nodes
    return nodes


def _order(error: Any, problems: Sequence[Any]) -> tuple[bool, bool, bool]:
    """Return the key by which problems are sorted: the first one is reported.

    A value that has the type of one member of a union is reported as that member's, not as another's.
    """
    at = tuple(error["loc"])[:-1]
    is_other_member = error["type"] in ("tuple_type", "dict_type") and any(
        tuple(other["loc"])[: len(at)] == at and len(other["loc"]) > len(error["loc"]) for other in problems
    )
    return error["type"] != "extra_forbidden", error["type"] == "missing", is_other_member


def _line_of(path: Path_, lines: dict[Path_, int]) -> int | None:
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return lines.get(())


def _in_document(path: Path_, document: Any) -> Path_:
    """Return `path` without the parts that name a union's member."""
    if path and "[" in str(path[-1]):  # a type such as tuple[str, ...]
        path = path[:-1]
    kept: list[str | int] = []
    for part in path[:-1]:
        is_index = isinstance(document, list) and isinstance(part, int)
        if is_index or (isinstance(document, dict) and part in document):
            document = document[part]
            kept.append(part)
    return (*kept, *path[-1:]) if isinstance(document, dict | list) else tuple(kept)


def _shown(setting: str) -> str:
    """Return a `--set` as the user gave it, shortened."""
    return f"--set {setting if len(setting) <= 80 else setting[:77] + '...'}"


def _option(path: Path_, error: Any, given: Mapping[Path_, str]) -> str:
    """Return the `--set` that gave the value at `path`, "" for a value of the file."""
    for at, setting in reversed(list(given.items())):
        is_inside = path[: len(at)] == at
        if is_inside and not (error["type"] == "missing" and path != at and len(path) <= len(at)):
            return _shown(setting)
    return ""


def _complaint(
    error: Any,
    model: type[BaseModel],
    where: str,
    lines: dict[Path_, int],
    document: dict[str, Any],
    given: Mapping[Path_, str],
) -> str:
    path = _in_document(tuple(error["loc"]), document)
    line = _line_of(path, lines)
    place = _option(path, error, given) or (f"{where}:{line}" if line else where)
    name = _dotted(path)
    if error["type"] == "extra_forbidden":
        nodes = _nodes(model, tuple(error["loc"]))
        if gone := removed_keys.message(frozenset(node.get("title", "") for node in nodes), str(path[-1])):
            return f"{place}: {name} is no longer a setting: {gone}."
        known = sorted({key for node in nodes for key in node.get("properties", {})})
        near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.5)
        if near:
            return f"{place}: {name} is not a setting. Did you mean {_dotted((*path[:-1], near[0]))}?"
        return f"{place}: {name} is not a setting; the settings here are {', '.join(known) or 'none'}."
    if error["type"] == "missing":
        return f"{place}: {name} is missing and has no default; add it."
    titles = frozenset(node.get("title", "") for node in _nodes(model, tuple(error["loc"])))
    for word in error["input"] if isinstance(error["input"], dict) else ():
        if gone := removed_keys.message(titles, f"{path[-1] if path else ''}.{word}"):
            return f"{place}: {name}.{word} is no longer a setting: {gone}."
    if error["type"] == "literal_error" and (
        gone := removed_keys.message(titles, f"{path[-1]}={error['input']}")
    ):
        return f"{place}: {name}: {error['input']} is no longer a choice: {gone}."
    message = error["msg"].removeprefix("Value error, ")
    message = f"{message[:1].lower()}{message[1:]}"
    if error["type"] == "value_error" and isinstance(error["input"], dict):  # of several keys together
        several = [(at[-1], one) for at, one in given.items() if at[: len(path)] == path and at != path]
        several.sort(key=lambda pair: not re.search(rf"\b{re.escape(str(pair[0]))}\b", message))
        with_ = f" (with {', '.join(_shown(one) for _, one in several[:3])})" if several else ""
        return f"{place}: {f'{name}: ' if path else ''}{message}{with_}."
    value = json.dumps(error["input"], default=str)
    if len(value) > 80:
        value = value[:77] + "..."
    return f"{place}: {name} is {value}: {message}."


def _other_kind(document: dict[str, Any], model: type[BaseModel], where: str) -> str:
    """Return a message when the document is a recipe for another command, or ""."""
    for name, keys, command in KINDS:
        if keys <= document.keys() and not keys <= model.model_fields.keys():
            return f"{where}: this is {name}; give it to `{command} {where}`."
    return ""


def _next_key(place: Any, words: list[str]) -> tuple[str | int, list[str]]:
    """Return the key or index that the first words name, and the other words; a known key may have dots."""
    if isinstance(place, list) and _NUMBER.fullmatch(words[0]):
        return int(words[0]), words[1:]
    dots = range(len(words), 1, -1) if isinstance(place, dict) else ()
    count = next((count for count in dots if ".".join(words[:count]) in place), 1)
    return ".".join(words[:count]), words[count:]


def _override(document: dict[str, Any], setting: str) -> Path_:
    """Apply one `a.b.0.c=value` to the raw document; return its path, or that of the first key it adds."""
    name, equals, text = setting.partition("=")
    if not equals or not name:
        raise RecipeError(f"{_shown(setting)}: write it as key=value, for example --set seed=7.")
    words, path, added = name.split("."), list[str | int](), tuple[str | int, ...]()
    place: Any = document
    while words:
        part, words = _next_key(place, words)
        path.append(part)
        if isinstance(place, list) and not (isinstance(part, int) and part < len(place)):
            raise RecipeError(f"{_shown(setting)}: {_dotted(path[:-1])} has {len(place)}, counted from 0.")
        if not isinstance(place, dict | list):
            raise RecipeError(
                f"{_shown(setting)}: {_dotted(path[:-1])} is a value, and has no settings inside."
            )
        if isinstance(place, dict) and part not in place and not added:
            added = tuple(path)
        if words:
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
    try:
        place[part] = _plain(_value(text), _shown(setting))
    except (ValueError, TypeError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)[:200]
        raise RecipeError(f"{_shown(setting)}: cannot be applied ({reason}).") from error
    return added or tuple(path)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _value(text: str) -> Any:
    """Return the value of a `--set`: parsed as JSON if possible (YAML gives the same), else as YAML.

    Without a YAML reader a plain word or path is itself, and anything else a ValueError.
    """
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError:
        pass
    try:
        from vidcurate.recipe import yaml_text
    except ImportError as error:
        if _PLAIN_WORD.fullmatch(text):
            return text
        raise ValueError("PyYAML is not installed here; write the value as JSON") from error
    return yaml_text.value(text)


def _plain(value: Any, where: str) -> Any:
    """Convert YAML keys to strings, as in JSON. Raises RecipeError, RecursionError."""
    if isinstance(value, dict):
        return {str(_plain(key, where)): _plain(inner, where) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, where) for inner in value]
    if isinstance(value, str) and (wrong := _NO_TEXT.search(value)):
        shown = json.dumps(value[max(0, wrong.start() - 20) : wrong.end() + 20])
        raise RecipeError(f"{where}: {shown} has a NUL byte or half of a character; remove it.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RecipeError(f"{twice} is given twice; keep one.")
    return found


def _from_json(text: str, where: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise RecipeError(f"{where}:{error.lineno}: not JSON: {error.msg}.") from error
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from error
    except RecursionError as error:
        raise RecipeError(f"{where}: is nested too deep.") from error
    except ValueError as error:
        raise RecipeError(f"{where}: {error}.") from error


def parse(text: str, model: type[M], *, where: str = "recipe", settings: Sequence[str] = ()) -> M:
    """Return `text` (YAML; JSON where `where` ends so) as a `model`; `settings` are `key=value` overrides.

    They are applied in order, and messages begin with `where`. Raises RecipeError, in one line, for what is
    not YAML or JSON, not a mapping, an unknown or repeated key, or a value that does not fit.
    """
    lines: dict[Path_, int] = {}
    if where.endswith(".json"):
        document = _from_json(text, where)
    else:
        try:
            from vidcurate.recipe import yaml_text
        except ImportError as error:
            raise RecipeError(f"{where}: PyYAML is not installed here; give the recipe as .json.") from error
        document, lines = yaml_text.document(text, where)
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise RecipeError(f"{where}: a recipe is a mapping of settings, not a {type(document).__name__}.")
    try:
        document = _plain(document, where)  # from Python 3.12 on, json reads deeper than functions call
    except RecursionError as error:
        raise RecipeError(f"{where}: is nested too deep.") from error
    given: dict[Path_, str] = {}
    for setting in settings:
        path = _override(document, setting)
        given[path] = setting
        for place in [place for place in lines if place[: len(path)] == path]:
            del lines[place]
    try:
        # JSON mode: lists become tuples and strings paths, while "4" stays no integer.
        return model.model_validate_json(json.dumps(document))
    except ValidationError as error:
        problems = error.errors(include_url=False)
        first = min(problems, key=lambda problem: _order(problem, problems))
        complaint = _complaint(first, model, where, lines, document, given)
        raise RecipeError(_other_kind(document, model, where) or complaint) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise RecipeError(f"{where}: {error}.") from error


def load(path: Path | str, model: type[M], *, settings: Sequence[str] = ()) -> M:
    """Return the recipe file at `path` as a `model`. Raises RecipeError."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RecipeError(
            f"{path}: no such recipe file; `vidcurate recipes list` names those that are installed."
        ) from error
    except IsADirectoryError as error:
        raise RecipeError(
            f"{path}: a folder, and a recipe's file is needed; a run keeps its own as RUN/recipe.json."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise RecipeError(f"{path}: the recipe cannot be read ({why}).") from error
    return parse(text, model, where=str(path), settings=settings)


def _referenced(node: Any) -> set[str]:
    """Return the names of all definitions that a part of a JSON Schema refers to."""
    if isinstance(node, dict):
        found = {node["$ref"].rsplit("/", 1)[-1]} if "$ref" in node else set()
        return found.union(*map(_referenced, node.values()))
    return set().union(*map(_referenced, node)) if isinstance(node, list) else set()


def json_schema(model: type[Recipe], title: str, elsewhere: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the JSON Schema of `model` for editors, as stable text.

    `elsewhere` maps the name of a model to the file of its schema: the text refers to that file.
    """
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}
    schema["title"] = title
    definitions = schema.pop("$defs", {})
    for name, file in elsewhere.items():
        definitions[name] = {"$ref": file}
    needed: set[str] = set()
    missing = _referenced(schema)
    while missing:
        needed |= missing
        missing = set().union(*(_referenced(definitions.get(name)) for name in missing)) - needed
    schema["$defs"] = {name: definitions[name] for name in needed if name in definitions}
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"
