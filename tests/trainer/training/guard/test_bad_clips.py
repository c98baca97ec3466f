"""The guard names bad clips in a file, and a later run that reads the file never shows them."""

import math
from pathlib import Path

import pytest

from tests.guard_runs import make_poisoned, of_guard, words
from tests.trainer.shards_for_tests import make_shards, smoke
from trainer import __main__ as trainer_command
from trainer.report.preview.dry_run import dry_run, to_text
from trainer.run_folder import metrics
from trainer.training.guard import bad_clips
from vidcurate.errors import InputError, MissingError

SHORT = ("stages.0.steps=16", "stages.0.checkpoint_every=8", "guard.nonfinite=skip")


def test_a_bad_clip_is_listed_once_and_a_later_run_leaves_it_out(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("line", ['{"clip": 3}', "{", '{"clip_id": 3}'])
def test_a_file_that_holds_no_clip_ids_is_refused_by_its_line(
    shards: Path, tmp_path: Path, line: str
) -> None:
    file = tmp_path / "ids.txt"
    file.write_text(f"clip-001\n{line}\n")
    with pytest.raises(InputError, match=r"ids\.txt:2: is neither"):
        dry_run(smoke(shards, tmp_path / "run", f"stages.0.data.leave_out={file}"))
    with pytest.raises(MissingError, match="no such file of clip ids"):
        dry_run(smoke(shards, tmp_path / "run", "stages.0.data.leave_out=nowhere.txt"))
