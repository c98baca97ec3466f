"""Loading of own scores: `file.py:function`, or an entry point's name.

The entry points are those of the group `vidcurate.scores`.
The name of the function's first parameter says what the function gets: `frames`, `caption` or `row`.
Attributes of the function are its settings: `unit`, and for frames `num_frames` and `short_side_px`.
"""

import hashlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from vidcurate.errors import InputError

GROUP = "vidcurate.scores"
Takes = Literal["frames", "caption", "row"]
_DEFAULTS = {"unit": "", "num_frames": 5, "short_side_px": 256}
_MOST_FRAMES, _MOST_PX = 256, 2160


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnScore:
    """Own score: `source` as given on the command line, and what its function gets.

    `digest` is the SHA-256 of the function's file: another file scores every clip again.
    """

    source: str
    name: str
    takes: Takes
    unit: str
    num_frames: int
    short_side_px: int
    digest: str


@cache
def function_of(source: str) -> Callable[..., Any]:
    """Return the function; a process imports its file once. Raises InputError."""
    file, colon, name = source.rpartition(":")
    try:
        if colon:
            with redirect_stdout(sys.stderr):  # a summary in JSON has stdout to itself
                found = getattr(_module(Path(file).resolve()), name, None)
        else:
            with redirect_stdout(sys.stderr):
                found = _entry_point(source).load()
    except InputError:
        raise
    except Exception as error:  # the user's own code
        raise InputError(
            f"--score {source}: cannot be imported ({type(error).__name__}: {error})."
        ) from error
    if not inspect.isroutine(found):
        raise InputError(f"--score {source}: {file or GROUP} has no function {name or source}.")
    return found


def _module(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"--score {path}: no such file. Write FILE.py:FUNCTION.")
    name = f"vidcurate_own_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise InputError(f"--score {path}: not a Python file.")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]


def _entry_point(name: str) -> importlib.metadata.EntryPoint:
    found = importlib.metadata.entry_points(group=GROUP)
    if name not in found.names:
        there = ", ".join(sorted(found.names)) or "none is installed"
        raise InputError(f"--score {name}: neither FILE.py:FUNCTION nor an entry point of {GROUP} ({there}).")
    return found[name]


def load_scores(sources: Sequence[str]) -> tuple[OwnScore, ...]:
    """Return the scores, in the order given. Raises InputError, in one line, for what cannot be run."""
    scores = tuple(_score(_absolute(source)) for source in sources)
    names = [score.name for score in scores]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"--score: {name} is given {names.count(name)} times; each needs its own name.")
    return scores


def _absolute(source: str) -> str:
    file, colon, name = source.rpartition(":")
    return f"{Path(file).resolve()}:{name}" if colon else source


def _score(source: str) -> OwnScore:
    function = function_of(source)
    name = source.rpartition(":")[2]
    try:
        first = next(iter(inspect.signature(function).parameters), "")
        digest = hashlib.sha256(Path(inspect.getfile(function)).read_bytes()).hexdigest()
    except (TypeError, ValueError, OSError) as error:
        raise InputError(f"--score {source}: not a function of a Python file ({error}).") from error
    if first not in get_args(Takes):
        raise InputError(
            f"--score {source}: its first parameter is {first or 'missing'}; name it frames, caption or row."
        )
    settings: dict[str, Any] = {key: getattr(function, key, default) for key, default in _DEFAULTS.items()}
    for key, most in (("num_frames", _MOST_FRAMES), ("short_side_px", _MOST_PX)):
        if type(settings[key]) is not int or not 1 <= settings[key] <= most:
            raise InputError(
                f"--score {source}: {name}.{key} is {settings[key]!r}; a whole number from 1 to {most}."
            )
    return OwnScore(
        source=source,
        name=name,
        takes=first,  # type: ignore[arg-type]
        unit=str(settings["unit"]),
        num_frames=settings["num_frames"],
        short_side_px=settings["short_side_px"],
        digest=digest,
    )
