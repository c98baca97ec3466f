"""Imports run one way: from the command line down to the words."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Lowest first. A file may import files of lower floors, and of its own floor where `TOGETHER` allows it.
VIDCURATE = [
    {"errors", "orphan"},
    {
        "yaml_text",
        "recipe",
        "schema",
        "mp4",
        "filebytes",
        "matroska",
        "draws",
        "resolutions",
        "workers",
        "crc",
        "mp4_samples",
        "stores",
        "shard_cache",
        "remote_shards",
    }
    | {"frame_map", "resample", "sides", "conversion"},
    {"cluster"},
    {"video", "table"},
    {"integrity", "remote"},
    {
        "transcode",
        "tar",
        "buckets",
        "interleave",
        "block_order",
        "curriculum",
        "plan_spec",
        "cost_table",
        "passes",
        "plan",
        "deal",
        "order",
        "changed_plan",
        "plan_file",
        "views",
        "synthetic",
        "damage",
        "faults",
        "known",
        "engine",
        "ledger",
        "costs",
        "ranges",
    },
    {"zips", "index_file"},
    {"probe", "models", "dedup", "score", "frames", "filter", "difficulty", "ingest", "index"},
    {"scenes", "shards", "shard_plan", "shard_write", "shard_set", "shard_pool", "shard_manifest", "interop"}
    | {"clip_bytes", "tar_read", "verify", "verify_shard"},
    {
        "slabs",
        "heartbeat",
        "decode_worker",
        "decode_process",
        "decode_pool",
        "remote_clips",
        "cells",
        "clip_plan",
        "difference",
        "loader_state",
        "journal",
        "spares",
        "plan_figures",
        "plan_difference",
        "decode_cost",
    },
    {"loader"},
    {"torch", "report", "inspect", "tally", "fetch_plan"},
    {"whatif", "card", "fetch"},
    {"curate"},
    {"progress"},
    {"cli"},
    {"__main__"},
]
TRAINER = [
    {"exit_codes", "triton_needs"},
    {"child", "xid", "diary", "whole_file", "clock_watch"},
    {"xid_log", "clock_offset", "preflight_spec", "environment_names", "saved"},
    {"noise", "masks", "place", "terminal", "mesh", "request", "stop_signals", "processes"}
    | {"heartbeat", "collectives"},
    {"hosts", "connection", "attempt", "elastic", "agent"},
    {"hardware", "stacks", "pace", "watch_spec"},
    {"stack_groups"},
    {"stall", "hardware_watch"},
    {"watcher", "watch_steps"},
    {"watch"},
    {"node"},
    {"cluster"},
    {"optim", "encode", "layers", "stdit", "flow", "kernels"},
    {"cost"},
    {"memory"},
    {"recompute"},
    {
        "fast",
        "copies",
        "checksum",
        "parts",
        "checkpoint",
        "save_process",
        "saver",
        "parallel",
        "pixart",
        "weights",
        "metrics",
        "flops",
    }
    | {"preflight_verdicts"},
    {"latents", "trackers", "run_folder", "outcome", "guard", "progress", "supervisor", "curves"},
    {"recipe"},
    {"environment"},
    {"encoded", "inputs", "phases", "recipe_changes"},
    {"data", "samples"},
    {"balance", "gallery"},
    {"position", "sample", "inspect", "resume", "step", "validation", "dry_run", "encode_ahead"}
    | {"planned", "plan", "plan_words", "simulate", "contact_sheet"},
    {"preflight"},
    {"begin"},
    {"telling", "rerun"},
    {"guarded"},
    {"rollback"},
    {"loop", "encode_shards", "launch", "serve"},
    {"experiment", "report"},
    {"__main__", "demo"},
]
# Where trainer may touch vidcurate, and what.
TOUCHES = {
    "guard": {"recipe"},
    "rerun": {"order"},
    "guarded": {"order"},
    "loop": {"order"},
    "latents": {"loader", "recipe", "index", "buckets", "order", "interleave", "views", "spares", "tar"},
    "encoded": {"index", "order", "buckets"},
    "inputs": {"loader", "torch"},
    "data": {
        "cost_table",
        "loader",
        "journal",
        "clip_plan",
        "index",
        "order",
        "buckets",
        "torch",
    },
    "phases": {"order"},
    "position": {"loader_state", "journal", "index", "order"},
    "resume": {"loader_state"},
    "encode_ahead": {"views", "buckets", "clip_bytes", "index", "clip_plan", "decode_pool", "decode_worker"}
    | {"remote_clips", "loader", "spares", "torch"},
    "recipe": {"stores", "recipe", "buckets", "conversion", "loader", "plan_spec"},
    "recipe_changes": {"loader_state", "plan_spec", "recipe"},
    "watch": {"slabs"},
    "save_process": {"slabs", "orphan"},
    "watch_spec": {"recipe"},
    "sample": {"video"},
    "serve": {"resolutions"},
    "validation": {"order"},
    "balance": {"order"},
    "dry_run": {"order", "plan_figures"},
    "plan": {"order", "plan_difference", "plan_figures", "clip_plan", "loader"},
    "simulate": {"decode_cost", "order", "plan_figures"},
    "contact_sheet": {"video"},
    "trackers": {"recipe"},
    "preflight_spec": {"recipe"},
    "experiment": {"recipe"},
    "report": {"cost_table", "recipe"},
    "demo": {"cli", "curate", "synthetic", "progress", "video", "report"},
}
# These start in decode workers and on GPU machines: nothing heavy when they are imported.
LIGHT = ["errors", "recipe", "buckets", "order", "index", "loader"]


def _module(path: Path, package: str) -> str:
    parts = path.relative_to(ROOT / package).with_suffix("").parts
    return parts[0] if len(parts) > 1 or parts[0] != "__init__" else "__init__"


def _imports(path: Path) -> set[tuple[str, str]]:
    """Return (package, module) of everything the file imports from the two packages."""
    found: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            parts = node.module.split(".")
            if parts[0] in ("vidcurate", "trainer"):
                names = [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
                found |= {(parts[0], name) for name in names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] in ("vidcurate", "trainer") and len(parts) > 1:
                    found.add((parts[0], parts[1]))
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: write imports in full"
    return found


def _files(package: str) -> list[Path]:
    return sorted(
        path
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py" or path.parent.name != package
    )


def _floor(floors: list[set[str]], module: str) -> int:
    for number, names in enumerate(floors):
        if module in names:
            return number
    raise AssertionError(f"{module} has no floor: put it on one in tests/test_floors.py")


@pytest.mark.parametrize(("package", "floors"), [("vidcurate", VIDCURATE), ("trainer", TRAINER)])
def test_every_import_goes_down(package: str, floors: list[set[str]]) -> None:
    for path in _files(package):
        module = _module(path, package)
        for other_package, other in _imports(path):
            if other_package != package or other in (module, "__version__"):
                continue
            assert _floor(floors, other) < _floor(floors, module) or (
                other in floors[_floor(floors, module)]
            ), f"{path.relative_to(ROOT)} imports {other}, which is on a higher floor"


@pytest.mark.parametrize(("package", "floors"), [("vidcurate", VIDCURATE), ("trainer", TRAINER)])
def test_no_two_files_import_each_other(package: str, floors: list[set[str]]) -> None:
    graph: dict[str, set[str]] = {}
    for path in _files(package):
        module = _module(path, package)
        graph.setdefault(module, set()).update(
            other for other_package, other in _imports(path) if other_package == package and other != module
        )

    def reaches(start: str, goal: str, seen: set[str]) -> bool:
        for other in graph.get(start, set()) - seen:
            seen.add(other)
            if other == goal or reaches(other, goal, seen):
                return True
        return False

    for module in graph:
        assert not reaches(module, module, set()), f"{package}.{module} imports itself through others"


def test_vidcurate_does_not_know_trainer_and_one_file_and_the_models_know_torch() -> None:
    for path in _files("vidcurate"):
        assert not [name for package, name in _imports(path) if package == "trainer"], path
        text = path.read_text()
        knows_torch = any(
            line.strip().startswith(("import torch", "from torch")) for line in text.splitlines()
        )
        # Of the models only the package itself is light: what it imports when a stage runs may know torch.
        light = path.name in ("__init__.py", "look.py", "spec.py")
        may_know = _module(path, "vidcurate") == "models" and not light
        assert not knows_torch or path.name == "torch.py" or may_know, path


def test_trainer_touches_vidcurate_only_in_the_named_places() -> None:
    for path in _files("trainer"):
        module = _module(path, "trainer")
        touched = {name for package, name in _imports(path) if package == "vidcurate"} - {
            "errors",
            "__version__",
        }
        allowed = TOUCHES.get(module, set()) | (
            {"recipe"} if module in ("stdit", "optim", "parallel", "encode", "flow") else set()
        )
        assert touched <= allowed, f"{path.relative_to(ROOT)} imports vidcurate's {touched - allowed}"


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_load_nothing_heavy(module: str, run_python) -> None:  # type: ignore[no-untyped-def]
    heavy = run_python(
        f"import sys, vidcurate.{module}; "
        "heavy = ('polars', 'av', 'torch', 'joblib', 'spacy', 'obstore'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    assert heavy.strip() == "[]"


def test_what_reads_a_run_from_outside_loads_no_torch(run_python) -> None:  # type: ignore[no-untyped-def]
    loaded = run_python(
        "import sys, trainer.agent, trainer.cluster.command, trainer.launch, trainer.node.agent, "
        "trainer.report.balance, trainer.report.page, trainer.report.read, trainer.supervisor; "
        "print([name for name in ('torch', 'pyarrow', 'polars', 'av') if name in sys.modules])"
    )
    assert loaded.strip() == "[]"
