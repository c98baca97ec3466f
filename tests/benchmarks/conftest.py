"""The benchmark under test, imported as its script imports its neighbours."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bench(request: pytest.FixtureRequest) -> Any:
    """Return the module that the test file names in BENCHMARK."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module(request.module.BENCHMARK)
    finally:
        sys.path.remove(str(BENCHMARKS))
