"""The inference server over what is there: which checkpoints it takes, what it makes of them, and once."""

import shutil
import threading
import time
from pathlib import Path

import pytest

from tests.trainer.generation.server.served_runs import by_hand, serve, served
from tests.trainer.run_folder.checkpoint.test_forged_metadata import FILESYSTEM, calls, reseal
from trainer.__main__ import main
from trainer.generation import sample_clips
from trainer.generation.server import checkpoints
from trainer.model.stdit import STDiT3
from trainer.recipe.recipe import TrainRecipe
from trainer.run_folder import jsonl, metrics, sample_rounds
from trainer.run_folder.sample_spec import SampleSpec
from vidcurate.media import decode


def test_a_copy_without_optimizer_is_sampled_newest_first_and_once(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "samples")

    lines = serve(capsys, run)

    assert [line["step"] for line in lines] == [4, 2]
    assert served(run) == [4, 2]
    assert serve(capsys, run) == []
    assert [facts["step"] for facts in sample_rounds.rounds(run)] == [2, 4]
    hand = by_hand(run / "step-00000002", tmp_path / "hand")
    for name in ("00-0.mp4", "01-0.mp4"):
        assert (run / "samples/step-00000002" / name).read_bytes() == (hand / name).read_bytes()
    assert not list((run / "samples").glob(".*"))


def test_what_the_training_has_sampled_is_not_sampled_again(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run / "samples/step-00000004/samples.json").read_bytes()

    assert [line["step"] for line in serve(capsys, run)] == [2]
    assert (run / "samples/step-00000004/samples.json").read_bytes() == before


def test_a_checkpoint_that_calls_a_function_is_left_alone_and_calls_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "samples")
    step, harm = run / "step-00000004", tmp_path / "harm"
    for part in ("model", "ema"):
        (step / part / ".metadata").write_bytes(calls(FILESYSTEM, "os.system", f"touch {harm}"))
    reseal(step)

    assert [line["step"] for line in serve(capsys, run)] == [2]

    assert not harm.exists()
    assert served(run) == [2]


def test_weights_that_were_trained_again_are_sampled_again(
    run: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(capsys, run)
    shutil.rmtree(run / "step-00000002")
    shutil.copytree(trained / "step-00000004", run / "step-00000002")

    lines = serve(capsys, run, "--no-validation")

    assert [line["step"] for line in lines] == [2]
    clips = [run / f"samples/step-0000000{step}/00-0.mp4" for step in (2, 4)]
    assert clips[0].read_bytes() == clips[1].read_bytes()


def test_other_prompts_and_raw_weights_have_places_of_their_own(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a green square moves up\n\na white square moves left\n")
    words = (run, "--prompts", prompts, "--seeds", "3,4", "--steps", 2)

    serve(capsys, *words)
    lines = serve(capsys, *words, "--raw")

    assert [line["folder"] for line in lines] == [f"samples/own-raw/step-0000000{step}" for step in (4, 2)]
    assert [line["clips"] for line in lines] == [4, 4]
    more = ("--prompt", "a green square moves up", "--prompt", "a white square moves left", "--steps", "2")
    ema = by_hand(run / "step-00000002", tmp_path / "ema", *more, "--seed", "4")
    raw = by_hand(run / "step-00000002", tmp_path / "raw", *more, "--seed", "4", "--raw")
    for hand, name in ((ema, "own"), (raw, "own-raw")):
        clip = run / "samples" / name / "step-00000002" / "01-4.mp4"
        assert clip.read_bytes() == (hand / "01-4.mp4").read_bytes()
    assert sample_rounds.sets(run) == ["", "own", "own-raw"]
    prompts.write_text("a green square moves down\n")
    assert [line["clips"] for line in serve(capsys, *words)] == [2, 2]  # the request is another: made anew


def test_the_validation_loss_is_the_trainings_own(
    run: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(capsys, run)
    assert not (run / "serve/validation.jsonl").exists()  # the training has measured all of them
    (run / "validation.jsonl").unlink()

    serve(capsys, run)

    own = {line["step"]: line for line in metrics.read_metrics(trained / "validation.jsonl")}
    lines = metrics.read_metrics(run / "serve/validation.jsonl")
    assert [line["step"] for line in lines] == [4, 2]
    for line in lines:
        assert len(line["loss_by_timestep"]) == 10
        for key in ("loss", "loss_by_clip", "loss_by_timestep", "standard_error", "stage", "weights"):
            assert line[key] == own[line["step"]][key]
    serve(capsys, run, "--raw")
    raw = metrics.read_metrics(run / "serve/validation.jsonl")[2:]
    assert [line["weights"] for line in raw] == ["raw", "raw"]
    assert raw[0]["loss"] != lines[0]["loss"]


def test_without_the_clips_there_is_no_validation_and_one_line_says_so(
    shards: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "validation.jsonl").unlink()
    moved = shards.rename(shards.with_name("elsewhere"))
    try:
        assert main(["serve", "--once", str(run)]) == 0
    finally:
        moved.rename(shards)

    assert capsys.readouterr().err.count("no validation loss here") == 1
    assert served(run) == [2]


def test_several_runs_take_turns_and_the_model_is_built_once(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shutil.copytree(run, tmp_path / "002-STDiT3-XL-2")
    for one in (run, other):
        shutil.rmtree(one / "samples")
    built: list[object] = []
    make = sample_clips.sampling_model

    def counted(recipe: TrainRecipe) -> STDiT3:
        built.append(recipe)
        return make(recipe)

    monkeypatch.setattr(sample_clips, "sampling_model", counted)

    lines = serve(capsys, "--expnums", "1,2", "--runs-dir", tmp_path)

    assert [(Path(line["run"]).name, line["step"]) for line in lines] == [
        ("001-run", 4),
        ("002-STDiT3-XL-2", 4),
        ("001-run", 2),
        ("002-STDiT3-XL-2", 2),
    ]
    assert len(built) == 1


def test_without_once_it_ends_when_the_run_is_done(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoints.is_done(run)
    assert main(["serve", str(run)]) == 0
    assert capsys.readouterr().out == f"{run}/samples/step-00000002  2 clips, {_seconds(run)} s\n"
    jsonl.record_event(run, "resume", 4)
    assert not checkpoints.is_done(run)


def test_a_run_without_a_checkpoint_is_waited_for_with_one_line_and_not_by_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    jsonl.record_event(run, "start", 0)

    assert serve(capsys, "--no-validation", run) == []

    def end_when_it_waits() -> None:
        until = time.monotonic() + 60
        while not (run / "gallery.js").exists() and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.3)  # several looks
        jsonl.record_event(run, "done", 0)

    ends = threading.Thread(target=end_when_it_waits)
    ends.start()
    assert main(["serve", str(run), "--poll-seconds", "0.05"]) == 0
    ends.join()
    none = f"{run}: no whole checkpoint is there; nothing is sampled\n"
    assert capsys.readouterr().err == (
        f"{run}: no whole checkpoint is there yet; the server looks every 0.05 s until the run is done "
        f"(Ctrl-C ends it, --once does not wait)\n{none}"
    )
    assert main(["serve", str(run), "--once"]) == 0
    assert capsys.readouterr().err == none


def _seconds(run: Path) -> str:
    (line,) = metrics.read_metrics(run / "serve" / "served.jsonl")
    return f"{line['seconds']:.1f}"


def test_what_a_killed_server_left_is_removed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    partial = sample_rounds.begin_round(sample_rounds.folder(run, sample_rounds.OWN, 2), "serve")
    (partial / "00-0.mp4").write_bytes(b"half")
    training = sample_rounds.begin_round(sample_rounds.folder(run, sample_rounds.OWN, 4), "training")

    serve(capsys, run)

    assert not partial.exists()
    assert training.exists()  # may be at work this moment


def test_a_second_server_of_a_run_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import fcntl

    (run / "serve").mkdir()
    with (run / "serve" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["serve", "--once", str(run)]) == 2
    assert "another server works on this run" in capsys.readouterr().err


def test_a_clip_read_back_is_the_one_that_was_written(run: Path) -> None:
    spec = SampleSpec(prompts=("x",), num_frames=8, height=32, width=32).model_dump()
    path = run / "samples/step-00000004/00-0.mp4"

    assert (
        sample_clips.read_clip(path, spec) == decode.read_frames(path, range(8), height=32, width=32)
    ).all()
