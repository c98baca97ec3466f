"""Run data for the report, read from the run's folder; this file writes nothing."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trainer.report.goodput import Ledger, ledger
from trainer.run_folder import jsonl, metrics
from trainer.run_folder import layout as run_folder_layout
from vidcurate.errors import InputError

SLOWEST = 10
TIMES = "times"  # key of a shown event: number of events that the report shows as this one


@dataclass(frozen=True, kw_only=True)  # no slots: `shown_events` is cached
class RunData:
    """One run's log lines; events are sorted by time."""

    path: Path
    name: str
    lines: tuple[dict[str, Any], ...]
    rounds: tuple[dict[str, Any], ...]
    events: tuple[dict[str, Any], ...]
    ledger: Ledger | None

    @cached_property
    def shown_events(self) -> tuple[dict[str, Any], ...]:
        """The events, those of one damaged clip as one: the first, with TIMES and the steps of the others."""
        shown: list[dict[str, Any]] = []
        place: dict[str, int] = {}
        for event in self.events:
            clip = event.get("clip_id") if event["event"] == "clip_substituted" else None
            if not isinstance(clip, str):
                shown.append(event)
            elif clip in place:
                first = shown[place[clip]]
                times = first.get(TIMES, 1) + 1
                shown[place[clip]] = {**first, TIMES: times, "last_step": event["step"]}
            else:
                place[clip] = len(shown)
                shown.append(event)
        return tuple(shown)

    @property
    def slowest(self) -> list[dict[str, Any]]:
        """The slowest updates, the slowest first."""
        return sorted(self.lines, key=lambda line: -line["seconds"])[:SLOWEST]

    def to_json(self) -> dict[str, Any]:
        """The page's values as JSON values."""
        counts: dict[str, int] = {}
        for event in self.events:
            counts[event["event"]] = counts.get(event["event"], 0) + 1
        found = self.ledger
        return {
            "run": str(self.path),
            "name": self.name,
            "steps": self.lines[-1]["step"] if self.lines else 0,
            "loss": self.lines[-1]["loss"] if self.lines else None,
            "validation_loss": self.rounds[-1]["loss"] if self.rounds else None,
            "wall_seconds": found.wall_seconds if found else None,
            "goodput": found.goodput if found else None,
            "seconds": found.seconds if found else None,
            "attempts": len(found.attempts) if found else None,
            "events": counts,
            "slowest_steps": [{"step": line["step"], "seconds": line["seconds"]} for line in self.slowest],
        }


def read_run(run: Path) -> RunData:
    """Read a run's folder. Raises InputError for a folder that is no run."""
    lines = metrics.read_metrics(run / metrics.METRICS)
    events = metrics.read_metrics(run / jsonl.EVENTS)
    if not lines and not events:
        raise InputError(
            f"{run}: is no run folder (no {jsonl.EVENTS} in it). Give the folder that `output` named."
        )
    rounds = metrics.read_metrics(run / metrics.VALIDATION)
    events = sorted(events, key=lambda event: event.get("time", 0.0))
    return RunData(
        path=run,
        name=str(run_folder_layout.read_recipe(run).get("name", run.resolve().name)),
        lines=tuple(lines),
        rounds=tuple(rounds),
        events=tuple(events),
        ledger=ledger(lines, rounds, events),
    )
