"""The list of allowed skips is true, and a skip that is not on it fails a checked run."""

import os
import platform
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.skips import is_allowed, read_allowed

ROOT = Path(__file__).resolve().parents[1]
CONFTEST = """
from tests import skips

def pytest_addoption(parser):
    skips.add_options(parser)

def pytest_configure(config):
    config.addinivalue_line("markers", "engine: needs a star")
    skips.register(config)
"""
TEST = """
import pytest

def test_good():
    pass

def test_skipped():
    pytest.skip("the moon is full")
"""
ENGINE = """
import pytest

@pytest.mark.engine
def test_skipped():
    pytest.skip("no star")
"""


def test_every_entry_names_tests_that_exist_and_a_reason_that_one_gives() -> None:
    paths = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py")]
    for entry in read_allowed():
        pattern = entry["test"].partition("::")[0]
        assert any(fnmatchcase(str(path), pattern) for path in paths), entry
    sources = "\n".join((ROOT / path).read_text(encoding="utf-8") for path in paths)
    assert {entry["says"] for entry in read_allowed() if entry["says"] not in sources} == set()


def test_a_reason_is_allowed_only_for_its_tests() -> None:
    entries = [{"test": "tests/a.py::*", "says": "no moon"}]
    assert is_allowed("tests/a.py::test_b[1]", "no moon here", entries)
    assert is_allowed("tests/a.py", "no moon here", entries)  # the whole file, at its import
    assert not is_allowed("tests/a.py::test_b", "no sun", entries)
    assert not is_allowed("tests/b.py::test_b", "no moon here", entries)


def test_a_package_that_this_platform_gets_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    reason, entries = "triton is not installed on this platform", read_allowed()
    for system, machine, allowed in (("Linux", "x86_64", False), ("Linux", "aarch64", True)):
        monkeypatch.setattr(platform, "system", lambda system=system: system)
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        assert is_allowed("tests/trainer/model/kernels/test_matmul.py", reason, entries) == allowed


@pytest.mark.parametrize(
    ("environment", "options", "code", "verdict"),
    [
        ({"CI": ""}, [], 0, "(noted)"),
        ({"CI": "true"}, [], 1, "(a failure)"),
        ({"CI": ""}, ["--check-skips"], 1, "(a failure)"),
        ({"CI": "true"}, ["-n", "1"], 1, "(a failure)"),
    ],
)
def test_a_skip_that_is_not_listed_fails_a_checked_run(
    tmp_path: Path, environment: dict[str, str], options: list[str], code: int, verdict: str
) -> None:
    (tmp_path / "test_moon.py").write_text(TEST)
    ended = run(tmp_path, environment, options)
    assert ended.returncode == code, ended.stdout
    assert f"skips: 1; 1 not allowed {verdict}" in ended.stdout
    assert "test_moon.py::test_skipped: the moon is full" in ended.stdout


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--check-skips"], 0, "skips: 1; 0 not allowed (noted)"),
        (["--engines"], 1, "skips: 1; 1 not allowed (a failure)"),
        (["--engines", "-n", "1"], 1, "skips: 1; 1 not allowed (a failure)"),
    ],
)
def test_an_engine_may_be_missing_only_where_it_is_not_installed(
    tmp_path: Path, options: list[str], code: int, said: str
) -> None:
    (tmp_path / "test_star.py").write_text(ENGINE)
    ended = run(tmp_path, {"CI": ""}, options)
    assert ended.returncode == code, ended.stdout
    assert said in ended.stdout


def run(folder: Path, environment: dict[str, str], options: list[str]) -> "subprocess.CompletedProcess[str]":
    (folder / "conftest.py").write_text(CONFTEST)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder), *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
