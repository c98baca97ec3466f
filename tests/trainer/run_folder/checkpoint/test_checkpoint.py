"""A checkpoint is whole or absent: saved, killed, replaced, kept."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.trainer.run_folder.checkpoint.saved_parts import STATE, parts
from trainer.distributed.mesh import ALONE
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder import pointer
from trainer.run_folder.checkpoint import async_save, checkpoint, checksum, retention
from vidcurate.errors import CheckpointError, StorageError


def test_what_is_saved_is_what_is_loaded(run: Path) -> None:
    loaded = checkpoint.load(run)

    assert loaded.path == run / "step-00000100"
    assert loaded.state == STATE
    assert checksum.checksum(loaded.parts["model"]) == checksum.checksum(parts()["model"])
    assert loaded.parts["model"]["layer.bias"].dtype == torch.bfloat16
    assert sorted(path.name for path in run.iterdir()) == ["LATEST", "step-00000100"]


def test_the_same_tensors_give_the_same_bytes(run: Path, tmp_path: Path) -> None:
    backwards = {name: dict(reversed(tensors.items())) for name, tensors in parts().items()}
    checkpoint.save(tmp_path / "again", 100, backwards, STATE)

    first, second = (contents(folder / "step-00000100") for folder in (run, tmp_path / "again"))
    assert len(first) == 2 + 2 * len(checkpoint.PARTS)
    assert first == second


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_save_in_the_background_writes_the_same_bytes_and_the_tensors_as_they_were(
    run: Path, tmp_path: Path
) -> None:
    one = async_save.AsyncSaver(tmp_path / "again", ALONE)
    tensors = parts()
    for step in (100, 200):
        one.save(step, tensors, lambda: STATE, keep_last=9, in_background=True)
        for values in tensors.values():
            for value in values.values():
                value.add_(1)  # training continues
        saved = one.wait()
        assert saved is not None
        assert (saved.step, saved.path.name) == (step, f"step-{step:08d}")
        assert saved.stall_seconds <= saved.seconds
    one.close()

    assert contents(tmp_path / "again" / "step-00000100") == contents(run / "step-00000100")
    second = checkpoint.load(tmp_path / "again" / "step-00000200").parts
    assert float(second["model"]["layer.weight"][0, 0]) == 3.0  # model and average share their tensors here
    assert one.take() is None


def test_a_save_that_fails_in_the_background_is_raised_once_by_the_next_wait(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    one = async_save.AsyncSaver(tmp_path / "file", ALONE)
    one.save(100, parts(), lambda: STATE, keep_last=1, in_background=True)

    with pytest.raises(StorageError, match="step-00000100: the checkpoint cannot be written"):
        one.wait()
    assert not one.failed
    assert one.wait() is None
    one.close()


def test_one_part_is_read_without_the_others(run: Path) -> None:
    shutil.rmtree(run / "step-00000100" / "optimizer")  # as rsync --exclude leaves it

    assert set(checkpoint.read_part(run / "step-00000100", "ema")) == {"layer.weight", "layer.bias"}
    with pytest.raises(CheckpointError, match=r"optimizer/\.metadata: is missing"):
        checkpoint.load(run)


def test_torch_reads_a_part_by_itself(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"

    dcp_to_torch_save(run / "step-00000100" / "model", file)

    assert torch.equal(torch.load(file)["layer.weight"], parts()["model"]["layer.weight"])


def test_saving_a_step_again_replaces_it_whole(run: Path) -> None:
    checkpoint.save(run, 100, parts(2.0), STATE)

    assert float(checkpoint.load(run).parts["model"]["layer.weight"][0, 0]) == 2.0
    assert sorted(path.name for path in run.iterdir()) == ["LATEST", "step-00000100"]


def test_a_save_that_was_killed_is_not_seen_and_is_cleaned_by_the_next(run: Path) -> None:
    shutil.copytree(run / "step-00000100", run / ".step-00000200.partial")
    (run / ".step-00000200.partial" / "manifest.json").unlink()

    assert checkpoint.find(run).name == "step-00000100"
    checkpoint.save(run, 200, parts(), STATE)

    assert checkpoint.find(run).name == "step-00000200"
    assert not list(run.glob(".step*"))


def test_stray_files_and_folders_are_ignored(run: Path) -> None:
    (run / "step-00000100" / "zzz.tmp").write_text("stray")
    (run / "step-00000900").mkdir()
    (run / "step-1000-copy").mkdir()
    (run / "step-00000901").write_text("a file")
    (run / "global_step9999").mkdir()

    assert checkpoint.load(run).state["step"] == 100
    assert run_folder_layout.checkpoints(run) == [run / "step-00000100"]
    assert retention.stray_files(run / "step-00000100") == [
        "global_step9999",
        "step-00000100/zzz.tmp",
        "step-00000900",
        "step-00000901",
        "step-1000-copy",
    ]


def test_only_the_newest_are_kept_and_never_without_latest(run: Path) -> None:
    for step in (200, 300, 400):
        checkpoint.save(run, step, parts(), STATE)

    assert retention.keep_checkpoints(run, 2) == ["step-00000100", "step-00000200"]
    (run / "LATEST").write_text("step-00000300\n")
    assert retention.keep_checkpoints(run, 1) == []
    assert [path.name for path in run_folder_layout.checkpoints(run)] == ["step-00000300", "step-00000400"]


def test_every_nth_checkpoint_is_kept_for_good(run: Path) -> None:
    for step in (200, 300, 400, 500):
        checkpoint.save(run, step, parts(), STATE)

    assert retention.keep_checkpoints(run, 1, every=200) == ["step-00000100", "step-00000300"]
    assert [run_folder_layout.step_of(path) for path in run_folder_layout.checkpoints(run)] == [200, 400, 500]


def test_the_checksum_sees_values_places_names_and_dtypes() -> None:
    zeros = {"a": torch.zeros(2, 3), "b": torch.arange(4)}
    changed = [
        zeros | {"a": torch.tensor([[0.0, 0, 0], [0, 0, 1e-45]])},
        zeros | {"b": torch.tensor([0, 2, 1, 3])},
        zeros | {"a": torch.zeros(3, 2)},
        zeros | {"a": torch.zeros(2, 3, dtype=torch.int32)},
        {"A": zeros["a"], "b": zeros["b"]},
        zeros | {"c": torch.zeros(())},
    ]
    sums = {checksum.checksum(tensors) for tensors in [zeros, *changed]}

    assert len(sums) == len(changed) + 1
    assert checksum.checksum(dict(reversed(zeros.items()))) == checksum.checksum(zeros)
    assert checksum.checksum({}) not in sums


def test_a_run_without_checkpoints_has_no_latest(tmp_path: Path) -> None:
    assert pointer.latest(tmp_path) is None
    assert pointer.latest(tmp_path / "nothing there") is None


def test_a_kill_between_the_first_save_and_its_name_loses_nothing(run: Path) -> None:
    (run / "LATEST").unlink()

    assert pointer.latest(run) == run / "step-00000100"
    assert checkpoint.find(run) == run / "step-00000100"


def test_a_disk_that_refuses_leaves_the_run_as_it_was(run: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")

    with pytest.raises(StorageError, match="the checkpoint cannot be written"):
        checkpoint.save(blocked, 100, parts(), STATE)

    assert checkpoint.load(run).state["step"] == 100


KILLED_EVERYWHERE = """
import os, shutil, sys
from pathlib import Path

import torch

from trainer.run_folder.checkpoint import checkpoint
from trainer.run_folder.checkpoint import retention
from trainer.run_folder import layout as run_folder_layout

# The process dies at its n-th file operation, for every n, while it saves step 200 and deletes what is too
# old; the next process must find a whole checkpoint, the old or the new one.
OPERATIONS = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove"}
run, original = Path(sys.argv[1]), Path(sys.argv[1]).with_name("original")


def parts(value):
    return {part: {"a": torch.full((4,), value)} for part in checkpoint.PARTS}


def die_at(moment):
    count = 0

    def hook(event, arguments):
        nonlocal count
        if event in OPERATIONS:
            count += 1
            if count == moment:
                os._exit(9)

    sys.addaudithook(hook)


checkpoint.save(original, 100, parts(1.0), {"step": 100})
found, moment, status = set(), 0, None
while status != 0:
    moment += 1
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(original, run)
    child = os.fork()
    if child == 0:
        die_at(moment)
        checkpoint.save(run, 200, parts(2.0), {"step": 200})
        retention.keep_checkpoints(run, 1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9), status
    loaded = checkpoint.load(run)
    expected = {100: 1.0, 200: 2.0}[loaded.state["step"]]
    assert all(float(loaded.parts[part]["a"][0]) == expected for part in checkpoint.PARTS)
    found.add((loaded.state["step"], len(run_folder_layout.checkpoints(run))))
    checkpoint.save(run, 300, parts(3.0), {"step": 300})
    assert checkpoint.load(run).state["step"] == 300
print(moment, sorted(found))
"""


def test_a_save_killed_at_any_file_operation_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KILLED_EVERYWHERE, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert ended.returncode == 0, ended.stderr
    moments, found = ended.stdout.split(" ", 1)
    assert int(moments) > 20
    assert found.strip() == "[(100, 1), (100, 2), (200, 1), (200, 2)]"
