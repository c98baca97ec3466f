"""The samples in W&B (off line) and TensorBoard: the clips themselves, over the training's step, once."""

import io
import json
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.shards_for_tests import make_shards, smoke
from tests.trainer.training.test_wandb_tensorboard import wandb_records
from trainer.__main__ import main
from trainer.generation import sample_clips
from trainer.generation.server import sample_trackers
from trainer.run_folder import metrics
from trainer.train import train
from trainer.training import wandb_tensorboard
from vidcurate.storage.checksum import sha256_file

SHORT = ("stages.0.steps=4", "stages.0.checkpoint_every=2", "sample.every=100", "validation.every=100")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine a tracker needs a minute to load its package: what it writes is tested, not its speed.
    monkeypatch.setattr(wandb_tensorboard, "CLOSE_SECONDS", 400.0)


def trained(folder: Path, tracker: str) -> Path:
    """A run of 4 steps; its training was not mirrored, the server's work will be."""
    shards = make_shards(folder / "shards", validation=(10, 11))
    train(smoke(shards, folder / "run", *SHORT, tracker))
    return folder / "run"


def test_tensorboard_shows_each_clip_at_its_step_once_also_after_a_restart(tmp_path: Path) -> None:
    from PIL import Image, ImageSequence
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = trained(tmp_path, "trackers.tensorboard=true")
    assert main(["serve", "--once", str(run)]) == 0
    assert main(["serve", "--once", "--raw", "--seeds", "3", str(run)]) == 0

    shown = EventAccumulator(str(run / "serve" / "tensorboard"), size_guidance={"images": 0, "scalars": 0})
    shown.Reload()
    tags = shown.Tags()
    assert sorted(tags["images"]) == [
        "samples/own-raw/00-3", "samples/own-raw/01-3", "samples/own/00-0", "samples/own/01-0",
    ]  # fmt: skip
    assert [event.step for event in shown.Images("samples/own/00-0")] == [2]  # the training sampled step 4
    assert [event.step for event in shown.Images("samples/own-raw/01-3")] == [4, 2]
    (image,) = shown.Images("samples/own/01-0")
    clip = sample_clips.read_clip(
        run / "samples/step-00000002/01-0.mp4", {"num_frames": 8, "height": 32, "width": 32}
    )
    with Image.open(io.BytesIO(image.encoded_image_string)) as gif:
        assert len(list(ImageSequence.Iterator(gif))) == 8
        for number in (0, 7):
            gif.seek(number)
            assert np.abs(np.asarray(gif.convert("RGB")).astype(int) - clip[number]).mean() < 12
    steps = {event.step: event.value for event in shown.Scalars("validation/loss")}
    for line in metrics.read_metrics(
        run / "serve/validation.jsonl"
    ):  # of each step the raw weights came last
        assert line["weights"] == "raw" or line["step"] == 2
        assert line["weights"] == "ema" or steps[line["step"]] == pytest.approx(line["loss"])


@pytest.mark.soak
def test_wandb_gets_a_run_of_its_own_in_the_group_with_the_trainings_step_as_axis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")

    run = trained(tmp_path, "trackers.wandb=vidcurate-tests")
    (training,) = (run / "wandb").glob("offline-run-*/run-*.wandb")
    assert main(["serve", "--once", str(run)]) == 0
    assert main(["serve", "--once", "--seeds", "3", str(run)]) == 0

    log = (run / "serve/logs/tracker-wandb.log").read_text()
    assert not [line for line in metrics.read_metrics(run / "serve/served.jsonl") if "tracker" in line], log
    runs: dict[str, tuple[str, str]] = {}
    axes: dict[str, str] = {}
    videos: dict[tuple[str, str], list[str]] = {}
    for path in [training, *sorted((run / "serve/wandb").glob("offline-run-*/run-*.wandb"))]:
        for data in wandb_records(path):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                runs[record.run.run_id] = (record.run.display_name, record.run.run_group)
            if record.HasField("metric") and path != training:
                axes[record.metric.glob_name or record.metric.name] = record.metric.step_metric
            values = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            for name, value in values.items():
                if "samples/" in name:
                    videos.setdefault((name, values["train_step"]), []).append(value)
    assert sorted(runs.values()) == [("tiny", "tiny"), ("tiny samples", "tiny")]
    assert axes["*"] == "train_step"
    found = {(name.partition("/_")[0], step) for name, step in videos}
    assert ("samples/own/00-0", "2") in found
    assert {("samples/own/00-3", "4"), ("samples/own/01-3", "2")} <= found
    assert all(len(sent) == 1 for sent in videos.values())
    kept = {path.read_bytes() for path in (run / "serve/wandb").glob("offline-run-*/files/media/**/*.mp4")}
    for name in ("step-00000002/00-0.mp4", "own/step-00000004/01-3.mp4"):
        assert (run / "samples" / name).read_bytes() in kept


def test_a_long_large_clip_becomes_a_small_gif() -> None:
    frames = np.zeros((130, 300, 512, 3), dtype=np.uint8)

    from PIL import Image, ImageSequence

    with Image.open(
        io.BytesIO(sample_trackers.gif(frames + np.arange(130, dtype=np.uint8)[:, None, None, None], 24))
    ) as gif:
        assert gif.size == (256, 150)
        assert len(list(ImageSequence.Iterator(gif))) == 44
        assert gif.info["duration"] == 120  # 3 frames of 1/24 s, in hundredths


def test_a_tracker_that_fails_is_one_line_and_the_clips_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(tmp_path, "trackers={}")
    package = tmp_path / "broken" / "wandb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('no quota')")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    state = run / "step-00000002/state.json"
    state.write_text(state.read_text().replace('"wandb": null', '"wandb": {"project": "x"}'))
    manifest = run / "step-00000002/manifest.json"
    facts = json.loads(manifest.read_text())
    facts["files"]["state.json"] = {
        "size_bytes": state.stat().st_size,
        "sha256": sha256_file(state),
    }
    manifest.write_text(json.dumps(facts))

    assert main(["serve", "--once", str(run)]) == 0

    lines = metrics.read_metrics(run / "serve/served.jsonl")
    assert [line["event"] for line in lines] == ["served", "tracker_failed"]
    assert "no quota" in lines[1]["error"]
    assert (run / "samples/step-00000002/00-0.mp4").is_file()
