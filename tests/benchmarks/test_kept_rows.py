"""Kept figures say when and from which code they are, and the table marks those whose code has changed."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.delitem(sys.modules, "rows", raising=False)
    import rows  # type: ignore[import-not-found]

    module: ModuleType = rows
    return module


def test_every_kept_row_has_a_date_and_a_commit() -> None:
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        for row in json.loads(path.read_text(encoding="utf-8")):
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"]), (path.name, row["metric"])
            assert re.fullmatch(r"[0-9a-f]{7,40}\+?", row["commit"]), (path.name, row["metric"])


def test_the_code_of_a_row_is_its_script_and_what_this_imports(rows: ModuleType) -> None:
    tables = rows.code_of("python benchmarks/tables.py --rows 10")
    assert tables[0] == "benchmarks/tables.py"
    assert {"vidcurate/curation/ingest/rows.py", "vidcurate/storage/atomic_file.py"} <= set(tables)
    assert not any(path.startswith("trainer") for path in tables)
    profile = rows.code_of("python benchmarks/step_profile.py")
    assert {"benchmarks/train_step.py", "benchmarks/step_shapes.py", "trainer/model/kernels/block.py"} <= set(
        profile
    )
    assert "trainer/model/kernels/block.py" in rows.code_of("python benchmarks/mixture.py"), "by name"
    assert rows.code_of("python benchmarks/gone.py") == ["vidcurate", "trainer"]


def test_a_row_is_marked_when_its_code_has_changed(
    rows: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rows, "ROOT", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    script = tmp_path / "benchmarks" / "a.py"
    script.write_text("from vidcurate.media import decode\n")
    for name, code in {
        "media/decode.py": "from vidcurate.storage.tar import read\n",
        "storage/tar.py": '"""Read tars."""\n\ndef read():\n    """Read one."""\n    return 1\n',
        "other.py": "1\n",
    }.items():
        (tmp_path / "vidcurate" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "vidcurate" / name).write_text(code)
    rows._git("init", "-q")
    rows._git("add", ".")
    rows._git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    first = rows._git("rev-parse", "HEAD").stdout.strip()
    assert rows.age(first, "python benchmarks/a.py") == ""
    deep = tmp_path / "vidcurate" / "storage" / "tar.py"
    for number, code in enumerate(
        ['"""Read shards."""\ndef read(): return 1  # faster\n', deep.read_text().replace("Read", "Get")]
    ):
        deep.write_text(code)
        assert rows.age(first, f"python benchmarks/a.py {number}") == "", "words are not code"
    (tmp_path / "vidcurate" / "other.py").write_text("2\n")
    assert rows.age(first, "python benchmarks/a.py -o") == "", "nor is what it never imports"
    deep.write_text("def read(): return 2\n")
    assert rows.age(first, "python benchmarks/a.py -d") == "code changed"
    deep.write_text("def read(): return 1\n")
    assert rows.age(first, "python benchmarks/a.py -e") == ""
    script.write_text("from vidcurate.media import decode, scale\n")
    assert rows.age(first, "python benchmarks/a.py -v") == "", "nor is what nothing calls yet"
    script.write_text("from vidcurate.media import decode, scale\nscale.down()\ndecode.read()\n")
    deep.write_text("def read(): return 1\ndef write(): raise ValueError('no')\n")
    assert rows.age(first, "python benchmarks/a.py -w") == ""
    script.write_text("from vidcurate.media import scale as decode\n")
    assert rows.age(first, "python benchmarks/a.py -x") == "code changed"
    assert rows.age("0" * 40, "python benchmarks/a.py") == "?"
    assert rows.age("", "python benchmarks/a.py") == "?"


def test_another_text_of_an_error_changes_no_figure(rows: ModuleType) -> None:
    code = "def read():\n    if late():\n        raise {}\n    return 1\n"
    first = rows._statements(code.format("ValueError('late') from None"))
    assert first == rows._statements(code.format("StateError(f'{late()} s late')"))
    assert first != rows._statements(code.replace("late():", "late(2):").format("ValueError('late')"))
