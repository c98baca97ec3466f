"""The README's table of figures is what is kept, to the digit."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import readme_figures  # type: ignore[import-not-found]

    yield readme_figures
    for name in {"readme_figures", "rows", "figure_code"} - before:
        sys.modules.pop(name, None)


def test_the_readme_shows_the_kept_figures(figures: ModuleType) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    inside = page.partition(figures.BEGIN)[2].partition(figures.END)[0].strip()
    assert inside == figures.table(), "run `python benchmarks/readme_figures.py`"


def test_another_kept_figure_is_another_line_and_a_missing_one_an_error(
    figures: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for path in figures.RESULTS.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    rows = json.loads((tmp_path / "dedup.json").read_text())
    (tmp_path / "dedup.json").write_text(json.dumps([row | {"value": 77.4} for row in rows]))
    assert "| 77 s |" in figures.table()
    (tmp_path / "dedup.json").write_text(json.dumps(rows[1:]))
    with pytest.raises(ValueError, match="not enough values"):
        figures.table()


@pytest.mark.parametrize(
    ("hardware", "text"),
    [
        ("2 x Intel(R) Xeon(R) Processor @ 3.80GHz", "2 Xeon cores"),
        ("2 x AMD EPYC", "2 EPYC cores"),
        ("NVIDIA H200", "one H200"),
        ("NVIDIA H200, projected", "H200, projected"),
    ],
)
def test_hardware_is_named_in_short(figures: ModuleType, hardware: str, text: str) -> None:
    assert figures.to_text(hardware) == text
