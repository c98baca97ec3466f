"""Moved commands: the module paths of version 0.1 print the new command.

`python -m trainer.sample` and the others, for one release. An import hook serves the paths instead of files,
so that the package root stays short.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from importlib.util import spec_from_loader
from types import CodeType, ModuleType

MOVED = {
    "encode_shards": "precompute",
    "gallery": "gallery",
    "hardware": "gpus",
    "inspect": "inspect",
    "plan": "plan",
    "sample": "sample",
    "weights": "convert",
}


class _Moved(importlib.abc.InspectLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Return the code that `python -m` runs: one line on stderr, exit code 2."""
        now = MOVED[fullname.rpartition(".")[2]]
        line = f"error: python -m {fullname} is now: python -m trainer {now}"
        return compile(f"import sys; print({line!r}, file=sys.stderr); sys.exit(2)", fullname, "exec")

    def get_source(self, fullname: str) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError(f"{module.__name__} has moved; docs/decisions.md lists the new path.")


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        return spec_from_loader(fullname, _Moved()) if package == "trainer" and name in MOVED else None


def install() -> None:
    """Register the import hook of the old module paths, after all other finders."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
