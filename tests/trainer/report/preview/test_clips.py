"""The clips behind a run's numbers, and clips rejected from here on."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.shards_for_tests import make_shards, smoke
from trainer.__main__ import main
from trainer.run_folder import clip_losses, metrics
from trainer.train import train
from trainer.training.state import Origin
from vidcurate.curation.review_decisions.journal import read_decisions
from vidcurate.errors import RecipeError, StorageError

EVERY = ("stages.0.steps=6", "stages.0.checkpoint_every=3", "sample=null", "stages.0.clip_losses_every=1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Shards, and a finished run of six steps that recorded the losses of its clips."""
    folder = tmp_path_factory.mktemp("clips")
    shards = make_shards(folder / "shards")
    train(smoke(shards, folder / "run", *EVERY))
    return shards, folder / "run"


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["clips", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_recorded_losses_are_those_of_the_metrics(made: tuple[Path, Path]) -> None:
    _, run = made
    lines = metrics.read_metrics(run / metrics.METRICS)
    recorded = list(clip_losses.read(run))
    assert [line["step"] for line in recorded] == [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for line, known in zip(lines, recorded, strict=True):
        clips = list(clip_losses.by_clip(known))
        assert sum(clip["loss"] for clip in clips) / len(clips) == pytest.approx(line["loss"], rel=1e-5)
        for group, name in (
            ("loss_by_level", "level"),
            ("loss_by_bucket", "bucket"),
            ("loss_by_timestep", "bin"),
        ):
            for value, mean in line[group].items():
                mine = [clip["loss"] for clip in clips if clip[name] == value]
                assert sum(mine) / len(mine) == pytest.approx(mean, rel=1e-5)


def test_a_step_has_its_clips_with_losses_the_highest_first(
    made: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, run = made
    found = asked(capsys, str(run), "--step", "4")
    known = next(line for line in clip_losses.read(run) if line["step"] == 4)
    assert sorted(clip["clip_id"] for clip in found["clips"]) == sorted(known["clip_ids"])
    losses = [clip["loss"] for clip in found["clips"]]
    assert losses == sorted(known["losses"], reverse=True)
    assert all(one["usual"] is not None for one in found["buckets"])
    assert main(["clips", str(run), "--step", "4"]) == 0
    assert found["clips"][0]["caption"] in capsys.readouterr().out
    assert main(["clips", str(run), "--step", "7"]) == 2
    assert "has the steps up to 6, and not this one" in capsys.readouterr().err


def test_a_run_without_recorded_losses_tells_those_that_follow_from_the_metrics(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, run = made
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / clip_losses.CLIP_LOSSES).unlink()
    with_losses = {clip["clip_id"]: clip["loss"] for clip in asked(capsys, str(run), "--step", "2")["clips"]}
    known = [clip for clip in asked(capsys, str(copy), "--step", "2")["clips"] if clip["loss"] is not None]
    for clip in known:
        assert clip["loss"] == pytest.approx(with_losses[clip["clip_id"]], rel=1e-5)
    assert main(["clips", str(copy), "--by-loss", "2"]) == 2
    assert "stages.0.clip_losses_every=1" in capsys.readouterr().err


def test_clips_by_loss_are_the_ends_of_each_level_and_timestep_bin(
    made: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, run = made
    every = [clip for line in clip_losses.read(run) for clip in clip_losses.by_clip(line)]
    found = asked(capsys, str(run), "--by-loss", "1")
    assert sum(one["clips"] for one in found) == len(every)
    assert {one["level"] for one in found} == {"1", "2"}
    for one in found:
        losses = [
            clip["loss"] for clip in every if (clip["level"], clip["bin"]) == (one["level"], one["bin"])
        ]
        assert one["highest"][0]["loss"] == max(losses)
        assert one["lowest"][0]["loss"] == min(losses)


def test_a_clips_showings_have_their_losses(
    made: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, run = made
    recorded = list(clip_losses.read(run))
    clip_id = recorded[0]["clip_ids"][0]
    found = asked(capsys, str(run), "--clip", clip_id)
    steps = [line["step"] for line in recorded for name in line["clip_ids"] if name == clip_id]
    assert [one["step"] for one in found] == steps
    assert all(one["loss"] is not None for one in found)


def test_a_rejected_clip_is_shown_no_more_after_the_resume(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards, whole = made
    run, curation = tmp_path / "run", tmp_path / "curation"
    curation.mkdir()
    train(smoke(shards, run, *EVERY, "stages.0.steps=3"))
    seen = {name for line in clip_losses.read(whole) if line["step"] > 3 for name in line["clip_ids"]}
    clip_id = sorted(seen)[0]
    words = (str(run), "--reject", clip_id, "--reason", "a slide show", "--reviewer", "ana")
    found = asked(capsys, *words, "--curation", str(curation))
    assert (found["decision"], found["curation_decision"], found["clips"], found["is_new"]) == (1, 1, 1, True)
    assert not asked(capsys, *words)["is_new"]
    for folder in (run, curation):
        (line,) = read_decisions(folder)
        assert line.seen.scores["loss"] > 0
        assert (line.clip_id, line.verdict, line.reason, line.reviewer) == (
            clip_id,
            "reject",
            "a slide show",
            "ana",
        )
    (setting,) = found["settings"]
    longer = smoke(shards, run, *EVERY, "stages.0.steps=5", setting)
    with pytest.raises(RecipeError, match="--accept-plan"):
        train(longer)
    train(longer, Origin(accept=("--accept-plan",)))
    after = [name for line in clip_losses.read(run) if line["step"] > 3 for name in line["clip_ids"]]
    assert after
    assert clip_id not in after
    more = [name for line in clip_losses.read(whole) if line["step"] > 5 for name in line["clip_ids"]]
    other = next(name for name in more if name != clip_id)  # a second clip, with the same file
    assert asked(capsys, str(run), "--reject", other)["clips"] == 2
    train(longer)  # a restart with the old file is not disturbed
    (setting,) = asked(capsys, str(run), "--reject", other)["settings"]
    train(smoke(shards, run, *EVERY, setting), Origin(accept=("--accept-plan",)))
    last = [name for line in clip_losses.read(run) if line["step"] > 5 for name in line["clip_ids"]]
    assert last
    assert {clip_id, other}.isdisjoint(last)
    words = (str(run), "--keep", clip_id, "--reviewer", "ana")
    taken_back = asked(capsys, *words)
    listed = Path(taken_back["file"]).read_text().splitlines()
    assert [json.loads(line)["clip_id"] for line in listed] == [other]
    assert main(["clips", str(run), "--reject", "nobody"]) == 2
    assert main(["clips", str(run), "--reject", other, "--curation", str(tmp_path / "none")]) == 2
    assert "no such run folder" in capsys.readouterr().err
    for step in (["--step", "1"], ["--clip", other]):
        assert main(["clips", str(tmp_path), *step]) == 2
        assert "neither a checkpoint" in capsys.readouterr().err


def test_a_resumed_run_forgets_the_losses_of_repeated_steps(made: tuple[Path, Path], tmp_path: Path) -> None:
    _, run = made
    path = tmp_path / clip_losses.CLIP_LOSSES
    whole = (run / clip_losses.CLIP_LOSSES).read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(whole[:-7])
    clip_losses.forget_after(tmp_path, 9)
    assert path.read_bytes() == b"".join(lines[:5])
    clip_losses.forget_after(tmp_path, 3)
    assert path.read_bytes() == b"".join(lines[:3])
    path.write_bytes(lines[0] + b'{"step": 2, "losses": [1]}\n')
    with pytest.raises(StorageError, match="line 2 is damaged"):
        list(clip_losses.read(tmp_path))
