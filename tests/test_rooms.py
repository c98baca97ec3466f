"""The room table: which rooms a room may import. Imports inside functions count."""

import ast
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MOST_ENTRIES = 15
MOST_LINES = 350

# Lowest first. A room is a folder or one of the few files at a package's root; a folder that is not listed
# belongs to the one around it. `vidcurate.errors` and the version may be imported by all.
ROOMS = {
    "trainer.cli": "",
    "vidcurate.recipe": "",
    "vidcurate.rng": "",
    "vidcurate.storage": "",
    "vidcurate.executor": "vidcurate.storage",
    "trainer": "trainer.cli",
    "trainer.model": "vidcurate.recipe",
    "trainer.run_folder": "vidcurate.recipe vidcurate.storage",
    "vidcurate.curation.clip_table": "vidcurate.storage",
    "vidcurate.media": "vidcurate.recipe vidcurate.storage",
    "trainer.health": "trainer.cli trainer.run_folder",
    "trainer.model.kernels": "trainer.model",
    "trainer.model.encoders": "trainer.model trainer.model.kernels vidcurate.recipe vidcurate.storage",
    "vidcurate.curation.caption_scores": "vidcurate.curation.clip_table vidcurate.executor vidcurate.recipe",
    "vidcurate.curation.dedup": (
        "vidcurate.curation.clip_table vidcurate.executor vidcurate.recipe vidcurate.storage"
    ),
    "vidcurate.curation.demo_data": "vidcurate.executor vidcurate.media vidcurate.storage",
    "vidcurate.curation.review_decisions": (
        "vidcurate.curation.clip_table vidcurate.recipe vidcurate.rng vidcurate.storage"
    ),
    "vidcurate.curation.frame_scores": (
        "vidcurate.curation.clip_table vidcurate.executor vidcurate.media vidcurate.recipe vidcurate.storage"
    ),
    "vidcurate.curation.captioning": (
        "vidcurate.curation.caption_scores vidcurate.curation.clip_table vidcurate.curation.frame_scores "
        "vidcurate.curation.review_decisions vidcurate.executor vidcurate.media vidcurate.recipe "
        "vidcurate.storage"
    ),
    "vidcurate.shards": (
        "vidcurate.curation.clip_table vidcurate.executor vidcurate.media vidcurate.recipe vidcurate.rng "
        "vidcurate.storage"
    ),
    "vidcurate.curation.model_fit": "vidcurate.curation.clip_table vidcurate.shards vidcurate.storage",
    "vidcurate.curation.export": (
        "vidcurate.curation.clip_table vidcurate.curation.model_fit vidcurate.executor vidcurate.media "
        "vidcurate.shards vidcurate.storage"
    ),
    "vidcurate.curation.ingest": (
        "vidcurate.curation.clip_table vidcurate.executor vidcurate.recipe vidcurate.shards vidcurate.storage"
    ),
    "vidcurate.curation.probe": (
        "vidcurate.curation.clip_table vidcurate.executor vidcurate.media vidcurate.recipe vidcurate.storage"
    ),
    "trainer.distributed": (
        "trainer.health trainer.model trainer.model.kernels trainer.run_folder vidcurate.recipe"
    ),
    "vidcurate.curation.fetch": (
        "vidcurate.curation.clip_table vidcurate.curation.ingest vidcurate.executor vidcurate.storage"
    ),
    "vidcurate.curation.model_scores": (
        "vidcurate.curation.clip_table vidcurate.curation.frame_scores vidcurate.executor vidcurate.recipe "
        "vidcurate.storage"
    ),
    "vidcurate.curation.own_scores": (
        "vidcurate.curation.clip_table vidcurate.curation.frame_scores vidcurate.executor vidcurate.storage"
    ),
    "vidcurate.curation.scenes": (
        "vidcurate.curation.clip_table vidcurate.curation.frame_scores vidcurate.curation.ingest "
        "vidcurate.executor vidcurate.media vidcurate.recipe vidcurate.storage"
    ),
    "vidcurate.sampler": "vidcurate.media vidcurate.recipe vidcurate.rng vidcurate.shards",
    "vidcurate.curation.filter": (
        "vidcurate.curation.caption_scores vidcurate.curation.clip_table vidcurate.curation.review_decisions "
        "vidcurate.executor vidcurate.recipe vidcurate.sampler vidcurate.storage"
    ),
    "trainer.health.checks": "trainer.distributed trainer.health trainer.model vidcurate.recipe",
    "trainer.health.watch": (
        "trainer.cli trainer.distributed trainer.health trainer.run_folder vidcurate.executor "
        "vidcurate.recipe vidcurate.storage"
    ),
    "trainer.run_folder.checkpoint": (
        "trainer.cli trainer.distributed trainer.health trainer.model trainer.run_folder vidcurate.executor "
        "vidcurate.recipe vidcurate.storage"
    ),
    "trainer.training.optim": "trainer.distributed trainer.model trainer.model.kernels vidcurate.recipe",
    "vidcurate.curation.difficulty": (
        "vidcurate.curation.clip_table vidcurate.curation.filter vidcurate.executor vidcurate.media "
        "vidcurate.recipe vidcurate.rng vidcurate.sampler vidcurate.storage"
    ),
    "vidcurate.loader": (
        "vidcurate.executor vidcurate.media vidcurate.recipe vidcurate.rng vidcurate.sampler "
        "vidcurate.shards vidcurate.storage"
    ),
    "vidcurate.sampler.plan_changes": "vidcurate.rng vidcurate.sampler vidcurate.shards vidcurate.storage",
    "trainer.recipe": (
        "trainer.distributed trainer.health.checks trainer.health.watch trainer.model "
        "trainer.model.encoders trainer.run_folder trainer.training.optim vidcurate.loader "
        "vidcurate.recipe vidcurate.sampler vidcurate.storage"
    ),
    "vidcurate.curation.report": (
        "vidcurate.curation.clip_table vidcurate.curation.difficulty vidcurate.curation.filter "
        "vidcurate.curation.model_fit vidcurate.curation.review_decisions vidcurate.executor vidcurate.media "
        "vidcurate.recipe vidcurate.sampler vidcurate.shards vidcurate.storage"
    ),
    "vidcurate.curation.review": (
        "vidcurate.curation.clip_table vidcurate.curation.dedup vidcurate.curation.filter "
        "vidcurate.curation.report vidcurate.curation.review_decisions vidcurate.executor vidcurate.media "
        "vidcurate.recipe vidcurate.storage"
    ),
    "vidcurate.curation.publish": (
        "vidcurate.curation.clip_table vidcurate.curation.report vidcurate.executor vidcurate.shards "
        "vidcurate.storage"
    ),
    "trainer.report": (
        "trainer.cli trainer.run_folder vidcurate.curation.report vidcurate.sampler vidcurate.storage"
    ),
    "trainer.data": (
        "trainer.cli trainer.distributed trainer.model trainer.model.encoders trainer.recipe "
        "vidcurate.executor vidcurate.loader vidcurate.sampler vidcurate.sampler.plan_changes "
        "vidcurate.shards vidcurate.storage"
    ),
    "trainer.generation": (
        "trainer.cli trainer.model trainer.model.encoders trainer.recipe trainer.report trainer.run_folder "
        "trainer.run_folder.checkpoint vidcurate.media"
    ),
    "trainer.report.experiment": (
        "trainer.cli trainer.health trainer.health.watch trainer.recipe trainer.report trainer.run_folder "
        "vidcurate.recipe vidcurate.storage"
    ),
    "vidcurate.curate": (
        "vidcurate.curation.caption_scores vidcurate.curation.clip_table vidcurate.curation.dedup "
        "vidcurate.curation.difficulty vidcurate.curation.filter vidcurate.curation.frame_scores "
        "vidcurate.curation.ingest vidcurate.curation.model_scores vidcurate.curation.probe "
        "vidcurate.curation.report vidcurate.executor vidcurate.recipe vidcurate.shards"
    ),
    "trainer.training.track": (
        "trainer.cli trainer.distributed trainer.model trainer.model.encoders trainer.training.optim "
        "vidcurate.executor vidcurate.recipe vidcurate.storage"
    ),
    "trainer.training": (
        "trainer.cli trainer.data trainer.distributed trainer.generation trainer.health "
        "trainer.health.watch trainer.model trainer.model.encoders trainer.recipe trainer.run_folder "
        "trainer.run_folder.checkpoint trainer.training.optim vidcurate.sampler "
        "vidcurate.sampler.plan_changes vidcurate.shards vidcurate.storage"
    ),
    "vidcurate.cli": (
        "vidcurate.curate vidcurate.curation.caption_scores vidcurate.curation.captioning "
        "vidcurate.curation.clip_table vidcurate.curation.dedup vidcurate.curation.demo_data "
        "vidcurate.curation.difficulty vidcurate.curation.export vidcurate.curation.fetch "
        "vidcurate.curation.filter vidcurate.curation.model_fit vidcurate.curation.frame_scores "
        "vidcurate.curation.ingest vidcurate.curation.model_scores vidcurate.curation.own_scores "
        "vidcurate.curation.probe vidcurate.curation.publish vidcurate.curation.report "
        "vidcurate.curation.review vidcurate.curation.review_decisions vidcurate.curation.scenes "
        "vidcurate.executor vidcurate.recipe vidcurate.shards vidcurate.storage"
    ),
    "trainer.cluster": (
        "trainer.cli trainer.health trainer.health.watch trainer.recipe trainer.run_folder trainer.training "
        "vidcurate.storage"
    ),
    "trainer.generation.server": (
        "trainer.cli trainer.data trainer.distributed trainer.generation trainer.model "
        "trainer.model.encoders trainer.recipe trainer.report trainer.run_folder "
        "trainer.run_folder.checkpoint trainer.training vidcurate.sampler vidcurate.storage"
    ),
    "trainer.report.preview": (
        "trainer.cli trainer.data trainer.distributed trainer.model trainer.model.encoders trainer.recipe "
        "trainer.run_folder trainer.run_folder.checkpoint trainer.training trainer.training.optim "
        "vidcurate.curation.review_decisions vidcurate.loader vidcurate.media vidcurate.sampler "
        "vidcurate.storage"
    ),
    "vidcurate.__main__": "vidcurate.cli",
    "trainer.training.preflight": (
        "trainer.cli trainer.cluster trainer.data trainer.distributed trainer.health trainer.health.checks "
        "trainer.recipe trainer.report.preview trainer.run_folder trainer.training vidcurate.storage"
    ),
    "trainer.train": (
        "trainer.data trainer.distributed trainer.health.watch trainer.model trainer.recipe "
        "trainer.run_folder trainer.run_folder.checkpoint trainer.training trainer.training.optim "
        "trainer.training.preflight vidcurate.sampler"
    ),
    "trainer.__main__": (
        "trainer.cli trainer.recipe trainer.report.preview trainer.train trainer.training "
        "trainer.training.preflight vidcurate.storage"
    ),
}
FREE = {"vidcurate", "vidcurate.errors"}
# Tables of data may be longer than a file of code.
TABLES = {"vidcurate/curation/clip_table/schema.py"}


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Return module name → file of both packages."""
    found = {}
    for package in ("vidcurate", "trainer"):
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def import_statements(text: str) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(text: str, known: Iterable[str]) -> Iterator[str]:
    """Yield the modules of both packages that the source imports, at its top or inside a function."""
    for node in import_statements(text):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in known)
        else:
            assert not node.level, "write imports in full"
            for name in node.names:
                full = f"{node.module}.{name.name}"
                if full in known or node.module in known:
                    yield full if full in known else str(node.module)


def room_of(module: str, rooms: Iterable[str]) -> str:
    """Return the room that a module belongs to: the longest name in the table that it begins with."""
    while module not in rooms and "." in module:
        module = module.rpartition(".")[0]
    return module


def wrong_imports(sources: Mapping[str, str], rooms: Mapping[str, str]) -> list[str]:
    """Return a line for every import that the table does not allow."""
    names = {*rooms, *FREE}
    wrong = []
    for module, text in sources.items():
        here = room_of(module, names)
        for other in imports(text, sources):
            there = room_of(other, names)
            if there not in FREE | {here} and there not in rooms.get(here, "").split():
                wrong.append(f"{module} imports {other}: {here} may not import {there}")
    return wrong


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    return {module: path.read_text() for module, path in modules().items()}


def test_a_room_imports_only_the_rooms_of_the_table(sources: dict[str, str]) -> None:
    assert wrong_imports(sources, ROOMS) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("vidcurate.storage.checksum", "from vidcurate.shards import index"),
        ("vidcurate.media.decode", "def f():\n    from vidcurate.loader.loader import Loader"),
        ("vidcurate.sampler.order", "import trainer.train"),
        ("trainer.model.stdit", "from trainer.recipe.recipe import TrainRecipe"),
        ("trainer.distributed.mesh", "if TYPE_CHECKING:\n    from trainer.training import state"),
    ],
)
def test_a_wrong_import_is_named(sources: dict[str, str], module: str, line: str) -> None:
    (wrong,) = wrong_imports(sources | {module: f"{sources[module]}\n{line}\n"}, ROOMS)
    assert wrong.startswith(f"{module} imports ")


def test_the_table_lists_every_allowed_room_before_the_rooms_that_import_it() -> None:
    seen: set[str] = set()
    for room, allowed in ROOMS.items():
        assert set(allowed.split()) <= seen, f"{room}: {set(allowed.split()) - seen} must stand above it"
        seen.add(room)


def test_the_table_allows_nothing_that_nobody_needs(sources: dict[str, str]) -> None:
    names = {*ROOMS, *FREE}
    used = {
        (room_of(module, names), room_of(other, names))
        for module, text in sources.items()
        for other in imports(text, sources)
    }
    unused = [
        f"{room}: {other}"
        for room, allowed in ROOMS.items()
        for other in allowed.split()
        if (room, other) not in used
    ]
    assert unused == []


def test_no_files_import_each_other(sources: dict[str, str]) -> None:
    graph = {module: set(imports(text, sources)) - {module} for module, text in sources.items()}

    def reach(start: str) -> set[str]:
        seen, left = set(), [start]
        while left:
            for other in graph[left.pop()] - seen:
                seen.add(other)
                left.append(other)
        return seen

    assert [module for module in graph if module in reach(module)] == []


def test_a_package_root_has_few_entries_and_every_room_a_face() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "vidcurate", "trainer"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for package in ("vidcurate", "trainer"):
        entries = {Path(path).parts[1] for path in listed if path.startswith(f"{package}/")}
        assert len(entries) <= MOST_ENTRIES, sorted(entries)
    for path in modules().values():
        if path.name == "__init__.py":
            assert ast.get_docstring(ast.parse(path.read_text())), f"{path}: say what the room is for"


def test_no_file_is_longer_than_a_reader_holds() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in modules().values()
        if (count := path.read_text().count("\n")) > MOST_LINES
    }
    assert {path: count for path, count in long.items() if path not in TABLES} == {}
