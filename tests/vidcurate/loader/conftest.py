"""Shards of identifiable clips, their index and plan, and what one process reads of them."""

from pathlib import Path
from typing import Any

import pytest

from tests.loader_runs import make, plan_of, read
from vidcurate.sampler.plan import Plan
from vidcurate.shards.index import Index


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loader")


@pytest.fixture(scope="session")
def opened(folder: Path) -> Index:
    return make(folder)


@pytest.fixture(scope="session")
def plan(opened: Index) -> Plan:
    return plan_of(opened)


@pytest.fixture(scope="session")
def undisturbed(opened: Index, plan: Plan) -> dict[int, list[tuple[Any, ...]]]:
    return read(opened, plan, range(6))
