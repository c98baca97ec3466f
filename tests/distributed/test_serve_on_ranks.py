"""Several server processes share a round's clips, and make the same ones as a process alone."""

import shutil
from pathlib import Path

import pytest

from tests.forked_runs import Forks
from tests.trainer.shards_for_tests import make_shards, smoke
from trainer.run_folder import metrics, sample_rounds
from trainer.train import train

SHORT = (
    "stages.0.steps=4",
    "stages.0.checkpoint_every=2",
    "sample.every=100",
    "sample.seeds=[0, 1]",
    "sample.prompts=[a red square moves right, a blue square moves down, a green square moves up]",
    "validation.every=100",
    "validation.clips_per_bucket=4",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    shards = make_shards(folder / "shards", validation=(8, 9, 10, 11))
    train(smoke(shards, folder / "run", *SHORT))
    shutil.rmtree(folder / "run/samples")
    return folder / "run"


def served(trained: Path, folder: Path, forks: Forks, ranks: int) -> Path:
    run = Path(shutil.copytree(trained, folder / f"on-{ranks}"))
    forks.start(["serve", "--once", str(run)], ranks=ranks).succeed()
    return run


def test_the_clips_and_the_validation_loss_are_the_same_on_one_process_and_on_two(
    trained: Path, tmp_path: Path, forks: Forks
) -> None:
    alone, shared = served(trained, tmp_path, forks, 1), served(trained, tmp_path, forks, 2)

    for step in (2, 4):
        folder = sample_rounds.folder(Path(), sample_rounds.OWN, step)
        files = sorted(path.name for path in (alone / folder).glob("*.mp4"))
        assert len(files) == 6
        for name in files:
            assert (alone / folder / name).read_bytes() == (shared / folder / name).read_bytes()
    assert [facts["step"] for facts in sample_rounds.rounds(shared)] == [2, 4]
    (one,), (two,) = (
        [line for line in metrics.read_metrics(run / "serve/validation.jsonl") if line["step"] == 2]
        for run in (alone, shared)
    )
    for key in ("loss", "loss_by_clip", "loss_by_timestep"):
        assert one[key] == two[key]
    lines = metrics.read_metrics(shared / "serve/served.jsonl")
    assert [(line["event"], line["step"]) for line in lines] == [("served", 4), ("served", 2)]


def test_a_checkpoint_that_is_damaged_is_left_alone_by_all_of_them(
    trained: Path, tmp_path: Path, forks: Forks
) -> None:
    copy = Path(shutil.copytree(trained, tmp_path / "copy"))
    path = copy / "step-00000004/ema/__0_0.distcp"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")

    run = forks.start(["serve", "--once", "--no-validation", str(copy)], ranks=2)

    run.succeed()
    assert "its SHA-256 is not the manifest's" in run.text()
    assert [facts["step"] for facts in sample_rounds.rounds(copy)] == [2]
