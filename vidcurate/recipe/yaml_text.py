"""YAML 1.2 text of recipes, with the line of every key; loaded only for YAML."""

import re
from typing import Any

import yaml

from vidcurate.errors import RecipeError

Path_ = tuple[str | int, ...]


# A recipe has a few hundred values, in fewer than ten levels.
MOST_LETTERS = 1 << 20
MOST_VALUES = 100_000
MOST_LEVELS = 50
MOST_DIGITS = 300  # of an integer; no setting has more than 20
# What the constructors of PyYAML raise besides its own errors: `!!int ""`, an integer of 5,000 digits.
_WRONG_SCALAR = (ValueError, TypeError, AttributeError, LookupError, OverflowError)


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's numbers and booleans, and the types of JSON alone."""


_TYPES = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map")}
_Loader.yaml_constructors = {
    tag: made for tag, made in yaml.SafeLoader.yaml_constructors.items() if tag is None or tag in _TYPES
}

_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag not in _REPLACED]
    for _REPLACED in [{f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "timestamp")}]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+|[0-9]+\.[0-9]*)$"),
    list("-+.0123456789"),
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|false)$"), list("tf"))
_INTEGER = re.compile(r"^([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INTEGER, list("-+0123456789"))


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    """Return an integer of YAML 1.2; those of 1.1 are octal at a 0, and 1:30 is 90, in quadratic time."""
    text = str(loader.construct_scalar(node))
    if not _INTEGER.match(text) or len(text) > MOST_DIGITS:
        raise ValueError(f"{text[:40]!r} is no integer, or one of more than {MOST_DIGITS} digits")
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


class _Lines:
    """Collects the line of each key; a key given twice is an error, and so is a document without an end.

    Aliases make a small text a tree of any size, or one that holds itself: values and letters are counted.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.lines: dict[Path_, int] = {}
        self.count = 0
        self.letters = 0

    def add(self, node: yaml.Node, path: Path_, around: tuple[int, ...] = ()) -> None:
        self.count += 1
        line = node.start_mark.line + 1
        if id(node) in around:
            raise RecipeError(f"{self.where}:{line}: an alias refers to what it is a part of; write it out.")
        if self.count > MOST_VALUES:
            raise RecipeError(f"{self.where}: has more than {MOST_VALUES:,} values, its aliases written out.")
        if isinstance(node, yaml.ScalarNode):
            self.letters += len(node.value)
        if self.letters > MOST_LETTERS:
            raise RecipeError(
                f"{self.where}: has more than {MOST_LETTERS:,} letters, its aliases written out."
            )
        if len(path) > MOST_LEVELS:
            raise RecipeError(f"{self.where}:{line}: is nested more than {MOST_LEVELS} levels deep.")
        self.lines.setdefault(path, line)
        around = (*around, id(node))
        if isinstance(node, yaml.MappingNode):
            given: set[Path_] = set()
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise RecipeError(f"{self.where}:{key.start_mark.line + 1}: a key is a word.")
                inner = (*path, str(key.value))
                if inner in given:
                    raise RecipeError(
                        f"{self.where}:{key.start_mark.line + 1}: {'.'.join(map(str, inner))} is given twice "
                        f"(first on line {self.lines[inner]}); keep one."
                    )
                given.add(inner)
                self.lines[inner] = key.start_mark.line + 1
                self.add(value, inner, around)
        elif isinstance(node, yaml.SequenceNode):
            for number, value in enumerate(node.value):
                self.add(value, (*path, number), around)


def document(text: str, where: str) -> tuple[Any, dict[Path_, int]]:
    """Parse the text; return the document, and the line of each key (from 1) by its path.

    Raises RecipeError for invalid YAML, for a repeated key, and for a document that is too large, too deep or
    refers to itself.
    """
    found = _Lines(where)
    if len(text) > MOST_LETTERS:
        raise RecipeError(f"{where}: has {len(text):,} letters; a recipe has at most {MOST_LETTERS:,}.")
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is not None:
            found.add(node, ())
        return yaml.load(text, Loader=_Loader), found.lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}:{mark.line + 1}" if mark else where
        problem = getattr(error, "problem", None) or str(error)
        raise RecipeError(f"{place}: not YAML: {problem}.") from error
    except RecursionError as error:
        raise RecipeError(f"{where}: is nested more than {MOST_LEVELS} levels deep.") from error
    except _WRONG_SCALAR as error:
        raise RecipeError(f"{where}: a value cannot be read ({str(error)[:200]}).") from error


def value(text: str) -> Any:
    """Parse one value. Raises ValueError for invalid YAML, and for what `document` refuses."""
    try:
        return document(text, "value")[0]
    except RecipeError as error:
        raise ValueError(str(error).rstrip(".")) from error
