"""Metrics files can be read after any kill, and have all digits."""

import json
import resource
import time
from pathlib import Path

import numpy as np
import pytest

from trainer.run_folder import jsonl, layout, metrics
from vidcurate.errors import StorageError

LINE = {"step": 1, "stage": "one", "loss": 0.5, "time": 1.0, "seconds": 1.0, "data_seconds": 0.1}


def test_a_loss_is_written_with_all_its_digits(tmp_path: Path) -> None:
    loss = float(np.float32(0.1) + np.float32(1e-8))

    jsonl.append_line(tmp_path / "metrics.jsonl", {**LINE, "loss": loss})

    assert metrics.read_metrics(tmp_path / "metrics.jsonl") == [{**LINE, "loss": loss}]


@pytest.mark.parametrize("letter", ["\u2028", "\x85", "\x1c", "\x0b"])
def test_a_name_with_another_line_break_stays_in_its_line(tmp_path: Path, letter: str) -> None:
    for step in (1, 2):
        jsonl.record_event(tmp_path, "clip_substituted", step, clip_id=f"a{letter}b")
    assert [line["clip_id"] for line in metrics.read_metrics(tmp_path / jsonl.EVENTS)] == [f"a{letter}b"] * 2


def test_a_line_of_brackets_is_named(tmp_path: Path) -> None:
    (tmp_path / jsonl.EVENTS).write_text("[" * 100_000 + "\n")
    with pytest.raises(StorageError, match="line 1 is damaged"):
        metrics.read_metrics(tmp_path / jsonl.EVENTS)


def test_what_is_no_number_is_still_json(tmp_path: Path) -> None:
    jsonl.append_line(
        tmp_path / "metrics.jsonl", {"step": 1, "loss": float("nan"), "by": {"a": [float("inf")]}}
    )

    line = (tmp_path / "metrics.jsonl").read_text()

    assert json.loads(line, parse_constant=pytest.fail) == {"step": 1, "loss": "nan", "by": {"a": ["inf"]}}


def test_steps_behind_the_checkpoint_are_forgotten_and_a_torn_line_is_mended(tmp_path: Path) -> None:
    for step in range(1, 6):
        jsonl.append_line(tmp_path / "metrics.jsonl", {**LINE, "step": step, "loss": step / 3})
    jsonl.record_event(tmp_path, "save", 4, path="step-00000004")
    (before,) = metrics.read_metrics(tmp_path / "events.jsonl")
    assert before == {"event": "save", "step": 4, "time": before["time"], "path": "step-00000004"}
    assert abs(before["time"] - time.time()) < 60
    for name in ("metrics.jsonl", "events.jsonl"):
        with (tmp_path / name).open("a") as file:
            file.write('{"step": 6, "lo')
    first = (tmp_path / "metrics.jsonl").read_text().splitlines()[:3]

    dropped = metrics.forget_after(tmp_path, 3)

    assert dropped == 2
    assert (tmp_path / "metrics.jsonl").read_text().splitlines() == first
    kept, lost = metrics.read_metrics(tmp_path / "events.jsonl")
    assert (kept, lost["event"], lost["steps"]) == (before, "steps_dropped", 2)
    jsonl.record_event(tmp_path, "resume", 3)
    assert [line["event"] for line in metrics.read_metrics(tmp_path / "events.jsonl")][2:] == ["resume"]


def test_means_are_float32_and_sorted_by_name() -> None:
    losses = np.array([0.1, 0.2, 0.4])

    means = metrics.mean_by(losses, ["b", "a", "b"])

    assert list(means) == ["a", "b"]
    assert means["b"] == float(np.float32((0.1 + 0.4) / 2))
    assert metrics.mean(losses) == float(np.float32(losses.sum() / 3))


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"metrics\.jsonl: cannot be written"):
        jsonl.append_line(tmp_path / "no such folder" / "metrics.jsonl", {"step": 1})


def test_a_log_that_is_a_link_is_refused_and_its_target_stays(tmp_path: Path) -> None:
    """A copied run folder may lead to any file of its reader's."""
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    (tmp_path / "metrics.jsonl").symlink_to(mine)
    with pytest.raises(
        StorageError, match=r"metrics\.jsonl: cannot be written \(Too many levels of symbolic"
    ):
        jsonl.append_line(tmp_path / "metrics.jsonl", {"step": 1})
    assert mine.read_text() == "mine"


def test_a_line_that_the_disk_takes_a_part_of_is_an_error_at_once(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    jsonl.record_event(tmp_path, "start", 0)
    size = (tmp_path / jsonl.EVENTS).stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"events\.jsonl: cannot be written \(No space left"):
            jsonl.record_event(tmp_path, "stage", 0, stage="first")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / jsonl.EVENTS).stat().st_size == size
    assert [line["event"] for line in metrics.read_metrics(tmp_path / jsonl.EVENTS)] == ["start"]


@pytest.mark.parametrize(
    ("seconds", "words"), [(7.6, "8 s"), (200, "3 min 20 s"), (18720, "5 h 12 min"), (-1, "0 s")]
)
def test_durations_are_said_as_text(seconds: float, words: str) -> None:
    assert metrics.seconds_as_text(seconds) == words


def test_a_timestep_lies_in_its_tenth_and_the_ends_have_one_too() -> None:
    bins = metrics.timestep_bins(np.array([0.0, 99.9, 100.0, 555.5, 999.9, 1000.0]))

    assert bins == ["0-100", "0-100", "100-200", "500-600", "900-1000", "900-1000"]


@pytest.mark.parametrize("damage", ["\0" * 20, "4", '{"step": 2'])
def test_a_damaged_line_in_the_middle_is_named_with_the_way_out(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = json.dumps(LINE)
    path.write_text(f"{whole}\n{damage}\n{whole}\n")
    with pytest.raises(StorageError, match=rf"metrics.jsonl: line 2 is damaged .* sed -i 2d {path}"):
        metrics.read_metrics(path)


def test_the_console_line_keeps_step_loss_and_time_left_at_a_narrow_terminal() -> None:
    line = {
        "stage": "first", "step": 5, "loss": 1.463066, "lr": 1e-3, "grad_norm": 0.637, "mfu": 0.31,
        "tokens_per_second": 3866.0, "data_seconds": 0.1, "seconds": 1.0,
    }  # fmt: skip
    whole = metrics.console_line(line, 20, 60.0)
    assert whole.endswith(
        "loss 1.463066  lr 0.001  grad 0.637  3,866 tokens/s  MFU 31.0 %  data 10 %  15 min 0 s left"
    )
    for width in (80, 60):
        narrow = metrics.console_line(line, 20, 60.0, width)
        assert len(narrow) <= width
        assert narrow.startswith("first  step 5/20  loss 1.463066  ")
        assert narrow.endswith("  15 min 0 s left")
    assert metrics.console_line(line, 20, 60.0, 10) == "first  step 5/20  loss 1.463066  15 min 0 s left"


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": 2, "event": "\xff"}',
        b"[2]",
        b'{"step": "2"}',
        b'{"event": "done"}',
        b'{"step": 2, "time": "x"}',
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    jsonl.record_event(tmp_path, "start", 1)
    with (tmp_path / jsonl.EVENTS).open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(StorageError, match="line 2 is damaged"):
        metrics.read_metrics(tmp_path / jsonl.EVENTS)


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"stages": [3]}', b'{"stages": 3}', b"[" * 100_000])
def test_a_damaged_recipe_of_a_run_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / layout.RECIPE).write_bytes(data)
    with pytest.raises(StorageError, match=r"recipe\.json: cannot be read"):
        layout.read_recipe(tmp_path)
