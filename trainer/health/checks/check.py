"""Preflight check: result, verdict, and the time-out of every check.

A check that hangs (a driver, a disk of another host) stays in its thread and is named; the checks after it
still run.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trainer.health import xid
from vidcurate.errors import VidcurateError

Verdict = Literal["ok", "warn", "bad"]
VERDICTS: tuple[Verdict, ...] = ("ok", "warn", "bad")
"""from the mildest to the hardest"""
OF_ACTION: dict[xid.Action, Verdict] = {
    "ignore": "ok",
    "warn": "warn",
    "restart_job": "warn",
    "drain_node": "bad",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Result of a check. `figure`: its number in `unit`, for comparisons; `value`: the result as text."""

    name: str
    verdict: Verdict
    value: str
    limit: str = ""
    advice: str = ""
    figure: float | None = None
    unit: str = ""

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value not in ("", None)}

    def to_text(self) -> str:
        limit = f", limit {self.limit}" if self.limit else ""
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.name}: {self.value}{limit}{advice}"


def worst(verdicts: "list[Verdict]") -> Verdict:
    """Return the most severe of `verdicts`, "ok" of none."""
    return max(verdicts, key=VERDICTS.index, default="ok")


def measured(name: str, figure: float, unit: str) -> Check:
    """Return the check of a rate, which is compared with those of other ranks later."""
    return Check(name=name, verdict="ok", value=f"{figure:,.4g} {unit}", figure=figure, unit=unit)


class Bounded:
    """Runs checks one after another, each in a thread with a limit. `hung` names those that still run."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.hung: list[str] = []

    def run(self, name: str, work: Callable[[], list[Check]], seconds: float | None = None) -> list[Check]:
        """Return what `work` found; a limit that passes, or an error, is a bad check called `name`."""
        limit = self.seconds if seconds is None else seconds
        found: list[list[Check]] = []
        thread = threading.Thread(
            target=lambda: found.append(_safely(name, work)), name=f"preflight: {name}", daemon=True
        )
        began = time.monotonic()
        thread.start()
        thread.join(limit)
        if found:
            return found[0]
        self.hung.append(name)
        took = f"no answer after {time.monotonic() - began:.1f} s"
        advice = "it hangs; look at this node's kernel log"
        return [Check(name=name, verdict="bad", value=took, limit=f"{limit:g} s", advice=advice)]


def _safely(name: str, work: Callable[[], list[Check]]) -> list[Check]:
    try:
        return work()
    except VidcurateError as error:
        return [Check(name=name, verdict="bad", value=str(error))]
    except Exception as error:  # noqa: BLE001 - of any driver or library: it is what the check found
        words = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return [Check(name=name, verdict="bad", value=words)]
