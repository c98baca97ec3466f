"""A checkpoint is whole or absent, and one that is not what it says is refused by name."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trainer import checkpoint
from vidcurate.errors import CheckpointError, StorageError

STATE = {"step": 100, "recipe": {"name": "small"}}


def parts(value: float = 1.0) -> dict[str, dict[str, torch.Tensor]]:
    weights = {"layer.weight": torch.full((2, 3), value), "layer.bias": torch.arange(3).to(torch.bfloat16)}
    return {"model": weights, "ema": weights, "optimizer": {"exp_avg.layer.weight": torch.zeros(2, 3)}}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    checkpoint.save(tmp_path / "run", 100, parts(), STATE)
    return tmp_path / "run"


def test_what_is_saved_is_what_is_loaded(run: Path) -> None:
    loaded = checkpoint.load(run)

    assert loaded.path == run / "step-00000100"
    assert loaded.state == STATE
    assert checkpoint.checksum(loaded.parts["model"]) == checkpoint.checksum(parts()["model"])
    assert loaded.parts["model"]["layer.bias"].dtype == torch.bfloat16
    assert sorted(path.name for path in run.iterdir()) == ["LATEST", "step-00000100"]


def test_the_same_tensors_give_the_same_bytes(run: Path, tmp_path: Path) -> None:
    backwards = {name: dict(reversed(tensors.items())) for name, tensors in parts().items()}
    checkpoint.save(tmp_path / "again", 100, backwards, STATE)

    for path in sorted((run / "step-00000100").iterdir()):
        assert path.read_bytes() == (tmp_path / "again" / "step-00000100" / path.name).read_bytes(), path.name


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
    assert checkpoint.checkpoints(run) == [run / "step-00000100"]


def test_only_the_newest_are_kept_and_never_without_latest(run: Path) -> None:
    for step in (200, 300, 400):
        checkpoint.save(run, step, parts(), STATE)

    assert checkpoint.keep_last(run, 2) == ["step-00000100", "step-00000200"]
    (run / "LATEST").write_text("step-00000300\n")
    assert checkpoint.keep_last(run, 1) == []
    assert [path.name for path in checkpoint.checkpoints(run)] == ["step-00000300", "step-00000400"]


def test_a_run_without_checkpoints_has_no_latest(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) is None
    assert checkpoint.latest(tmp_path / "nothing there") is None


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


DAMAGES = {
    "truncated": (
        lambda c: (c / "model.safetensors").write_bytes(b"short"),
        r"model\.safetensors: has 5 bytes",
    ),
    "altered": (
        lambda c: flip(c / "ema.safetensors"),
        r"ema\.safetensors: its SHA-256 is not the manifest's",
    ),
    "gone": (lambda c: (c / "optimizer.safetensors").unlink(), r"optimizer\.safetensors: is missing"),
    "half copied": (lambda c: (c / "manifest.json").unlink(), "is missing|names 'step-00000100'"),
    "no json": (lambda c: (c / "manifest.json").write_text("{"), r"manifest\.json: cannot be read"),
    "other json": (lambda c: (c / "manifest.json").write_text("[]"), r"manifest\.json: holds no JSON object"),
    "newer": (lambda c: edit(c / "manifest.json", format=99), "has format 99.*Upgrade vidcurate"),
    "unlisted": (lambda c: edit(c / "manifest.json", files={}), r"does not list model\.safetensors"),
    "latest nowhere": (
        lambda c: (c.parent / "LATEST").write_text("step-00000999"),
        "names 'step-00000999'.*echo",
    ),
    "latest outside": (
        lambda c: (c.parent / "LATEST").write_text("../elsewhere"),
        "not a complete checkpoint",
    ),
    "latest gone": (lambda c: (c.parent / "LATEST").unlink(), "LATEST: is missing while step-00000100"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_name(run: Path, damage: str) -> None:
    harm, said = DAMAGES[damage]
    harm(run / "step-00000100")

    with pytest.raises(CheckpointError, match=said) as caught:
        checkpoint.load(run)
    assert "\n" not in str(caught.value)


def test_a_path_that_is_no_checkpoint_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint or run folder"):
        checkpoint.load(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"no manifest\.json in it: half copied"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"a": torch.zeros(2)}, "lacks b"),
        ({"a": torch.zeros(2), "b": torch.zeros(1), "c": torch.zeros(1)}, "has unknown c"),
        ({"a": torch.zeros(2), "B": torch.zeros(1)}, "lacks b and has unknown B"),
        ({"a": torch.zeros(3), "b": torch.zeros(1)}, r"a is float32 \[3\]; the model has float32 \[2\]"),
        ({"a": torch.zeros(2), "b": torch.zeros(1).double()}, "b is float64"),
    ],
)
def test_a_renamed_missing_or_reshaped_key_is_refused_and_nothing_is_copied(
    given: dict[str, torch.Tensor], said: str
) -> None:
    wanted = {"a": torch.ones(2), "b": torch.ones(1)}

    with pytest.raises(CheckpointError, match=said):
        checkpoint.copy_into(wanted, given, "model.safetensors")
    assert torch.equal(wanted["a"], torch.ones(2))


def test_many_missing_keys_are_counted() -> None:
    wanted = {f"k{number}": torch.ones(1) for number in range(9)}

    with pytest.raises(CheckpointError, match="lacks k0, k1, k2 and 6 more"):
        checkpoint.copy_into(wanted, {}, "model.safetensors")


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

from trainer import checkpoint

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
        checkpoint.keep_last(run, 1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9), status
    loaded = checkpoint.load(run)
    expected = {100: 1.0, 200: 2.0}[loaded.state["step"]]
    assert all(float(loaded.parts[part]["a"][0]) == expected for part in checkpoint.PARTS)
    found.add((loaded.state["step"], len(checkpoint.checkpoints(run))))
    checkpoint.save(run, 300, parts(3.0), {"step": 300})
    assert checkpoint.load(run).state["step"] == 300
print(moment, sorted(found))
"""


def test_a_save_killed_at_any_file_operation_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KILLED_EVERYWHERE, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert ended.returncode == 0, ended.stderr
    moments, found = ended.stdout.split(" ", 1)
    assert int(moments) > 20
    assert found.strip() == "[(100, 1), (100, 2), (200, 1), (200, 2)]"
