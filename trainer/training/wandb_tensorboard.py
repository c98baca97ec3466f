"""TensorBoard and Weights & Biases trackers, fed from the run's log files.

Each tracker is a separate process that follows the run's files, so no tracker can stop, slow or change the
training. A tracker that fails is recorded as one event; one that hangs is killed at the end. What a tracker
missed is in the files, and the run's next start sends it.
"""

import argparse
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from trainer.health import timed_command
from trainer.health.watch.stop_requests import STOP_SIGNALS
from trainer.run_folder import jsonl, metrics, sent_lines
from trainer.run_folder.layout import LOGS
from trainer.run_folder.trackers_spec import TrackersSpec
from vidcurate.errors import VidcurateError

POLL_SECONDS = 1.0
CLOSE_SECONDS = 60.0  # limit for a tracker to send the rest when the run ends
LOG_FILES = {metrics.METRICS: "", metrics.VALIDATION: "validation/"}
"""Log files whose numbers are sent, and the prefix of their names. Events are sent as well."""
HIDDEN = ("step", "time", "loss_by_clip")
ALERTS = (
    "guard",
    "stall",
    "slow_rank",
    "clock_step",
    "xid",
    "ecc",
    "gave_up",
)  # disables W&B's own crash reports
INIT = ("project", "name", "group", "config")  # settings passed to W&B


# ── the training's side ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Owner of the trackers: the module to start, and where logs and failures are written."""

    module: str
    logs: Path
    events: Path
    what: str
    """what continues without a failed tracker"""


class Mirrors:
    """The tracker processes of a run, a context manager that never raises or waits long.

    `config` is the recipe. Without a `home` they are the training's.
    """

    def __init__(
        self, spec: TrackersSpec, run: Path, config: dict[str, Any], home: Home | None = None
    ) -> None:
        self._run = run
        self._home = home or Home(
            module="trainer.training.wandb_tensorboard",
            logs=run / LOGS,
            events=run / jsonl.EVENTS,
            what="the run",
        )
        wandb: dict[str, Any] | None = None
        if spec.wandb:
            wandb = {"project": spec.wandb, "config": config}
            for key, variable in (("name", "WANDB_NAME"), ("group", "WANDB_RUN_GROUP")):
                wandb[key] = os.environ.get(variable) or config["name"]
        self._wanted = {"tensorboard": {} if spec.tensorboard else None, "wandb": wandb}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._step = 0

    def begin(self) -> None:
        """Start the trackers; metrics.jsonl must hold valid lines only by now."""
        for kind, settings in self._wanted.items():
            if settings is None:
                continue
            try:
                self._running[kind] = self._start(kind, settings)
            except OSError as error:
                self._tell(kind, "tracker_failed", str(error))

    def _start(self, kind: str, settings: dict[str, Any]) -> "subprocess.Popen[bytes]":
        log = self._log(kind)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", self._home.module, kind, str(self._run)],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
            )
        assert process.stdin is not None
        with suppress(OSError):  # the process has ended: `check` records why
            process.stdin.write(json.dumps(settings).encode() + b"\n")
            process.stdin.flush()
        return process

    def _log(self, kind: str) -> Path:
        return self._home.logs / f"tracker-{kind}.log"

    def _tell(self, kind: str, event: str, error: str) -> None:
        jsonl.append_event(self._home.events, event, self._step, tracker=kind, error=error)
        text = f"{event}: {kind}: {error}; {self._home.what} continues without this tracker"
        print(text, file=sys.stderr, flush=True)

    def check(self, step: int) -> None:
        """Record each failed tracker once."""
        self._step = step
        for kind, process in list(self._running.items()):
            if process.poll() is not None:
                self._forget(kind)

    def _forget(self, kind: str) -> None:
        process = self._running.pop(kind)
        _close(process.stdin)
        if process.returncode:
            lines = self._log(kind).read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
            self._tell(kind, "tracker_failed", f"{last} (exit code {process.returncode})")

    def __enter__(self) -> "Mirrors":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            _close(process.stdin)  # end of input: the tracker sends the rest and exits
        for kind, process in list(self._running.items()):
            try:
                process.wait(CLOSE_SECONDS)
                self._forget(kind)
            except subprocess.TimeoutExpired:
                timed_command.kill(process)
                self._running.pop(kind)
                self._tell(kind, "tracker_late", f"not done {CLOSE_SECONDS:g} s after the run's end, killed")


def _close(pipe: IO[bytes] | None) -> None:
    assert pipe is not None
    with suppress(OSError):  # the tracker had not read its input
        pipe.close()


# ── the mirror's side ───────────────────────────────────────────────────────────────────────────────────────


def scalars(line: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Return a line's numbers by name; those of nested tables as table/name."""
    found: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, dict):
            found |= scalars(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[prefix + name] = float(value)
    return found


IsOver = Callable[[float], bool]
"""Wait up so many seconds for the training to close stdin; return whether it has."""


def new_lines(paths: Sequence[Path], is_over: IsOver) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield (name, line) of each line of these log files until `is_over` and all lines are read.

    A rollback replaces a log file. Of the new metrics file, only newer lines follow; of the events, which
    lose no line and may share a time, the lines behind those already yielded.
    """
    counts = dict.fromkeys(paths, 0)
    places = dict.fromkeys(paths, 0)
    files: dict[Path, int] = {}
    times = dict.fromkeys(paths, -1.0)  # of the last yielded line
    while True:
        is_last = is_over(POLL_SECONDS)
        for path in paths:
            if not path.exists():
                continue
            with path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                is_replaced = files.setdefault(path, inode) != inode
                if is_replaced:
                    files[path], places[path] = inode, 0
                file.seek(places[path])
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            places[path] += len(whole)
            for number, line in enumerate(map(json.loads, whole.splitlines())):
                is_counted = path.name == jsonl.EVENTS
                if is_replaced and (number < counts[path] if is_counted else line["time"] <= times[path]):
                    continue
                counts[path] += 1
                times[path] = line.get("time", times[path])
                yield path, line
        if is_last:
            return


def follow(run: Path, is_over: IsOver) -> Iterator[tuple[str, dict[str, Any], dict[str, float]]]:
    """Yield (name, line, its numbers by name) of each line until `is_over` and all lines are read.

    For an event the numbers are `events/NAME`: the count of its kind.
    """
    kinds: Counter[str] = Counter()
    for path, line in new_lines([run / name for name in (*LOG_FILES, jsonl.EVENTS)], is_over):
        if path.name == jsonl.EVENTS:
            kinds[line["event"]] += 1
            yield path.name, line, {f"events/{line['event']}": float(kinds[line["event"]])}
            continue
        shown = {key: value for key, value in line.items() if key not in HIDDEN}
        yield path.name, line, scalars(shown, LOG_FILES[path.name])


def facts_of(event: dict[str, Any]) -> str:
    """Return an event's facts as JSON, without its name, step and time."""
    facts = {key: value for key, value in event.items() if key not in ("event", "step", "time")}
    return json.dumps(facts, ensure_ascii=False, indent=1)


def _tensorboard(run: Path, settings: dict[str, Any], is_over: IsOver) -> None:
    """Rewrite RUN/tensorboard from the first step on; a rollback drops the later steps.

    Events stay: they are texts in a separate folder. TensorBoard shows only rising steps per name (data
    server 0.7), so an event with an equal step is shown as `events/NAME/2` and so on.
    """
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_TENSOR, Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder = run / "tensorboard"
    shutil.rmtree(folder, ignore_errors=True)
    writer = EventFileWriter(str(folder), flush_secs=10)
    texts = EventFileWriter(str(folder / "events"), flush_secs=10)
    plugin = SummaryMetadata.PluginData(plugin_name="text")
    is_text = SummaryMetadata(plugin_data=plugin, data_class=DATA_CLASS_TENSOR)
    last: dict[str, int] = {}
    for log_file, line, numbers in follow(run, is_over):
        if log_file == jsonl.EVENTS:
            (first,) = numbers
            tags = (first if number == 1 else f"{first}/{number}" for number in itertools.count(1))
            tag = next(name for name in tags if line["step"] > last.get(name, -1))
            last[tag] = line["step"]
            data = f"```json\n{facts_of(line)}\n```".encode()
            text = TensorProto(dtype="DT_STRING", string_val=[data], tensor_shape=TensorShapeProto())
            value = Summary.Value(tag=tag, metadata=is_text, tensor=text)
            wall_time = line.get("time", 0.0)
            texts.add_event(Event(step=line["step"], wall_time=wall_time, summary=Summary(value=[value])))
            continue
        if line["step"] <= last.get(log_file, -1):
            begun = SessionLog(status=SessionLog.START)  # the reader drops its values of this step and later
            writer.add_event(Event(step=line["step"], wall_time=line["time"], session_log=begun))
        last[log_file] = line["step"]
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        writer.add_event(Event(step=line["step"], wall_time=line["time"], summary=Summary(value=values)))
    writer.close()
    texts.close()


def _wandb(run: Path, settings: dict[str, Any], is_over: IsOver) -> None:
    """Log to one W&B run over all starts; only the steps of a rollback appear twice.

    The steps are a separate metric, because W&B's own step counter drops values that do not rise. Events
    share steps and are never withdrawn: the tracker stores how many it has sent.
    """
    import wandb

    kept = run / "wandb" / sent_lines.NAME
    sent = sent_lines.begin(kept)
    there = wandb.init(
        **{name: settings[name] for name in INIT},
        dir=run,
        id=sent.id,
        resume="allow",
        settings=wandb.Settings(console="off"),
    )
    there.define_metric("*", step_metric="step")
    last: dict[str, int] = {}
    num_events = 0
    for log_file, line, numbers in follow(run, is_over):
        if log_file == jsonl.EVENTS:
            num_events += 1
            if num_events > sent.lines.get(log_file, 0):
                there.log({"step": line["step"], **numbers})
                if line["event"] in ALERTS:
                    title = f"{line['event']} at step {line['step']}"
                    there.alert(title, facts_of(line), level="WARN")
                sent.lines[log_file] = num_events
                sent_lines.write(kept, sent)
            continue
        if line["step"] <= last.get(log_file, -1):
            sent.steps[log_file] = line["step"] - 1
        last[log_file] = line["step"]
        if line["step"] <= sent.steps.get(log_file, -1):
            continue
        there.log({"step": line["step"], **numbers})
        sent.steps[log_file] = line["step"]
        sent_lines.write(kept, sent)
    there.finish()


Mirror = Callable[[Path, dict[str, Any], IsOver], None]
KINDS: dict[str, Mirror] = {"tensorboard": _tensorboard, "wandb": _wandb}


def _is_over(seconds: float) -> bool:
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def main(module: str = "trainer.training.wandb_tensorboard", kinds: Mapping[str, Mirror] = KINDS) -> None:
    """Run one tracker; stdin brings one line with its settings, and closes when the work ends."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description="Send a run's log files to a tracker."
    )
    parser.add_argument("kind", choices=list(kinds))
    parser.add_argument("run", type=Path)
    given = parser.parse_args()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the parent process decides when the work is over
    settings = json.loads(sys.stdin.readline())
    try:
        kinds[given.kind](given.run, settings, _is_over)
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is not installed: pip install 'vidcurate[{given.kind}]'")
    except VidcurateError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
