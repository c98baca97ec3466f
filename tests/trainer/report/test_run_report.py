"""The run report: a ledger that adds up exactly, every event there, hostile words harmless."""

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.forked_runs import Forks
from tests.trainer.shards_for_tests import command_words, events, make_shards
from trainer.report import command as report_command
from trainer.report import curves, event_marks
from trainer.report.goodput import PARTS, Ledger, ledger
from trainer.report.read import read_run
from trainer.run_folder import jsonl, metrics, process_table

KEPT = ("stages.0.steps=8", "stages.0.checkpoint_every=3", "stages.0.log_every=1", "validation.every=4")
SAMPLED = ("sample.every=4", "sample.steps=1", "preflight.at_start=false")


def line(step: int, at: float, seconds: float = 1.0, data_seconds: float = 0.25) -> dict[str, Any]:
    return {"step": step, "time": at, "seconds": seconds, "data_seconds": data_seconds, "loss": 1.0}


def event(name: str, step: int, at: float, **facts: Any) -> dict[str, Any]:
    return {"event": name, "step": step, "time": at, **facts}


def check_adds_up(found: Ledger) -> None:
    assert sum(round(1e6 * seconds) for seconds in found.seconds.values()) == round(1e6 * found.wall_seconds)
    for (_, end, part), (begin, _, other) in zip(found.intervals, found.intervals[1:], strict=False):
        assert end == begin
        assert part != other


def test_a_constructed_run_is_parted_as_it_was() -> None:
    lines = [line(1, 113, 3.0), line(2, 114), line(3, 117), line(4, 210), line(5, 211)]
    rounds = [{"step": 2, "time": 116.0, "seconds": 2.0, "loss": 1.0}]
    reported = [
        event("start", 0, 110, process_began=100.0),
        event("save", 3, 117.5, seconds=0.5, stall_seconds=0.5),
        event("steps_dropped", 3, 208, lost_from=117.5, lost_until=120.5),
        event("resume", 3, 208, process_began=200.0),
        event("sample", 5, 212.5, seconds=1.5, clips=2),
        event("done", 5, 213),
    ]
    found = ledger(lines, rounds, reported)
    assert found is not None
    check_adds_up(found)
    assert found.wall_seconds == 113.0
    assert [(one.kind, one.step) for one in found.attempts] == [("start", 0), ("resume", 3)]
    assert found.seconds == {
        "idle": 79.5,  # from the last step that was made, and is lost, to the next process
        "other": 0.5,  # behind the samples
        "productive": 3.75,
        "start-up": 10 + 2 + 9,  # to the first step, what that took longer, and again to that of the resume
        "data wait": 5 * 0.25,
        "checkpoint": 0.5,
        "sampling": 1.5,
        "validation": 2.0,
        "lost": 3.0,
    }
    assert found.goodput == 3.75 / 113


def test_log_files_of_an_older_version_have_no_ledger() -> None:
    assert ledger([], [], [{"event": "start", "step": 0}]) is None


def test_a_clock_that_was_set_back_makes_no_part_negative() -> None:
    lines = [line(1, 105), line(2, 104), line(3, 107)]
    found = ledger(lines, [], [event("start", 0, 103, process_began=102.0), event("done", 3, 106)])
    assert found is not None
    check_adds_up(found)
    assert min(found.seconds.values()) >= 0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Path:
    """A run that was killed behind its first checkpoint, and then finished."""
    home = tmp_path_factory.mktemp("reported")
    shards = make_shards(home / "shards", validation=(10, 11))
    words = command_words(shards, home / "run", *KEPT, *SAMPLED, "stages.0.steps=2000")
    process = forks.start(words)
    until = time.monotonic() + 300
    while not any(step["step"] > 3 for step in metrics.read_metrics(home / "run" / metrics.METRICS)):
        assert time.monotonic() < until
        assert process_table.state(process.pids[0]) != "ended", process.text()
        time.sleep(0.005)
    os.kill(process.pids[0], signal.SIGKILL)
    assert process.codes() == [-signal.SIGKILL]
    newest = int((home / "run" / "LATEST").read_text().strip().removeprefix("step-"))
    words = command_words(shards, home / "run", *KEPT, *SAMPLED, f"stages.0.steps={newest + 4}")
    forks.start(words).succeed()
    return home / "run"


def test_a_real_run_that_was_killed_adds_up_and_knows_what_it_lost(run: Path) -> None:
    found = read_run(run).ledger

    assert found is not None
    check_adds_up(found)
    assert [one.kind for one in found.attempts] == ["start", "resume"]
    for part in ("productive", "start-up", "data wait", "checkpoint", "sampling", "validation", "idle"):
        assert found.seconds[part] > 0, part
    (resumed,) = events(run, "resume")
    dropped = events(run, "steps_dropped")
    assert [one["steps"] for one in dropped] == (
        [resumed["repeated_steps"]] if resumed["repeated_steps"] else []
    )
    assert (found.seconds["lost"] > 0) == bool(dropped)


def test_the_page_of_a_run_shows_its_parts_and_links_its_samples(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_command.main([str(run)]) == 0
    assert "updates" in capsys.readouterr().out

    page = (run / "report.html").read_text()
    for part in ("goodput", "curves", "events", "slowest", "samples"):
        assert f'<section id="{part}">' in page
    for title in ("Loss by bucket", "Loss by level", "Loss by timestep", "Validation loss"):
        assert f"<h3>{title}" in page
    assert "Loss by source" not in page  # of one source it is the loss
    for title in ("Gradient norm", "Weight norm", "Learning rate", "Tokens per second", "Data wait"):
        assert f"<h3>{title}" in page
    assert f"python -m trainer inspect {run} --step" in page
    assert "<script" not in page
    videos = [part.split('"')[0] for part in page.split('<video src="')[1:]]
    assert videos
    assert all((run / video).is_file() for video in videos)
    assert page.count('href="#event-0-') >= 3


def test_the_strip_over_time_has_attempts_with_their_gaps_and_each_event_at_its_time(tmp_path: Path) -> None:
    reported = [
        event("start", 0, 100, process_began=100.0),
        event("guard", 2, 120, action="skip", reason="a <spike>"),
        event("restart", 3, 140),
        event("resume", 3, 160, process_began=150.0),
        event("done", 5, 200),
        event("gave_up", 5, 999),
    ]
    for one in reported:
        jsonl.append_line(tmp_path / jsonl.EVENTS, one)
    for number in (1, 2, 3):
        jsonl.append_line(tmp_path / metrics.METRICS, {**line(number, 110.0 + 5 * number), "stage": "one"})

    assert report_command.main([str(tmp_path)]) == 0

    page = (tmp_path / "report.html").read_text()
    strip = page.split('<svg class="times"')[1].split("</svg>")[0]
    bars = re.findall(r'class="attempt" x="([\d.]+)%" y="24" width="([\d.]+)%"', strip)
    assert [tuple(map(float, bar)) for bar in bars] == [(0, 25), (50, 50)]  # idle from 125 s to 150 s
    flags = dict(re.findall(r'href="#(event-0-\d)".*?<circle [^>]*cx="([\d.]+)%"', strip))
    assert {name: float(x) for name, x in flags.items()} == {
        f"event-0-{number}": x for number, x in enumerate((0, 20, 40, 60, 100, 100))
    }
    assert "20.0 s: guard at step 2 (action: skip; reason: a &lt;spike&gt;)" in strip
    assert all(f'<tr id="{name}">' in page for name in flags)


EVENTS = (
    *("start", "resume", "load", "load_from_scratch", "weights", "stage", "save", "sample", "stop", "done"),
    *("guard", "stall", "slow_rank", "throughput_drop", "clock_step", "xid", "ecc", "preflight", "restart"),
    *("excluded", "gave_up", "served", "clip_substituted", "worker_replaced", "data_changed"),
    *("tracker_failed", "steps_dropped", "comet"),
)


def test_every_kind_of_event_is_on_the_page_the_unknown_and_the_hostile_too(tmp_path: Path) -> None:
    for number, name in enumerate(EVENTS):
        facts = {"reason": "<script>alert(1)</script>", "clip_ids": ["a", "b&c"], "ranks": {"0": 1}}
        jsonl.append_line(tmp_path / jsonl.EVENTS, event(name, number, 100.0 + number, **facts))
    for step in range(1, 30):
        jsonl.append_line(
            tmp_path / metrics.METRICS, {**line(step, 100.0 + step), "stage": "one", "loss": "nan"}
        )

    assert report_command.main([str(tmp_path)]) == 0

    page = (tmp_path / "report.html").read_text()
    for number, name in enumerate(EVENTS):
        assert f'id="event-0-{number}"' in page
        assert f"</i>{name.replace('_', '_<wbr>')}</th>" in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_several_runs_lie_over_each_other(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "both.html"
    assert report_command.main([str(run), str(run), "--out", str(out), "--json"]) == 0

    reported = json.loads(capsys.readouterr().out)["runs"]
    assert len(reported) == 2
    assert set(reported[0]["seconds"]) == set(PARTS)
    page = out.read_text()
    assert page.count("<h3>Gradient norm") == 1
    assert 'class="line ink-1"' in page
    videos = [part.split('"')[0] for part in page.split('<video src="')[1:]]
    assert all((tmp_path / video).is_file() for video in videos)


def test_what_is_no_run_and_two_runs_without_a_place_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_command.main([str(tmp_path)]) == 2
    assert "is no run folder" in capsys.readouterr().err
    assert report_command.main([str(tmp_path), str(tmp_path)]) == 2
    assert "--out" in capsys.readouterr().err
    assert not os.listdir(tmp_path)
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text("name: tiny\n")
    for missing in (recipe, tmp_path / "none"):
        assert report_command.main([str(missing)]) == 2
        assert capsys.readouterr().err == f"error: {missing}: no such run folder.\n"


def test_a_stopped_run_has_no_lost_time() -> None:
    reported = [
        event("start", 0, 10, process_began=9.0),
        event("stop", 2, 14, signal=signal.Signals(15).name),
    ]
    found = ledger([line(1, 12), line(2, 13)], [], reported)
    assert found is not None
    check_adds_up(found)
    assert found.seconds["lost"] == 0


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ([event("done", 3, 140)], ">Done</a> at step 3; begun 1970-01-01 00:01:40, last sign"),
        ([event("stop", 3, 140, reason="SIGTERM")], ">Stopped on a signal and saved</a> at step 3 (SIGTERM)"),
        ([event("guard", 3, 140, action="stop", reason="nan")], ">Stopped by the guard</a> at step 3 (nan)"),
        ([event("guard", 3, 140, action="warn")], "Not done: still running, or killed. Last step 3"),
        (
            [event("stop", 3, 140), event("resume", 3, 150)],
            "Not done: still running, or killed. Last step 3",
        ),
    ],
)
def test_the_page_begins_with_how_the_run_ended(
    tmp_path: Path, last: list[dict[str, Any]], said: str
) -> None:
    for one in [event("start", 0, 100, process_began=100.0), event("slow_rank", 1, 120), *last]:
        jsonl.append_line(tmp_path / jsonl.EVENTS, one)

    assert report_command.main([str(tmp_path)]) == 0

    head = (tmp_path / "report.html").read_text().split("</header>")[0]
    assert said in head
    assert '1 × <a href="#event-0-1">slow_rank</a>' in head


def test_an_event_says_its_facts_in_a_line_and_long_times_are_reported_in_hours(tmp_path: Path) -> None:
    facts = {"path": "step-3", "deleted": [], "seconds": 0.123456, "reason": "it was time."}
    for one in [event("start", 0, 0, process_began=0.0), event("save", 3, 93784, **facts)]:
        jsonl.append_line(tmp_path / jsonl.EVENTS, one)

    assert report_command.main([str(tmp_path)]) == 0

    page = (tmp_path / "report.html").read_text()
    assert "<summary>reason it was time, path step-3, seconds 0.1235</summary>" in page
    assert '<td class="n moment">1970-01-02 02:03:04</td><td class="n">1 d 2:03:04</td>' in page
    assert ">20 h</text>" in page


def test_the_events_of_one_damaged_clip_are_one_flag_and_one_row(tmp_path: Path) -> None:
    facts = {"kind": "corrupt_frame", "reason": "frame 3 is damaged.", "fallback": "other"}
    jsonl.append_line(tmp_path / jsonl.EVENTS, event("start", 0, 0, process_began=0.0))
    for step in range(1, 24):
        one = event("clip_substituted", step, float(step), clip_id="a/bad", **facts)
        jsonl.append_line(tmp_path / jsonl.EVENTS, one)
    jsonl.append_line(tmp_path / jsonl.EVENTS, event("clip_substituted", 24, 24.0, clip_id="b", **facts))
    for step in range(1, 30):
        jsonl.append_line(tmp_path / metrics.METRICS, {**line(step, step + 0.5), "stage": "one"})

    assert report_command.main([str(tmp_path)]) == 0

    page = (tmp_path / "report.html").read_text()
    assert page.count("</i>clip_<wbr>substituted</th>") == 2
    assert "<dt>times</dt><dd>23</dd><dt>last_step</dt><dd>23</dd>" in page
    assert '24 × <a href="#event-0-1">clip_substituted</a>' in page
    assert len(set(re.findall(r'href="#(event-0-\d+)"', page))) == 3
    assert len(read_run(tmp_path).events) == 25


@pytest.mark.parametrize(
    ("losses", "is_log"), [([1.0, 0.9, 0.8], False), ([20.0, 1.0, 0.05], True), ([8.0, 0.0, 1.0], False)]
)
def test_losses_that_fall_far_have_a_logarithmic_axis(
    tmp_path: Path, losses: list[float], is_log: bool
) -> None:
    for step, loss in enumerate(losses, start=1):
        jsonl.append_line(
            tmp_path / metrics.METRICS, {**line(step, step + 0.5), "stage": "one", "loss": loss}
        )

    assert report_command.main([str(tmp_path)]) == 0

    panel = re.findall(r'<div class="panel"><h3>Loss.*?</div>', (tmp_path / "report.html").read_text())[0]
    assert ("logarithmic" in panel) is is_log
    if is_log:
        heights = {
            text: float(y) for y, text in re.findall(r'y="([\d.]+)" text-anchor="end">([\d.]+)</text>', panel)
        }
        assert heights["0.1"] - heights["1"] == pytest.approx(heights["1"] - heights["10"], abs=0.2)


def test_logarithmic_ticks_are_round() -> None:
    assert curves.log_ticks(0.04, 9.0) == [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]
    assert curves.log_ticks(0.9, 6.0) == [1.0, 2.0, 5.0]
    assert curves.log_ticks(1e-6, 1e3) == [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"too_small": 1, "too_short": 2}, "too small 1, too short 2"),
        ([{"host": "a", "ranks": [0, 1]}, "b"], "(host a, ranks (0, 1)), b"),
        ([1, 2], "1, 2"),
        ("as is", "as is"),
        ({}, ""),
    ],
)
def test_an_events_fact_is_as_text(value: object, words: str) -> None:
    assert event_marks.fact(value) == words


def test_a_deep_fact_is_short() -> None:
    deep: object = 1
    for _ in range(200):
        deep = {"in": [deep]}
    assert len(event_marks.fact(deep)) < 310
