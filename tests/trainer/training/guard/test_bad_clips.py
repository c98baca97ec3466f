"""The guard names bad clips in a file, and a later run that reads the file never shows them."""

import math
import os
from pathlib import Path

import pytest

from tests.guard_runs import make_poisoned, of_guard, words
from tests.trainer.shards_for_tests import make_shards, smoke
from trainer import __main__ as trainer_command
from trainer.report.preview.dry_run import dry_run, to_text
from trainer.run_folder import metrics
from trainer.training.guard import bad_clips, step_guard
from vidcurate.errors import InputError, MissingError, StorageError
from vidcurate.sampler.leave_out import read_clip_ids

SHORT = ("stages.0.steps=16", "stages.0.checkpoint_every=8", "guard.nonfinite=skip")


def test_a_bad_clip_is_listed_once_and_a_later_run_leaves_it_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_poisoned(tmp_path / "made", poison=(3, 3), scale=math.nan, clips=16)
    run = tmp_path / "run"
    assert trainer_command.main(words(recipe, run, *SHORT)) == 0

    found = of_guard(run)
    assert len(found) > 1  # the bad clips came back in the next epochs
    listed = [line["clip_id"] for line in metrics.read_metrics(run / bad_clips.BAD_CLIPS)]
    assert sorted(listed) == sorted({clip_id for event in found for clip_id in event["clip_ids"]})
    assert listed

    without = f"stages.0.data.leave_out={run / bad_clips.BAD_CLIPS}"
    assert trainer_command.main(words(recipe, tmp_path / "later", *SHORT, without)) == 0
    assert of_guard(tmp_path / "later") == []

    longer = ("stages.0.steps=20", *SHORT[1:])
    refused = words(recipe, run, *longer, without)
    assert trainer_command.main(refused) == 2  # the order of a run that has begun changes only on demand
    assert trainer_command.main([*refused, "--accept-plan"]) == 0
    assert of_guard(run) == found

    good = next(
        clip_id for clip_id in (f"made-{number:06d}" for number in range(16)) if clip_id not in listed
    )
    with (run / bad_clips.BAD_CLIPS).open("a") as file:
        file.write(f"{good}\n")
    capsys.readouterr()
    assert trainer_command.main(words(recipe, run, "stages.0.steps=24", *SHORT[1:], without)) == 2
    assert "the file of leave_out" in capsys.readouterr().err


def test_more_clips_than_an_event_names_are_all_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_guard, "NAMED_CLIPS", 1)
    recipe = make_poisoned(tmp_path / "made", poison=(3, 3), scale=math.nan, clips=16)
    short = ("stages.0.steps=4", "stages.0.checkpoint_every=4", "guard.nonfinite=skip")
    assert trainer_command.main(words(recipe, tmp_path / "run", *short)) == 0
    (event,) = of_guard(tmp_path / "run")
    assert len(event["clip_ids"]) == 1
    assert len(read_clip_ids(tmp_path / "run" / bad_clips.BAD_CLIPS)) == event["num_clips"] > 1


def _append(run: Path, *clip_ids: str) -> None:
    bad_clips.append(run, 3, "nonfinite", "no number", {"verdict": {"cause": "data"}, "clip_ids": clip_ids})


def test_ids_with_line_breaks_and_a_clip_shown_twice_are_a_line_each(tmp_path: Path) -> None:
    ids = ("a\u2028b", "c\x85d", "e\x1cf", "g\nh")
    _append(tmp_path, *ids, *ids)
    _append(tmp_path, *ids)
    assert read_clip_ids(tmp_path / bad_clips.BAD_CLIPS) == tuple(sorted(ids))
    assert len(metrics.read_metrics(tmp_path / bad_clips.BAD_CLIPS)) == len(ids)


def test_a_line_that_a_kill_cut_is_dropped_before_the_next(tmp_path: Path) -> None:
    file = tmp_path / bad_clips.BAD_CLIPS
    _append(tmp_path, "a", "b")
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"bad_clips\.jsonl:2: is neither .* sed -i 2d"):
        read_clip_ids(file)
    _append(tmp_path, "b", "c")
    assert read_clip_ids(file) == ("a", "b", "c")

    file.write_text("by hand")  # without an end of line
    _append(tmp_path, "by hand", "c")
    assert read_clip_ids(file) == ("by hand", "c")
    file.write_bytes(b'a\n{"clip_id": "\\ud800"}\n')
    with pytest.raises(InputError, match=r":2: is neither a clip id nor"):
        read_clip_ids(file)


@pytest.mark.parametrize(
    "line", [b"{", b'{"clip_id": []}', b"\xff\xfe", b'{"a":' * 30_000, b"[]", b"null", b"\0"]
)
def test_a_damaged_file_does_not_end_the_training(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / bad_clips.BAD_CLIPS
    file.write_bytes(line + b"\n")
    _append(tmp_path, "a")
    assert file.read_bytes().startswith(line + b'\n{"clip_id": "a"')


def test_a_pipe_in_its_place_is_waited_for_by_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / bad_clips.BAD_CLIPS)
    with pytest.raises(StorageError, match="it is no regular file"):
        _append(tmp_path, "a")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards", num_clips=8)


def test_a_file_of_clip_ids_leaves_them_out(shards: Path, tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    file.write_text('clip-001\n\n{"clip_id": "clip-002", "step": 4}\nclip-001\nnobody\n')

    report = dry_run(smoke(shards, tmp_path / "run", f"stages.0.data.leave_out={file}"))

    assert report["stages"][0]["clips"] == 6
    assert report["stages"][0]["clips_left_out"]["left_out"] == 2
    assert "(left_out)" in to_text(report)


def test_the_ids_of_other_shards_are_noted(shards: Path, tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    recipe = smoke(shards, tmp_path / "run", f"stages.0.data.leave_out={file}")
    noted = f"note: {file} (data.leave_out) lists 2 clips, none of them in these shards"
    file.write_text("other-1\nother-2\n")
    assert noted in to_text(dry_run(recipe))
    file.write_text("clip-001\nother-2\n", encoding="utf-8-sig")
    report = dry_run(recipe)
    assert noted not in to_text(report)
    assert report["stages"][0]["clips_left_out"]["left_out"] == 1


def test_a_file_of_all_clips_is_refused_by_its_key(shards: Path, tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    file.write_text("".join(f"clip-{number:03d}\n" for number in range(8)))
    with pytest.raises(InputError, match=r"ids\.txt: lists all 8 clips \(leave_out\)"):
        dry_run(smoke(shards, tmp_path / "run", f"stages.0.data.leave_out={file}"))


@pytest.mark.parametrize("line", ['{"clip": 3}', "{", '{"clip_id": 3}', '{"clip_id": "\\ud800"}'])
def test_a_file_that_holds_no_clip_ids_is_refused_by_its_line(
    shards: Path, tmp_path: Path, line: str
) -> None:
    file = tmp_path / "ids.txt"
    file.write_text(f"clip-001\n{line}\n")
    with pytest.raises(InputError, match=r"ids\.txt:2: is neither"):
        dry_run(smoke(shards, tmp_path / "run", f"stages.0.data.leave_out={file}"))
    with pytest.raises(MissingError, match="no such file of clip ids"):
        dry_run(smoke(shards, tmp_path / "run", "stages.0.data.leave_out=nowhere.txt"))
