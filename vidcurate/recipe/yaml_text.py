"""YAML 1.2 text of recipes, with the line of every key; loaded only for YAML."""

import re
from typing import Any

import yaml

from vidcurate.errors import RecipeError

Path_ = tuple[str | int, ...]


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


def _lines(node: yaml.Node, path: Path_, where: str, lines: dict[Path_, int]) -> None:
    """Record the line of each key in `lines`; a key given twice is an error."""
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*path, _key(key))
            if inner in lines:
                raise RecipeError(
                    f"{where}:{key.start_mark.line + 1}: {'.'.join(map(str, inner))} is given twice "
                    f"(first on line {lines[inner]}); keep one."
                )
            lines[inner] = key.start_mark.line + 1
            _lines(value, inner, where, lines)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            _lines(value, (*path, number), where, lines)


def _key(node: yaml.Node) -> str:
    return str(node.value)


def document(text: str, where: str) -> tuple[Any, dict[Path_, int]]:
    """Parse the text; return the document, and the line of each key (from 1) by its path.

    Raises RecipeError for invalid YAML and for a repeated key.
    """
    lines: dict[Path_, int] = {}
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is not None:
            _lines(node, (), where, lines)
        return yaml.load(text, Loader=_Loader), lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}:{mark.line + 1}" if mark else where
        problem = getattr(error, "problem", None) or str(error)
        raise RecipeError(f"{place}: not YAML: {problem}.") from error


def value(text: str) -> Any:
    """Parse one value. Raises ValueError for invalid YAML."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
