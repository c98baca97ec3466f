"""Weights in and out as Open-Sora has them, and everything that does not fit."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.trainer.shards_for_tests import make_shards, smoke
from trainer.model.stdit import STDiT3, STDiT3Config
from trainer.run_folder.checkpoint import checkpoint, convert, convert_command
from trainer.run_folder.checkpoint.pixart import state_shapes
from trainer.train import train
from trainer.training.state import Origin
from vidcurate.errors import CheckpointError, InputError, StorageError
from vidcurate.storage import atomic_file

TINY = STDiT3Config(hidden_size=48, depth=2, num_heads=4, caption_channels=20, model_max_length=10)


@pytest.fixture(scope="module")
def model_state() -> dict[str, Tensor]:
    state = STDiT3(TINY, seed=1).state_dict()
    return {name: value.bfloat16() if "mlp" in name else value for name, value in state.items()}


@pytest.mark.parametrize("shard_bytes", [None, 1, 60_000])
def test_weights_go_out_and_come_back_bit_for_bit(
    tmp_path: Path, model_state: dict[str, Tensor], shard_bytes: int | None
) -> None:
    folder = tmp_path / "weights"
    convert.write_open_sora(model_state, TINY, folder, shard_bytes=shard_bytes)
    assert convert.read_config(folder) == TINY
    back = convert.read_open_sora(folder)
    assert list(back) == list(state_shapes(TINY))
    for name, value in model_state.items():
        assert back[name].dtype == value.dtype
        assert torch.equal(back[name], value)
    shards = sorted(folder.glob("*.safetensors"))
    # safetensors keeps a file to its user: others of a cluster could read the configuration alone.
    assert {path.stat().st_mode for path in shards} == {(folder / "config.json").stat().st_mode}
    if shard_bytes is None:
        assert [shard.name for shard in shards] == ["model.safetensors"]
    else:
        assert len(shards) == len(model_state) if shard_bytes == 1 else 1 < len(shards) < len(model_state)
        assert all(len(load_file(shard)) == 1 or shard.stat().st_size < 2 * 60_000 for shard in shards)
        assert shards[-1].name == f"model-{len(shards):05d}-of-{len(shards):05d}.safetensors"
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        assert set(index["weight_map"]) == set(model_state)
    other = tmp_path / "again"
    convert.write_open_sora(model_state, TINY, other, shard_bytes=shard_bytes)
    for path in folder.iterdir():
        assert (other / path.name).read_bytes() == path.read_bytes()


def test_published_layouts_are_read(tmp_path: Path, model_state: dict[str, Tensor]) -> None:
    # ColossalAI: epoch folder / model / pickled shards with an index.
    inner = tmp_path / "epoch4-global_step2210" / "model"
    inner.mkdir(parents=True)
    names = sorted(model_state)
    listed = {}
    for number, some in enumerate((names[:20], names[20:]), start=1):
        shard = f"pytorch_model-{number:05d}.bin"
        torch.save({name: model_state[name].bfloat16() for name in some}, inner / shard)
        listed |= dict.fromkeys(some, shard)
    (inner / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": listed}))
    state = convert.read_open_sora(inner.parent, TINY)
    assert torch.equal(state["t_block.1.weight"], model_state["t_block.1.weight"].bfloat16())

    torch.save(dict(model_state), tmp_path / "ema.pt")
    assert torch.equal(
        convert.read_open_sora(tmp_path / "ema.pt", TINY)["rope.freqs"], model_state["rope.freqs"]
    )

    hub = tmp_path / "hub"
    hub.mkdir()
    save_file(model_state, hub / "model.safetensors")
    fields = TINY.model_dump(mode="json", exclude={"reproduce"})
    fields |= {"model_type": "STDiT3", "transformers_version": "4.36.2", "input_size": [None, None, None]}
    (hub / "config.json").write_text(json.dumps(fields))
    assert convert.read_config(hub / "model.safetensors") == TINY
    assert len(convert.read_open_sora(hub)) == len(model_state)


def test_every_file_that_does_not_fit_is_named(tmp_path: Path, model_state: dict[str, Tensor]) -> None:
    def refused(state: dict[str, Tensor], message: str, config: STDiT3Config = TINY) -> None:
        path = tmp_path / "model.safetensors"
        save_file(state, path)
        with pytest.raises(CheckpointError, match=message):
            convert.read_open_sora(path, config)

    renamed = {name.replace("final_layer", "last_layer"): value for name, value in model_state.items()}
    refused(renamed, "lacks final_layer.linear.bias and 2 more")
    refused(model_state | {"extra": torch.zeros(1)}, "has the unexpected extra; it is not this STDiT3")
    refused(
        model_state,
        r"rope.freqs is \[6\]; this model needs \[12\]",
        TINY.model_copy(update={"hidden_size": 96}),
    )
    refused(model_state | {"rope.freqs": model_state["rope.freqs"] * 1.1}, "rope.freqs are not 10000")

    with pytest.raises(InputError, match="there is no such file"):
        convert.read_open_sora(tmp_path / "none.safetensors", TINY)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match=r"has no weights; looked for model.safetensors.index.json"):
        convert.read_open_sora(empty, TINY)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes((tmp_path / "model.safetensors").read_bytes()[:2000])
    with pytest.raises(CheckpointError, match=r"broken.safetensors: cannot be read as weights"):
        convert.read_open_sora(broken, TINY)
    code = tmp_path / "code.pth"
    torch.save({"a": Path("x")}, code)
    with pytest.raises(CheckpointError, match=r"code.pth: cannot be read as weights \(Unsupported .*pathlib"):
        convert.read_open_sora(code, TINY)
    code.write_text("seed: 1\nname: no weights\n")
    with pytest.raises(CheckpointError, match="cannot be read as weights") as refused:
        convert.read_open_sora(code, TINY)
    assert "weights_only" not in str(refused.value)


def test_shards_and_their_index_must_agree(tmp_path: Path, model_state: dict[str, Tensor]) -> None:
    folder = tmp_path / "weights"
    convert.write_open_sora(model_state, TINY, folder, shard_bytes=60_000)
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    first = folder / min(listed["weight_map"].values())
    whole = load_file(first)
    dropped = min(whole)
    save_file({name: value for name, value in whole.items() if name != dropped}, first)
    with pytest.raises(
        CheckpointError, match=f"does not hold what its index lists, see {re.escape(dropped)}"
    ):
        convert.read_open_sora(folder)
    first.unlink()
    with pytest.raises(InputError, match=f"{first.name}: there is no such file"):
        convert.read_open_sora(folder)
    listed["weight_map"][dropped] = "../elsewhere.safetensors"
    index.write_text(json.dumps(listed))
    with pytest.raises(CheckpointError, match=r"elsewhere.safetensors', which is no weights file beside it"):
        convert.read_open_sora(folder)
    index.write_text("{}")
    with pytest.raises(CheckpointError, match="is not an index of shards"):
        convert.read_open_sora(folder)


def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path, model_state: dict[str, Tensor]) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(InputError, match="exists already"):
        convert.write_open_sora(model_state, TINY, taken)
    left = atomic_file.partial_path(tmp_path / "weights")  # by a killed process: no process has this id
    stray = left.with_name(left.name.replace(f"-{os.getpid()}-", "-4194305-"))
    stray.mkdir()
    (stray / "half").write_text("")
    convert.write_open_sora(model_state, TINY, tmp_path / "weights")
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    assert not stray.exists()
    with pytest.raises(StorageError, match="cannot be written"):
        convert.write_open_sora(model_state, TINY, tmp_path / "weights" / "config.json" / "below")


@pytest.mark.parametrize("key", ["caption_channels", "model_max_length", "in_channels", "hidden_size"])
def test_a_size_that_no_tensor_has_is_refused(tmp_path: Path, key: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({key: 10**30}))
    with pytest.raises(CheckpointError, match=f"not an STDiT3 configuration .{key}"):
        convert.read_config(tmp_path)


def test_a_configuration_that_is_nobodys_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_sise": 3}')
    with pytest.raises(CheckpointError, match=r"not an STDiT3 configuration .hidden_sise"):
        convert.read_config(tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(CheckpointError, match="not an STDiT3 configuration"):
        convert.read_config(tmp_path)


def test_the_command_prints_and_writes(
    tmp_path: Path, model_state: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    convert.write_open_sora(model_state, TINY, source)
    assert convert_command.main(["opensora", str(source), str(copy), "--shard-gb", "0.0001"]) == 0
    assert "depth 2, width 48, 4 heads" in capsys.readouterr().out
    assert convert_command.main(["show", str(copy)]) == 0
    assert f"{len(model_state)} tensors" in capsys.readouterr().out
    assert convert_command.main(["opensora", str(source), str(copy)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert convert_command.main(["pixart", str(source), str(tmp_path / "new")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "unexpected fps_embedder.mlp.0.bias" in error
    with pytest.raises(SystemExit, match="2"):
        convert_command.main(["show", str(copy), "folder"])


def test_a_runs_average_or_its_weights_go_out_as_open_sora_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(smoke(make_shards(tmp_path / "shards"), run, "stages.0.steps=2", "sample=null"))

    assert convert_command.main(["export", str(run), str(tmp_path / "average")]) == 0
    assert convert_command.main(["export", str(run), str(tmp_path / "raw"), "--raw", "--json"]) == 0

    answer = json.loads(capsys.readouterr().out.partition("average\n")[2])
    assert answer["source"] == str(run / "step-00000002" / "model")
    held = checkpoint.load(run).parts
    for part, folder in (("ema", "average"), ("model", "raw")):
        written = convert.read_open_sora(tmp_path / folder)
        assert {name: value.dtype for name, value in written.items()} == {
            name: torch.float32 for name in held[part]
        }
        assert all(torch.equal(written[name], value) for name, value in held[part].items())
    assert not torch.equal(written["x_embedder.proj.weight"], held["ema"]["x_embedder.proj.weight"])

    there = str(run / "step-00000002")
    assert convert_command.main(["export", there, str(tmp_path / "small"), "--dtype", "bfloat16"]) == 0
    assert convert_command.main(["show", str(tmp_path / "small"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out.partition("small\n")[2])
    assert (shown["dtypes"], shown["config"]["hidden_size"]) == (["bfloat16"], 32)
    # And in again: a run begins with the exported weights.
    origin = Origin(ckpt_path=tmp_path / "average")
    train(smoke(tmp_path / "shards", tmp_path / "next", "stages.0.steps=1", "sample=null"), origin)

    words = ["export", str(run), str(tmp_path / "parts"), "--shard-gb"]
    for size in ("nan", "inf", "1e400", "0", "-1"):
        with pytest.raises(SystemExit) as ended:
            convert_command.main([*words[:-1], f"--shard-gb={size}"])
        assert ended.value.code == 2
        assert f"--shard-gb {float(size):g}: must be a number above 0" in capsys.readouterr().err
    assert not (tmp_path / "parts").exists()
    assert convert_command.main([*words, "1e-5"]) == 0
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    capsys.readouterr()

    assert convert_command.main(["export", str(tmp_path / "shards"), str(tmp_path / "no")]) == 1
    assert "neither a checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [("mlp_ratio", 3.0, "4.0"), ("patch_size", [1, 4, 4], r"\[1, 2, 2\]"), ("qk_norm", False, "true")],
)
def test_a_configuration_with_another_fixed_value_is_refused(
    tmp_path: Path, name: str, value: object, kept: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 1152, name: value}))
    with pytest.raises(CheckpointError, match=f"{name} must be {kept}, as in all published weights"):
        convert.read_config(tmp_path)
