"""Kept figures say when and from which code they are, and the table marks those whose code has changed."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    for name in ("rows", "figure_code"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import rows  # type: ignore[import-not-found]

    module: ModuleType = rows
    return module


@pytest.fixture
def code(rows: ModuleType) -> ModuleType:
    return sys.modules["figure_code"]


@pytest.fixture
def history(
    rows: ModuleType, code: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[dict[str, str]], Callable[[], str]]:
    """Return a function that commits files, and gives one that tells the age of a row measured with them."""
    monkeypatch.setattr(code, "ROOT", tmp_path)

    def commit(files: dict[str, str]) -> Callable[[], str]:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        code.git("init", "-q")
        code.git("add", ".")
        code.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
        first = code.git("rev-parse", "HEAD").stdout.strip()

        def age() -> str:
            for cached in (value for value in vars(code).values() if hasattr(value, "cache_clear")):
                cached.cache_clear()
            found: str = rows.age(first, "python benchmarks/a.py")
            return found

        return age

    return commit


def test_every_kept_row_has_a_date_and_a_commit() -> None:
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        for row in json.loads(path.read_text(encoding="utf-8")):
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"]), (path.name, row["metric"])
            assert re.fullmatch(r"[0-9a-f]{7,40}\+?", row["commit"]), (path.name, row["metric"])


def test_a_peer_that_has_nothing_gives_a_row_and_no_division_by_zero(rows: ModuleType) -> None:
    assert rows.row("recall", 0.5, "", peer="a", peer_value=0.25)["ratio"] == 2
    assert rows.row("recall", 0.5, "", peer="a", peer_value=0.0)["ratio"] == float("inf")
    assert rows.row("errors", 0.0, "", peer="a", peer_value=3.0, higher_is_better=False)["ratio"] == float(
        "inf"
    )


def test_each_kind_of_copy_has_its_recall_beside_the_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from clip_copies import COPIES  # type: ignore[import-not-found]

    results = json.loads((ROOT / "benchmarks/results/twins.json").read_text(encoding="utf-8"))
    kept = {row["metric"]: row for row in results}
    of_kinds = [row for metric, row in kept.items() if " copies: " in metric]
    assert {metric.partition(" copies: ")[2] for metric in kept} - {""} == set(COPIES)
    assert all("pHash" in row["peer"] for row in of_kinds)
    bars = [row for row in of_kinds if "black bars" in row["metric"]]
    together = next(
        row for metric, row in kept.items() if metric.endswith(f"with black bars, {len(bars)} kinds")
    )
    for key in ("value", "peer_value"):
        assert together[key] == pytest.approx(sum(row[key] for row in bars) / len(bars), abs=1e-4)


def test_a_kept_command_names_no_place_of_the_machine_that_measured(
    rows: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    words = ["--clips", str(tmp_path), "--kept", str(tmp_path / "a.npz"), "demo/train", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", [str(ROOT / "benchmarks/twins.py"), *words])

    assert rows.row("a", 1, "s", peer="b", peer_value=2)["command"] == (
        "python benchmarks/twins.py --clips FOLDER --kept FILE demo/train --rounds 1"
    )
    for path in sorted((ROOT / "benchmarks/results").glob("*.json")):
        for entry in json.loads(path.read_text()):
            assert not re.search(r"(^|[ =])(/|~|\.\./)", entry["command"]), path.name


def test_the_code_of_a_row_is_its_script_and_what_this_uses(code: ModuleType) -> None:
    tables = code.code_of("python benchmarks/tables.py --rows 10")
    assert next(iter(tables)) == "benchmarks/tables.py"
    assert {"vidcurate/curation/ingest/rows.py", "vidcurate/storage/atomic_file.py"} <= set(tables)
    assert not any(path.startswith("trainer") for path in tables)
    profile = code.code_of("python benchmarks/step_profile.py")
    assert {"benchmarks/train_step.py", "benchmarks/step_shapes.py", "trainer/model/kernels/block.py"} <= set(
        profile
    )
    mixture = code.code_of("python benchmarks/mixture.py")
    assert "trainer/model/kernels/block.py" in mixture, "by name"
    assert {"trainer/train.py", "trainer/training/step.py", "vidcurate/loader/loader.py"} <= set(mixture)
    assert "trainer/generation/server/command.py" not in mixture, "another command"
    assert list(code.code_of("python benchmarks/gone.py")) == ["vidcurate", "trainer"]


def test_a_row_is_marked_when_what_its_script_uses_has_changed(
    rows: ModuleType, history: Callable[[dict[str, str]], Callable[[], str]], tmp_path: Path
) -> None:
    deep, script = tmp_path / "vidcurate/storage/tar.py", tmp_path / "benchmarks/a.py"
    before = (
        '"""Read tars."""\nSIZE = 512\n\ndef read():\n    """Read one."""\n    return SIZE\n'
        "def other():\n    return 1\n"
    )
    age = history(
        {
            "benchmarks/a.py": "from vidcurate.media import decode\ndecode.first()\n",
            "vidcurate/media/decode.py": "from vidcurate.storage import tar\ndef first(): tar.read()\n",
            "vidcurate/storage/tar.py": before,
            "vidcurate/other.py": "1\n",
        }
    )
    assert age() == ""
    for same in (
        before.replace("Read", "Get"),
        before.replace("return SIZE", "return SIZE  # faster"),
        before.replace("return 1", "return 2"),  # another function
        before + "def write(): raise ValueError('no')\n",
    ):
        deep.write_text(same)
        assert age() == "", same
    for changed in (
        before.replace("512", "513"),
        before.replace("return SIZE", "return 2 * SIZE"),
        before.replace("def read", "@traced\ndef read"),
        before.replace("SIZE = 512", "from sizes import SIZE"),
    ):
        deep.write_text(changed)
        assert age() == "code changed", changed
    deep.write_text(before)
    (tmp_path / "vidcurate/other.py").write_text("2\n")
    assert age() == "", "what is never imported"
    script.write_text("from vidcurate.media import decode, scale\ndecode.first()\n")
    assert age() == "", "what nothing calls yet"
    script.write_text("from vidcurate.media import scale as decode\ndecode.first()\n")
    assert age() == "code changed"
    assert rows.age("0" * 40, "python benchmarks/a.py") == "?"
    assert rows.age("", "python benchmarks/a.py") == "?"


def test_what_an_import_does_and_what_a_program_runs_count_too(
    history: Callable[[dict[str, str]], Callable[[], str]], tmp_path: Path
) -> None:
    age = history(
        {
            "benchmarks/a.py": "import vidcurate.deep.one\nfrom vidcurate.media import scale\n"
            "scale.down(vidcurate.deep.one.two())\n",
            "vidcurate/deep/one.py": "def two(): return 1\n",
            "vidcurate/media/__init__.py": "from vidcurate.media import codecs\ncodecs.register()\n",
            "vidcurate/media/codecs.py": "def register(): return 1\n",
            "vidcurate/media/scale.py": "@plugin\ndef up(): return 1\ndef down(): 1\ndef by(): return 1\n"
            "if __name__ == '__main__': by()\n",
        }
    )
    scale, codecs = tmp_path / "vidcurate/media/scale.py", tmp_path / "vidcurate/media/codecs.py"
    text, deep = scale.read_text(), tmp_path / "vidcurate/deep/one.py"
    deep.write_text("def two(): return 2\n")
    assert age() == "code changed"
    deep.write_text("def two(): return 1\n")
    codecs.write_text("def register(): return 2\n")
    assert age() == "code changed"
    codecs.write_text("def register(): return 1\n")
    scale.write_text(text.replace("up(): return 1", "up(): return 2"))
    assert age() == "code changed", "a decorator may register"
    scale.write_text(text.replace("by(): return 1", "by(): return 2"))
    assert age() == "", "an import runs no main"
    script = tmp_path / "benchmarks/a.py"
    script.write_text(script.read_text() + 'run("python", "-m", "vidcurate")\n')
    assert age() == "code changed", "a program may run all of a module"


def test_what_a_started_training_uses_counts_too(
    history: Callable[[dict[str, str]], Callable[[], str]], tmp_path: Path
) -> None:
    age = history(
        {
            "benchmarks/a.py": 'from trainer import lines\nrun("python", "-m", "trainer")\nlines.read()\n',
            "trainer/__main__.py": "def main():\n    from trainer.train import train\n    train()\nmain()\n",
            "trainer/train.py": "def train(): return 1\ndef other(): return 1\n",
            "trainer/lines.py": "def read(): return 1\n",
        }
    )
    assert age() == ""
    file = tmp_path / "trainer/train.py"
    file.write_text("def train(): return 1\ndef other(): return 2\n")
    assert age() == "", "what the training does not call"
    file.write_text("def train(): return 2\ndef other(): return 1\n")
    assert age() == "code changed"


def test_another_text_of_an_error_changes_no_figure(code: ModuleType) -> None:
    text = "def read():\n    if late():\n        raise {}\n    return 1\n"
    first = code.statements(text.format("ValueError('late') from None"))
    assert first == code.statements(text.format("StateError(f'{late()} s late')"))
    assert first != code.statements(text.replace("late():", "late(2):").format("ValueError('late')"))


def test_an_except_that_ends_in_a_raise_changes_no_figure(code: ModuleType) -> None:
    plain = "def read():\n    late()\n    return 1\n"
    refused = (
        "def read():\n    try:\n        late()\n"
        "    except ValueError as error:\n        text = str(error)\n"
        "        raise StateError(text) from error\n"
        "    return 1\n"
    )
    assert code.statements(plain) == code.statements(refused)
    assert code.statements(plain) != code.statements(
        refused.replace("raise StateError(text) from error", "pass")
    )


def test_a_limit_of_a_recipes_value_changes_no_figure(code: ModuleType) -> None:
    text = "class Spec(Recipe):\n    steps: {} = {}\n"
    first = code.statements(text.format("Count", 30))
    for limited in ("Annotated[Count, Field(le=1000)]", "Annotated[Count, Field(gt=0, allow_inf_nan=False)]"):
        assert code.statements(text.format(limited, 30)) == first
    for other in (text.format("Annotated[Count, Field(alias='n')]", 30), text.format("int", 30)):
        assert code.statements(other) != first
    assert code.statements(text.format("Annotated[Count, Field(le=1000)]", 31)) != first
    config = "class Spec:\n    model_config = ConfigDict(strict={}{})\n"
    assert code.statements(config.format(True, ", allow_inf_nan=False")) == code.statements(
        config.format(True, "")
    )
    assert code.statements(config.format(True, "")) != code.statements(config.format(False, ""))


def test_a_function_that_only_a_refusal_calls_changes_no_figure(code: ModuleType) -> None:
    text = (
        "def read():\n    try:\n        return _value()\n    except ValueError as error:\n"
        "        text = _why(error)\n        raise StateError(text) from error\n"
        "def _value(): return {}\ndef _why(error): return _words({})\ndef _words(n): return n + {}\n"
    )
    first = code.statements(text.format(1, 1, 1))
    assert first == code.statements(text.format(1, 2, 2))
    assert first != code.statements(text.format(2, 1, 1))
    also_used = text + "def other(): return _words(1)\n"
    assert code.statements(also_used.format(1, 1, 1)) != code.statements(also_used.format(1, 1, 2))


def test_a_page_that_another_module_beside_names_changes_no_figure(
    code: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(code, "ROOT", tmp_path)
    room = tmp_path / "vidcurate" / "report"
    room.mkdir(parents=True)
    (tmp_path / "bench.py").write_text("from vidcurate.report.lines import drawn\ndrawn()\n")
    (room / "lines.py").write_text("def drawn(): return open('table.parquet')\n")
    (room / "page.py").write_text("PAGE = 'report.html'\n")
    for name in ("report.html", "table.parquet", "unnamed.txt"):
        (room / name).write_text(name)

    found = {Path(name).name for name in code.code_of("python bench.py")}

    assert found == {"bench.py", "lines.py", "table.parquet", "unnamed.txt"}
