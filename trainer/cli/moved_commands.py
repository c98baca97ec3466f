"""Moved commands: the module paths of version 0.1 print the new command.

`python -m trainer.sample` and the others, for one release. An import hook serves the paths instead of files,
so that the package root stays short. It imports what `python -m` has imported: Ctrl-C has no handler yet.
"""

import sys
from importlib.machinery import ModuleSpec
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


class _Moved:
    def get_code(self, fullname: str) -> CodeType:
        """Return the code that `python -m` runs: one line on stderr, exit code 2."""
        now = MOVED[fullname.rpartition(".")[2]]
        line = f"error: python -m {fullname} is now: python -m trainer {now}"
        return compile(f"import sys; print({line!r}, file=sys.stderr); sys.exit(2)", fullname, "exec")

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError(f"{module.__name__} has moved; docs/decisions.md lists the new path.")


class _Finder:
    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package != "trainer" or name not in MOVED:
            return None
        return ModuleSpec(fullname, _Moved())  # type: ignore[arg-type]  # no load_module: Python has none


def install() -> None:
    """Register the import hook of the old module paths, after all other finders."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
