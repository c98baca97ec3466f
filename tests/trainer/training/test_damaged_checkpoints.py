"""A damaged checkpoint ends no run: a start falls back to the newest whole one, and says so."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.trainer.run_folder.checkpoint.test_forged_metadata import FILESYSTEM, calls, reseal
from tests.trainer.shards_for_tests import command_words, events, make_shards, numbers, smoke
from tests.trainer.training.states import SHORT, same
from trainer import __main__ as trainer_command
from trainer.cluster.launch import bad_hosts
from trainer.distributed.mesh import ALONE
from trainer.report.preview.dry_run import dry_run, to_text
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder import metrics, pointer
from trainer.run_folder.checkpoint import checkpoint, whole
from trainer.train import train
from vidcurate.errors import CheckpointError

LONGER = (*SHORT, "stages.0.steps=6")


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("file", ["model/__0_0.distcp", "optimizer/.metadata", "state.json", "manifest.json"])
def test_a_run_resumes_from_the_newest_whole_checkpoint(
    shards: Path, short_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], file: str
) -> None:
    run = shutil.copytree(short_run, tmp_path / "run")
    if file == "manifest.json":
        (run / "step-00000004" / file).write_text("{")
    else:
        flip_a_bit(run / "step-00000004" / file)
    damaged = {path.name: path.read_bytes() for path in (run / "step-00000004" / "model").iterdir()}

    assert train(smoke(shards, run, *SHORT)).step == 4

    assert same(run, short_run)
    assert numbers(run) == numbers(short_run)
    aside = run / "damaged-step-00000004"
    assert {path.name: path.read_bytes() for path in (aside / "model").iterdir()} == damaged
    assert [path.name for path in run_folder_layout.checkpoints(run)] == ["step-00000002", "step-00000004"]
    (event,) = events(run, "checkpoint_damaged")
    assert (event["step"], event["path"], event["kept_as"]) == (4, "step-00000004", aside.name)
    assert event["resumed_from"] == "step-00000002"
    assert file in event["reason"]
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "is damaged" in line]
    assert line.endswith("Kept as damaged-step-00000004; resuming from step-00000002.")


@pytest.mark.parametrize("start", ["resume", "load", "ckpt-path"])
def test_a_checkpoint_that_calls_a_function_starts_nothing_and_calls_nothing(
    shards: Path, short_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], start: str
) -> None:
    run, harm = shutil.copytree(short_run, tmp_path / "run"), tmp_path / "harm"
    for step in run_folder_layout.checkpoints(run):
        for part in ("model", "ema", "optimizer"):
            (step / part / ".metadata").write_bytes(calls(FILESYSTEM, "os.system", f"touch {harm}"))
        reseal(step)
    newest = str(run / "step-00000004")
    words = {
        "resume": command_words(shards, run, *LONGER),
        "load": [*command_words(shards, tmp_path / "new", *LONGER), "--load", newest],
        "ckpt-path": [*command_words(shards, tmp_path / "new", *LONGER), "--ckpt-path", newest],
    }[start]

    assert trainer_command.main(words) == 1

    assert not harm.exists()
    assert len([line for line in capfd.readouterr().err.splitlines() if "os.system" in line]) == 1


@pytest.mark.parametrize("file", ["metrics.jsonl", "events.jsonl"])
def test_a_damaged_line_of_a_log_ends_no_run_and_is_kept(
    shards: Path, short_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], file: str
) -> None:
    run = shutil.copytree(short_run, tmp_path / "run")
    lines = (run / file).read_bytes().splitlines(keepends=True)
    (run / file).write_bytes(b"".join([lines[0], b"\xff" + lines[1][1:], *lines[2:]]))

    assert bad_hosts.seen(run).num_events == len(metrics.read_metrics(short_run / "events.jsonl")) - (
        file == "events.jsonl"
    )
    assert train(smoke(shards, run, *LONGER)).step == 6

    kept = json.loads((run / metrics.DAMAGED_LINES).read_text())
    assert (kept["file"], kept["line"]) == (file, 2)
    assert kept["text"][4:] + "\n" == lines[1][1:].decode()
    (event,) = events(run, "lines_damaged")
    assert (event["file"], event["lines"], event["kept_as"]) == (file, [2], metrics.DAMAGED_LINES)
    assert f"{file}: 1 damaged line, kept in" in capfd.readouterr().err
    assert lines[0] in (run / file).read_bytes()


def test_a_second_damaged_checkpoint_of_the_same_step_keeps_the_first(
    shards: Path, short_run: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(short_run, tmp_path / "run")
    for _ in range(2):
        flip_a_bit(run / "step-00000004" / "ema" / "__0_0.distcp")
        train(smoke(shards, run, *SHORT))

    assert sorted(path.name for path in run.glob("damaged-*")) == [
        "damaged-step-00000004",
        "damaged-step-00000004-2",
    ]
    assert same(run, short_run)


def test_without_a_whole_checkpoint_nothing_is_moved(shards: Path, short_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(short_run, tmp_path / "run")
    for step in (2, 4):
        flip_a_bit(run / f"step-{step:08d}" / "model" / "__0_0.distcp")

    with pytest.raises(CheckpointError, match="None of the 2 checkpoints of this run is whole"):
        train(smoke(shards, run, *SHORT))

    assert len(run_folder_layout.checkpoints(run)) == 2
    assert (run / "LATEST").read_text() == "step-00000004\n"


def test_the_dry_run_says_which_checkpoint_is_damaged_and_changes_nothing(
    shards: Path, short_run: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(short_run, tmp_path / "run")
    (run / "step-00000004" / "ema" / "__0_0.distcp").write_bytes(b"cut")

    report = dry_run(smoke(shards, run, *SHORT))

    assert report["resume"]["checkpoint"] == str(run / "step-00000002")
    assert "damaged, will be set aside: " in to_text(report)
    assert (run / "step-00000004").is_dir()


def folder(latest: Path) -> None:
    latest.mkdir()
    (latest / "kept").write_text("kept")


LATESTS: dict[str, Callable[[Path], object]] = {
    "empty": lambda latest: latest.write_bytes(b""),
    "bytes": lambda latest: latest.write_bytes(bytes(range(256)) * 100),
    "nul": lambda latest: latest.write_bytes(b"step-00000004\0"),
    "one bit": lambda latest: latest.write_bytes(b"step-00000005\n"),
    "cut": lambda latest: latest.write_bytes(b"step-0000000"),
    "a step that is gone": lambda latest: latest.write_bytes(b"step-99999999\n"),
    "above": lambda latest: latest.write_bytes(b"../..\n"),
    "another run's": lambda latest: latest.write_bytes(b"../run/step-00000004\n"),
    "a folder": folder,
    "a link to nothing": lambda latest: latest.symlink_to("nothing"),
    "a link to a checkpoint": lambda latest: latest.symlink_to("step-00000004"),
    "a link to itself": lambda latest: latest.symlink_to(latest.name),
    "a link to what never ends": lambda latest: latest.symlink_to("/dev/zero"),
    "a pipe": lambda latest: os.mkfifo(latest),
    "missing": lambda latest: None,
}


@pytest.mark.parametrize("damage", LATESTS)
def test_a_damaged_latest_is_kept_aside_for_the_newest_whole_checkpoint(
    short_run: Path, tmp_path: Path, damage: str
) -> None:
    run = shutil.copytree(short_run, tmp_path / "run")
    latest = run / "LATEST"
    latest.unlink()
    LATESTS[damage](latest)
    with pytest.raises(CheckpointError, match=r"Name a checkpoint instead, such as .*/run/step-00000004"):
        checkpoint.find(run)
    flip_a_bit(run / "step-00000004" / "model" / "__0_0.distcp")

    found, damaged = whole.resume_point(run, ALONE)

    assert found == run / "step-00000002"
    assert [one.path.name for one in damaged] == ["LATEST", "step-00000004"]
    aside = {one.name for one in run.glob("damaged-*")}
    assert aside == {"damaged-step-00000004"} | ({"damaged-LATEST"} if damage != "missing" else set())
    assert latest.is_file()
    assert not latest.is_symlink()
    assert pointer.latest(run) == run / "step-00000002"
    if damage == "a folder":
        assert (run / "damaged-LATEST" / "kept").read_text() == "kept"


@pytest.mark.parametrize("damage", ["bytes", "a folder", "a pipe"])
def test_a_run_with_a_damaged_latest_resumes_and_says_so(
    shards: Path, half_run: Path, capfd: pytest.CaptureFixture[str], short_run: Path, damage: str
) -> None:
    (half_run / "LATEST").unlink()
    LATESTS[damage](half_run / "LATEST")
    words = command_words(shards, half_run, *SHORT)

    assert trainer_command.main([*words, "--dry-run"]) == 0
    assert "damaged, will be set aside: " in capfd.readouterr().out
    assert trainer_command.main(words) == 0

    assert same(half_run, short_run)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "is damaged" in line]
    assert line.startswith("LATEST is damaged (")
    assert line.endswith(") Kept as damaged-LATEST; resuming from step-00000002.")
    (event,) = events(half_run, "latest_damaged")
    assert (event["step"], event["kept_as"], event["resumed_from"]) == (2, "damaged-LATEST", "step-00000002")


def test_a_damaged_latest_without_a_checkpoint_is_refused(half_run: Path) -> None:
    shutil.rmtree(half_run / "step-00000002")
    with pytest.raises(CheckpointError, match=r"names 'step-00000002'.* There is no checkpoint left"):
        whole.resume_point(half_run, ALONE)
    assert (half_run / "LATEST").read_text() == "step-00000002\n"


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [
        ("checksums", {"model": -1, "ema": {}, "optimizer": []}, r"checksums\.model"),
        ("checksums", {"model": "0"}, "checksums: has no ema"),
        ("checksums", None, "checksums"),
        ("recipe", [], "recipe"),
        ("recipe", {"model": 3}, r"recipe\.model"),
        ("loader", {"step": "two"}, r"loader\.step"),
        ("step", -2, "step"),
        ("stage_step", 1e300, "stage_step"),
        ("lr", "0.1", "lr"),
        ("optimizer_updates", [2], "optimizer_updates"),
        ("guard", {"memory": {"cells": {"a|b": [None]}}}, r"the guard's state .*memory\.cells\.a|b\.0"),
        ("guard", {"memory": {"weight": [1]}}, r"the guard's state .*memory\.weight"),
    ],
)
def test_a_forged_state_is_refused_in_one_line(
    shards: Path, half_run: Path, capfd: pytest.CaptureFixture[str], key: str, value: object, where: str
) -> None:
    state = half_run / "step-00000002" / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), key: value}))
    reseal(state.parent)

    assert trainer_command.main(command_words(shards, half_run, *SHORT)) == 1

    (line,) = [line for line in capfd.readouterr().err.splitlines() if "state.json" in line]
    assert re.search(where, line)


def test_a_newer_format_is_no_damage(shards: Path, short_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(short_run, tmp_path / "run")
    manifest = run / "step-00000004" / "manifest.json"
    newer = {**json.loads(manifest.read_text()), "format": 99, "versions": {"vidcurate": "9.0"}}
    manifest.write_text(json.dumps(newer))

    words = command_words(shards, run, *SHORT)
    assert trainer_command.main(words) == 2
    assert trainer_command.main([*words, "--dry-run"]) == 2
    assert not list(run.glob("damaged-*"))


REFUSED = {
    "another model": ["model.depth=2"],
    "another seed": ["seed=1"],
    "another optimizer setting": ["stages.0.optim.lr=5e-4", "seed=2"],
}


@pytest.mark.parametrize("settings", REFUSED.values(), ids=REFUSED)
def test_run_and_dry_run_refuse_with_2_and_the_same_line(
    shards: Path, half_run: Path, capfd: pytest.CaptureFixture[str], settings: list[str]
) -> None:
    words = command_words(shards, half_run, *SHORT, *settings)
    said = []
    for flags in ([], ["--dry-run"]):
        assert trainer_command.main([*words, *flags]) == 2
        said.append([line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")])

    assert len(said[0]) == 1
    assert said[0] == said[1]


@pytest.mark.parametrize("flag", ["--ckpt-path", "--load"])
def test_run_and_dry_run_read_what_they_begin_with_alike(
    shards: Path, short_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], flag: str
) -> None:
    ckpt = shutil.copytree(short_run / "step-00000002", tmp_path / "ckpt")
    (tmp_path / "garbage.safetensors").write_bytes(b"\xff" * 100)
    torch.save({"weight": torch.zeros(2)}, tmp_path / "foreign.pth")
    flip_a_bit(ckpt / "model" / "__0_0.distcp")
    named: dict[str, list[str]] = {
        "damaged": [str(ckpt)],
        "garbage": [str(tmp_path / "garbage.safetensors")],
        "foreign": [str(tmp_path / "foreign.pth")],
        "a folder of nothing": [str(tmp_path)],
        "another model": [str(short_run / "step-00000002"), "--set", "model.depth=2"],
        "another optimizer": [str(short_run / "step-00000002"), "--set", "stages.0.optim.muon=1.0"],
        "whole": [str(short_run / "step-00000002")],
    }
    for number, (name, more) in enumerate(named.items()):
        ends = []
        for dry in (["--dry-run"], []):
            words = command_words(shards, tmp_path / f"new-{number}", *SHORT)
            code = trainer_command.main([*words, flag, *more, *dry])
            said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
            ends.append((code, said))
        assert ends[0] == ends[1], name
        is_begun = name == "whole" or (name, flag) == ("another optimizer", "--ckpt-path")
        assert (ends[0][0] == 0) == is_begun, name


def test_run_and_dry_run_refuse_other_clips_and_another_origin_alike(
    shards: Path, short_run: Path, half_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = make_shards(tmp_path / "other", num_clips=16)
    cases = [
        (2, other, half_run, []),
        (2, shards, half_run, ["--load", str(short_run), "--start-from-scratch"]),
        (1, shards, half_run, ["--load", str(tmp_path / "nowhere")]),  # it may have been there at the start
        (2, shards, tmp_path / "new", ["--load", str(tmp_path / "nowhere")]),
        (2, shards, tmp_path / "new", ["--start-from-scratch"]),
        (2, shards, tmp_path / "new", ["--ckpt-path", str(tmp_path / "nowhere")]),
    ]
    for code, data, run, flags in cases:
        said = []
        for more in ([], ["--dry-run"]):
            assert trainer_command.main([*command_words(data, run, *SHORT), *flags, *more]) == code
            said.append([line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")])
        assert said[0] == said[1], flags
    assert pointer.latest(half_run) == half_run / "step-00000002"
