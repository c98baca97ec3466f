"""Trackers follow the log files, and nothing they do can affect the training."""

import importlib
import json
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.shards_for_tests import events, make_shards, numbers, smoke
from trainer.run_folder import jsonl, metrics, sent_lines
from trainer.train import train
from trainer.training import wandb_tensorboard

SHORT = ("stages.0.steps=3", "stages.0.log_every=1", "sample=null")
WANDB = "trackers.wandb=vidcurate-tests"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    # On a busy machine a tracker needs a minute to load its package: what it writes is tested, not its speed.
    monkeypatch.setattr(wandb_tensorboard, "CLOSE_SECONDS", 400.0)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards", validation=(10, 11))


@pytest.fixture(scope="module")
def untracked(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("untracked") / "run"
    train(smoke(shards, run, *SHORT))
    return run


def wanted(run: Path) -> dict[str, dict[int, float]]:
    """Return name → step → value of everything that a mirror has to show."""
    found: dict[str, dict[int, float]] = {}
    for name, prefix in wandb_tensorboard.LOG_FILES.items():
        for line in metrics.read_metrics(run / name):
            shown = {key: value for key, value in line.items() if key not in wandb_tensorboard.HIDDEN}
            for tag, value in wandb_tensorboard.scalars(shown, prefix).items():
                found.setdefault(tag, {})[line["step"]] = value
    return found


def test_numbers_are_named_by_their_place_and_words_are_left_out() -> None:
    line = {
        "loss": 1.5,
        "stage": "first",
        "loss_by_bucket": {"144p": 2},
        "notes": ["x"],
        "ok": True,
        "bad": "nan",
    }

    assert wandb_tensorboard.scalars(line) == {"loss": 1.5, "loss_by_bucket/144p": 2.0}
    assert wandb_tensorboard.scalars(line, "validation/")["validation/loss_by_bucket/144p"] == 2.0


def test_a_log_file_that_a_rollback_has_cut_is_followed_with_its_new_lines_alone(tmp_path: Path) -> None:
    path = tmp_path / metrics.METRICS
    same = {"stage": "one", "seconds": 1.0, "data_seconds": 0.1}
    for step in range(1, 7):
        jsonl.append_line(path, {**same, "step": step, "time": float(step), "loss": 0.5})
    turns: list[float] = []

    def is_over(seconds: float) -> bool:
        turns.append(seconds)
        if len(turns) == 2:  # between two looks: back to step 3, and three steps from there, longer lines
            metrics.forget_after(tmp_path, 3)
            for step in range(4, 7):
                line = {**same, "step": step, "time": 10.0 + step, "loss": 0.25, "more": "x" * 99}
                jsonl.append_line(path, line)
        return len(turns) == 3

    lines = [line for _, line in wandb_tensorboard.new_lines([path], is_over)]

    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 4, 5, 6]
    assert [line["loss"] for line in lines[6:]] == [0.25] * 3


def test_tensorboard_shows_every_number_of_every_step_once_also_after_a_resume(
    shards: Path, tmp_path: Path
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, on = tmp_path / "run", "trackers.tensorboard=true"
    train(smoke(shards, run, *SHORT, "validation.every=2", on, "stages.0.steps=2"))
    train(smoke(shards, run, *SHORT, "validation.every=2", on))

    shown = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    shown.Reload()
    tags = shown.Tags()["scalars"]
    assert sorted(tags) == sorted(wanted(run))
    for tag in tags:
        steps = {event.step: event.value for event in shown.Scalars(tag)}
        assert steps == pytest.approx(wanted(run)[tag], rel=1e-6), tag
        assert len(shown.Scalars(tag)) == len(steps)
    assert {"loss", "validation/loss", "loss_by_timestep/500-600"} & set(tags) >= {"loss", "validation/loss"}
    assert not events(run, "tracker_failed")


def tell(run: Path) -> None:
    """Add what a guard and its like tell of: two at one step, then one behind a rollback, and a stranger."""
    for reason in ("first", "second"):
        jsonl.record_event(run, "guard", 2, action="skip", reason=reason, figures={"z": 9.5})
    jsonl.record_event(run, "guard", 1, action="rollback", reason="third")
    jsonl.record_event(run, "comet", 2, words="```\n<b>unheard of</b>")
    jsonl.record_event(run, "gave_up", 2, exit_code=1)


def facts(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in ("event", "step", "time")}


def test_tensorboard_shows_every_event_once_with_its_facts_also_behind_a_rollback_and_a_resume(
    shards: Path, tmp_path: Path
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, on = tmp_path / "run", "trackers.tensorboard=true"
    train(smoke(shards, run, *SHORT, on, "stages.0.steps=2"))
    tell(run)
    train(smoke(shards, run, *SHORT, on))

    shown = EventAccumulator(str(run / "tensorboard" / "events"), size_guidance={"tensors": 0})
    shown.Reload()
    found: list[tuple[str, int, float, str]] = []
    for tag in shown.Tags()["tensors"]:
        assert shown.SummaryMetadata(tag).plugin_data.plugin_name == "text"
        steps = [entry.step for entry in shown.Tensors(tag)]
        assert steps == sorted(set(steps)), "TensorBoard's data server drops what does not rise"
        for entry in shown.Tensors(tag):
            (text,) = entry.tensor_proto.string_val
            head, body, end = text.decode().partition("\n")[0], text.decode()[8:-4], text.decode()[-4:]
            assert (head, end) == ("```json", "\n```")
            found.append((tag.split("/")[1], entry.step, entry.wall_time, json.dumps(json.loads(body))))
    reported = metrics.read_metrics(run / jsonl.EVENTS)
    assert sorted(found) == sorted(
        (line["event"], line["step"], line["time"], json.dumps(facts(line))) for line in reported
    )
    assert {"start", "guard", "comet", "gave_up", "resume", "done"} <= {line["event"] for line in reported}


def test_wandb_counts_every_event_once_and_alerts_of_the_grave_ones_over_two_starts(
    shards: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(smoke(shards, run, *SHORT, WANDB, "stages.0.steps=2"))
    tell(run)
    train(smoke(shards, run, *SHORT, WANDB))

    counted: list[tuple[str, int, int]] = []
    alerts: list[tuple[str, dict[str, Any]]] = []
    for record in wandb_run(run):
        values = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        for name in values:
            if name.startswith("events/"):
                counted.append((name[7:], int(values["step"]), int(float(values[name]))))
        if record.HasField("alert"):
            alerts.append((record.alert.title, json.loads(record.alert.text)))
    reported = metrics.read_metrics(run / jsonl.EVENTS)
    kinds: Counter[str] = Counter()
    expected = []
    for line in reported:
        kinds[line["event"]] += 1
        expected.append((line["event"], line["step"], kinds[line["event"]]))
    assert counted == expected
    grave = [line for line in reported if line["event"] in ("guard", "gave_up")]
    assert alerts == [(f"{line['event']} at step {line['step']}", facts(line)) for line in grave]


def test_a_log_file_of_events_that_was_replaced_loses_none_and_repeats_none(tmp_path: Path) -> None:
    path = tmp_path / jsonl.EVENTS
    same = {"step": 2, "time": 5.0}
    jsonl.append_line(path, {"event": "guard", **same})
    turns: list[float] = []

    def is_over(seconds: float) -> bool:
        turns.append(seconds)
        if len(turns) == 2:  # a power cut left half a line, which a resume takes out
            with path.open("ab") as file:
                file.write(b'{"event": "gu')
            metrics.forget_after(tmp_path, 1)
            jsonl.append_line(path, {"event": "stall", **same})
            jsonl.append_line(path, {"event": "xid", "step": 2})
        return len(turns) == 3

    lines = [line["event"] for _, line in wandb_tensorboard.new_lines([path], is_over)]

    assert lines == ["guard", "stall", "xid"]


def test_wandb_keeps_the_run_offline_and_one_identity_over_two_starts(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    monkeypatch.setenv("WANDB_NAME", "a name")
    monkeypatch.setenv("WANDB_TAGS", "a test")
    train(smoke(shards, run, *SHORT, WANDB, "stages.0.steps=2"))
    train(smoke(shards, run, *SHORT, WANDB))

    assert not events(run, "tracker_failed"), (run / "logs" / "tracker-wandb.log").read_text()
    losses: dict[int, list[float]] = {}
    ids = set()
    for record in wandb_run(run):
        if record.HasField("run"):
            ids.add(record.run.run_id)
            assert record.run.project == "vidcurate-tests"
            assert (record.run.display_name, record.run.run_group) == ("a name", "tiny")
            assert list(record.run.tags) == ["a test"]
        values = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        if "loss" in values:
            losses.setdefault(int(values["step"]), []).append(float(values["loss"]))
    assert losses == {line["step"]: [line["loss"]] for line in numbers(run)}
    assert len(ids) == 1


def wandb_run(run: Path) -> Iterator[Any]:
    """Yield the records that W&B has kept of a run, start by start."""
    records: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    for path in sorted((run / "wandb").glob("offline-run-*/run-*.wandb")):
        for data in wandb_records(path):
            record = records.Record()
            record.ParseFromString(data)
            yield record


def wandb_records(path: Path) -> Iterator[bytes]:
    """Yield the records of a .wandb file: a head of 7 bytes, then LevelDB's log in blocks of 32 KiB."""
    data, place, record = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while place + 7 <= len(data):
        room = 32_768 - place % 32_768
        if room < 7:
            place += room
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        record += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


BROKEN = {
    "raises on import": ("raise RuntimeError('no network, no quota')", "no network, no quota"),
    "is killed": ("import os; os.kill(os.getpid(), 9)", "exit code -9"),
    "is not installed": (None, "wandb is not installed: pip install 'vidcurate[wandb]'"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_tracker_that_fails_is_one_event_and_the_run_resumes(
    shards: Path, untracked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    program, said = BROKEN[how]
    package = tmp_path / "broken" / "wandb"
    package.mkdir(parents=True)
    missing = "raise ModuleNotFoundError(\"No module named 'wandb'\", name='wandb')"
    (package / "__init__.py").write_text(program or missing)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))

    train(smoke(shards, tmp_path / "run", *SHORT, WANDB))

    (event,) = events(tmp_path / "run", "tracker_failed")
    assert event["tracker"] == "wandb"
    assert said in event["error"]
    assert numbers(tmp_path / "run") == numbers(untracked)


def test_a_damaged_record_of_sent_lines_is_one_event_that_says_what_to_delete(
    shards: Path, untracked: Path, tmp_path: Path
) -> None:
    record = tmp_path / "run" / "wandb" / sent_lines.NAME
    record.parent.mkdir(parents=True)
    record.write_text('{"id": "0123abcd", "steps": {"metr')

    train(smoke(shards, tmp_path / "run", *SHORT, WANDB))

    (event,) = events(tmp_path / "run", "tracker_failed")
    assert f"{record}: not a record of sent lines" in event["error"]
    assert "Delete it" in event["error"]
    assert numbers(tmp_path / "run") == numbers(untracked)


def test_a_tracker_that_hangs_is_left_behind_at_the_end(
    shards: Path, untracked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "broken" / "wandb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setattr(wandb_tensorboard, "CLOSE_SECONDS", 0.5)
    began = time.monotonic()

    train(smoke(shards, tmp_path / "run", *SHORT, WANDB))

    assert time.monotonic() - began < 400
    (event,) = events(tmp_path / "run", "tracker_late")
    assert event["tracker"] == "wandb"
    assert numbers(tmp_path / "run") == numbers(untracked)
