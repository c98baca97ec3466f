"""Skips: which tests may be skipped, counted in the closing lines, and a failure for any other in CI.

`tests/allowed_skips.toml` is the list. `--check-skips`, or CI=true, fails a run in which a test that is not
there was skipped. `--engines` runs the tests whose needs `make test-engines` installs, and allows none of
those needs as a reason.
"""

import os
import platform
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ALLOWED = Path(__file__).with_name("allowed_skips.toml")
Entries = list[dict[str, str]]


def read_allowed() -> dict[str, Entries]:
    """Return the entries of the list by group: `engines` and `machine`."""
    return tomllib.loads(ALLOWED.read_text(encoding="utf-8"))


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
    """A plugin of pytest: selects the tests of `--engines`, and gathers the skips of all workers."""

    def __init__(self, *, engines: bool, is_checked: bool) -> None:
        groups = read_allowed()
        self._engines = groups["engines"] if engines else None
        self._entries = groups["machine"] + ([] if engines else groups["engines"])
        self._is_checked = is_checked or engines
        self.found: dict[str, str] = {}

    @property
    def refused(self) -> dict[str, str]:
        return {
            test: reason for test, reason in self.found.items() if not is_allowed(test, reason, self._entries)
        }

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self._engines is None:
            return
        patterns = [entry["test"] for entry in self._engines]
        asked = [item for item in items if any(fnmatchcase(item.nodeid, one) for one in patterns)]
        chosen = {*map(id, asked)}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen])
        items[:] = asked

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
            self.found[report.nodeid] = str(report.longrepr[2]).removeprefix("Skipped: ")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._is_checked and self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        refused = self.refused
        for test, reason in refused.items():
            terminalreporter.write_line(f"skip not in tests/{ALLOWED.name}: {test}: {reason}")
        if self.found:
            verdict = "a failure" if refused and self._is_checked else "noted"
            counts = f"skips: {len(self.found)}; {len(refused)} not allowed ({verdict})"
            terminalreporter.write_line(f"{counts}; see tests/{ALLOWED.name}")


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--check-skips", action="store_true", help="fail when a skip is not on the list")
    parser.addoption("--engines", action="store_true", help="run what needs Ray, sshd, Chromium, readers")


def register(config: pytest.Config) -> None:
    """Add the plugin. CI=true means --check-skips."""
    is_checked = config.getoption("--check-skips") or os.environ.get("CI") == "true"
    engines = config.getoption("--engines")
    config.pluginmanager.register(Skips(engines=engines, is_checked=is_checked), "skips")
