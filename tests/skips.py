"""Skips: which tests may be skipped, counted in the closing lines, and a failure for any other in CI.

`tests/allowed_skips.toml` is the list. `--check-skips`, or CI=true, fails a run in which a test that is not
there was skipped. Tests marked `engine` need what `make test-engines` installs, and may be skipped without
it; with `--engines`, which that target gives, they may not.
"""

import os
import platform
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ALLOWED = Path(__file__).with_name("allowed_skips.toml")
MARK = "engine"
Entries = list[dict[str, str]]


def read_allowed() -> Entries:
    """Return the entries of the list."""
    entries: Entries = tomllib.loads(ALLOWED.read_text(encoding="utf-8"))["machine"]
    return entries


def is_allowed(test: str, reason: str, entries: Entries) -> bool:
    """Say whether an entry names this test, or its file, and the reason that it gave, on this platform."""
    here = f"{platform.system()} {platform.machine()}"
    return any(
        reason.startswith(entry["says"])
        and entry.get("never_on") != here
        and (fnmatchcase(test, entry["test"]) or fnmatchcase(f"{test}::", entry["test"]))
        for entry in entries
    )


class Skips:
    """A plugin of pytest: gathers the skips of all workers, and fails a checked run for those not allowed."""

    def __init__(self, *, engines: bool, is_checked: bool) -> None:
        self._entries = read_allowed()
        self._engines = engines
        self._is_checked = is_checked or engines
        self.found: dict[str, str] = {}
        self.refused: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
            self.found[report.nodeid] = reason = str(report.longrepr[2]).removeprefix("Skipped: ")
            is_engine = MARK in getattr(report, "keywords", ()) and not self._engines
            if not is_engine and not is_allowed(report.nodeid, reason, self._entries):
                self.refused[report.nodeid] = reason

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._is_checked and self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test, reason in self.refused.items():
            terminalreporter.write_line(f"skip not in tests/{ALLOWED.name}: {test}: {reason}")
        if self.found:
            verdict = "a failure" if self.refused and self._is_checked else "noted"
            counts = f"skips: {len(self.found)}; {len(self.refused)} not allowed ({verdict})"
            terminalreporter.write_line(f"{counts}; see tests/{ALLOWED.name}")


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--check-skips", action="store_true", help="fail when a skip is not on the list")
    parser.addoption("--engines", action="store_true", help="fail when a test marked engine is skipped")


def register(config: pytest.Config) -> None:
    """Add the plugin. CI=true means --check-skips."""
    is_checked = config.getoption("--check-skips") or os.environ.get("CI") == "true"
    engines = config.getoption("--engines")
    config.pluginmanager.register(Skips(engines=engines, is_checked=is_checked), "skips")
