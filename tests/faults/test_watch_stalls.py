"""A rank that hangs ends the run in a known state; it is named, with the function it hangs in."""

import json
import time
from pathlib import Path

import pytest

from tests.forked_runs import Forks
from tests.trainer.shards_for_tests import command_words, events, make_shards, numbers
from tests.watch_faults import SPEC, faulty, stall_of
from trainer.cli import exit_codes
from trainer.run_folder import process_table


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("stalls") / "shards", num_clips=6)


def test_a_rank_that_hangs_in_the_loader_is_named_and_all_end_to_begin_again(
    forks: Forks, shards: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = command_words(shards, run, *SPEC)
    with faulty(forks, words, "hangs_in_the_loader", rank=1, ranks=3) as started:
        assert started.codes() == [exit_codes.RESTART] * 3, started.text()

    stall = stall_of(run)
    assert stall["kind"] == "stall"
    assert (stall["step"], stall["rank"], stall["phase"]) == (3, 1, "data")
    assert stall["host"] == process_table.host_name()
    assert stall["function"] == "waits_for_a_clip"
    assert stall["at"].startswith("watch_faults.py:")
    assert stall["why"].startswith("is not in the collective in which the others wait (")
    assert stall["why"].endswith(f"({stall['collective']})")
    assert stall["collective"].startswith("all_reduce ")
    assert stall["waiting_ranks"] == [0, 2]
    assert stall["seconds"] >= 4
    folder = run / stall["stacks"]
    summary = json.loads((folder / "summary.json").read_text())
    assert [len(group["who"]) for group in summary["groups"]] == [2, 1]
    assert summary["did_not_move"] == 3
    text = (folder / "stacks.txt").read_text()
    assert text.startswith(f"odd: {process_table.host_name()} rank 1 is not in the collective")
    assert "waits_for_a_clip" in text
    assert {path.name for path in folder.glob("rank-*")} == {
        f"rank-{rank:05d}-{number}.json" for rank in range(3) for number in (1, 2)
    }


def test_a_rank_that_never_comes_to_the_collective_is_named_and_the_same_command_resumes(
    forks: Forks, shards: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = command_words(shards, run, *SPEC)
    with faulty(forks, words, "hangs_before_a_collective", rank=0, ranks=2) as started:
        assert started.codes() == [exit_codes.RESTART] * 2, started.text()
    stall = stall_of(run)
    assert (stall["rank"], stall["function"], stall["phase"]) == (0, "<lambda>", "update")
    assert (stall["waiting_ranks"], "gloo group 0" in stall["collective"]) == ([1], True)
    assert "error: rank 0 ends: stall at step 3" in started.text()

    forks.start(command_words(shards, run, *SPEC, "stages.0.steps=6"), ranks=2).succeed()

    assert [line["step"] for line in numbers(run)] == list(range(1, 7))
    assert not list((run / "stacks").glob("now*"))


@pytest.mark.soak
def test_with_the_policy_warn_a_stall_is_reported_once_and_nothing_ends(
    forks: Forks, shards: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = command_words(shards, run, *SPEC, "watch.on_stall=warn")
    with faulty(forks, words, "hangs_in_the_loader", rank=0, ranks=1) as started:
        stall = stall_of(run)

        time.sleep(2.0)

        assert stall["policy"] == "warn"
        assert len(events(run, "stall")) == 1
        assert process_table.state(started.pids[0]) != "ended"
