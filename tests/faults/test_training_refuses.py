"""What must not be trained on is refused in one line that names it, through the real command's function."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.shards_for_tests import events, make_shards, numbers, smoke
from trainer.run_folder.checkpoint import checkpoint
from trainer.train import train
from vidcurate.errors import VidcurateError

SHORT = ("stages.0.steps=4", "stages.0.checkpoint_every=2", "loader.num_workers=0", "sample=null")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `shards` and a `run` over them that stands at step 2 of 4."""
    folder = tmp_path_factory.mktemp("made")
    make_shards(folder / "shards")
    train(smoke(folder / "shards", folder / "run", *SHORT, "stages.0.steps=2"))
    return folder


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "home")
    return tmp_path / "home"


def resume(home: Path, *more: str) -> None:
    train(smoke(home / "shards", home / "run", *SHORT, *more))


def newest(home: Path) -> Path:
    return checkpoint.find(home / "run")


def edit(home: Path, name: str, **changes: Any) -> None:
    """Change a JSON file of the newest checkpoint, and its hash in the manifest as its writer would."""
    path = newest(home) / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    sign(home)


def sign(home: Path) -> None:
    folder = newest(home)
    manifest = json.loads((folder / "manifest.json").read_text())
    files = {
        name: {
            "size_bytes": (folder / name).stat().st_size,
            "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest(),
        }
        for name in manifest["files"]
        if (folder / name).is_file()
    }
    (folder / "manifest.json").write_text(json.dumps({**manifest, "files": files}))


def shorten(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def rename_key(home: Path) -> None:
    found = checkpoint.load(home / "run")
    model = dict(found.parts["model"])
    model["x_embedder.weight"] = model.pop("x_embedder.proj.weight")
    checkpoint.save(home / "run", 2, found.parts | {"model": model}, found.state)


def lose_average(home: Path) -> None:
    shutil.rmtree(newest(home) / "ema")
    sign(home)


def other_shards(home: Path) -> None:
    shutil.rmtree(home / "shards")
    make_shards(home / "shards", num_clips=14)


Harm = Callable[[Path], object]

HARMS: dict[str, tuple[Harm, tuple[str, ...], str]] = {
    "a truncated shard of the checkpoint": (
        lambda home: shorten(newest(home) / "optimizer" / "__0_0.distcp"),
        (),
        r"step-00000002/optimizer/__0_0\.distcp: has \d+ bytes; the manifest says \d+",
    ),
    "a truncated shard of the data": (
        lambda home: shorten(home / "shards" / "train-level1-000000.tar"),
        (),
        r"train-level1-000000\.tar",
    ),
    "a renamed key": (
        rename_key,
        (),
        r"model: lacks x_embedder\.proj\.weight and has unknown x_embedder\.weight",
    ),
    "a missing average": (lose_average, (), r"manifest\.json: does not list ema/\.metadata"),
    "another model": (
        lambda home: None,
        ("model.freeze_y_embedder=true",),
        r"model\.freeze_y_embedder is False in the checkpoint",
    ),
    "other clips": (
        other_shards,
        (),
        r"2 clips added in 2 shards \(train-.*clip-012; .*clip-013\).*--append",
    ),
    "a data position of another step": (
        lambda home: edit(home, "state.json", stage_step=1),
        (),
        "its data is at step 2 of the stage and its training at 1",
    ),
    "another optimizer": (
        lambda home: edit(home, "state.json", optimizer="Lion"),
        (),
        "saved with the optimizer Lion and this trainer has AdamW.*--ckpt-path",
    ),
    "other settings of the optimizer": (
        lambda home: None,
        ("stages.0.optim.betas=[0.9, 0.95]",),
        r"optim\.betas was \[0\.9, 0\.999\] .* is \[0\.9, 0\.95\] now.*--set stages\.0\.optim\.betas",
    ),
    "another epsilon": (lambda home: None, ("stages.0.optim.eps=1e-15",), r"stages\.0\.optim\.eps was 1e-08"),
    "a newer version": (
        lambda home: edit(home, "manifest.json", format=3, versions={"vidcurate": "9.9"}),
        (),
        r"has format 3, written by vidcurate 9\.9; this is .*Upgrade vidcurate",
    ),
    "weights that are not those that were saved": (
        lambda home: edit(home, "state.json", checksums={"model": "0" * 64, "ema": "", "optimizer": ""}),
        (),
        "the loaded model has checksum .* was saved with 000000000000",
    ),
}


@pytest.mark.parametrize("harm", HARMS)
def test_it_is_refused_by_name_and_nothing_is_changed(home: Path, harm: str) -> None:
    work, more, said = HARMS[harm]
    work(home)
    before = {path: path.read_bytes() for path in (home / "run").rglob("*") if path.is_file()}

    with pytest.raises(VidcurateError, match=said) as caught:
        resume(home, *more)

    assert "\n" not in str(caught.value)
    assert before == {path: path.read_bytes() for path in (home / "run").rglob("*") if path.is_file()}


def test_stray_files_are_named_once_and_change_nothing(
    home: Path, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calm = tmp_path / "calm"
    shutil.copytree(made, calm)
    (newest(home) / "zero_pp_rank_0.pt").write_bytes(b"stray")
    (newest(home) / "model" / "__0_9.distcp").write_bytes(b"stray")
    (home / "run" / "global_step9999").mkdir()

    resume(home)
    reported = capsys.readouterr().err
    resume(calm)

    strays = ["global_step9999", "step-00000002/model/__0_9.distcp", "step-00000002/zero_pp_rank_0.pt"]
    assert events(home / "run", "resume")[0]["stray_files"] == strays
    assert reported.count("zero_pp_rank_0.pt") == 1
    assert numbers(home / "run") == numbers(calm / "run")
    one, other = (checkpoint.load(folder / "run").state["checksums"] for folder in (home, calm))
    assert one == other
