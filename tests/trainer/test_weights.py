"""Weights in and out: PixArt's true names and shapes, Open-Sora's files, and everything that does not fit."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.trainer.shards_for_tests import make_shards, smoke
from trainer import checkpoint, weights
from trainer.loop import train
from trainer.pixart import convert_pixart, state_shapes
from trainer.resume import Origin
from trainer.stdit import XL_2, STDiT3, STDiT3Config
from vidcurate.errors import CheckpointError, InputError, StorageError

TINY = STDiT3Config(hidden_size=48, depth=2, num_heads=4, caption_channels=20, model_max_length=10)


def pixart(config: STDiT3Config, fill: Callable[..., Tensor], tokens: int | None = None) -> dict[str, Tensor]:
    """Return a PixArt state dict of the true names and shapes; `fill` makes a tensor of a shape."""
    d, channels = config.hidden_size, config.caption_channels
    shapes: dict[str, tuple[int, ...]] = {
        "pos_embed": (1, 64, d),
        "x_embedder.proj.weight": (d, 4, 2, 2),
        "x_embedder.proj.bias": (d,),
        "t_embedder.mlp.0.weight": (d, 256),
        "t_embedder.mlp.0.bias": (d,),
        "t_embedder.mlp.2.weight": (d, d),
        "t_embedder.mlp.2.bias": (d,),
        "t_block.1.weight": (6 * d, d),
        "t_block.1.bias": (6 * d,),
        "y_embedder.y_embedding": (tokens or config.model_max_length, channels),
        "y_embedder.y_proj.fc1.weight": (d, channels),
        "y_embedder.y_proj.fc1.bias": (d,),
        "y_embedder.y_proj.fc2.weight": (d, d),
        "y_embedder.y_proj.fc2.bias": (d,),
        "final_layer.linear.weight": (32, d),
        "final_layer.linear.bias": (32,),
        "final_layer.scale_shift_table": (2, d),
    }
    for number in range(config.depth):
        shapes[f"blocks.{number}.scale_shift_table"] = (6, d)
        for name, rows, columns in [
            ("attn.qkv", 3 * d, d),
            ("attn.proj", d, d),
            ("cross_attn.q_linear", d, d),
            ("cross_attn.kv_linear", 2 * d, d),
            ("cross_attn.proj", d, d),
            ("mlp.fc1", 4 * d, d),
            ("mlp.fc2", d, 4 * d),
        ]:
            shapes[f"blocks.{number}.{name}.weight"] = (rows, columns)
            shapes[f"blocks.{number}.{name}.bias"] = (rows,)
    return {name: fill(shape) for name, shape in shapes.items()}


def in_diffusers_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a PixArt state dict as diffusers' conversion script writes it."""
    found = {}
    for name, value in state.items():
        block = re.fullmatch(r"blocks\.(\d+)\.(.+?)(\.weight|\.bias)?", name)
        if block:
            to, layer, kind = f"transformer_blocks.{block[1]}.", block[2], block[3]
            if layer == "attn.qkv":
                for part, piece in zip("qkv", value.chunk(3), strict=True):
                    found[f"{to}attn1.to_{part}{kind}"] = piece
            elif layer == "cross_attn.kv_linear":
                for part, piece in zip("kv", value.chunk(2), strict=True):
                    found[f"{to}attn2.to_{part}{kind}"] = piece
            else:
                theirs = {
                    "scale_shift_table": "scale_shift_table",
                    "attn.proj": "attn1.to_out.0",
                    "cross_attn.q_linear": "attn2.to_q",
                    "cross_attn.proj": "attn2.to_out.0",
                    "mlp.fc1": "ff.net.0.proj",
                    "mlp.fc2": "ff.net.2",
                }[layer]
                found[f"{to}{theirs}{kind or ''}"] = value
            continue
        if name in ("pos_embed", "y_embedder.y_embedding"):
            continue
        for ours, theirs in {
            "x_embedder.proj": "pos_embed.proj",
            "t_embedder.mlp.0": "adaln_single.emb.timestep_embedder.linear_1",
            "t_embedder.mlp.2": "adaln_single.emb.timestep_embedder.linear_2",
            "t_block.1": "adaln_single.linear",
            "y_embedder.y_proj.fc1": "caption_projection.linear_1",
            "y_embedder.y_proj.fc2": "caption_projection.linear_2",
            "final_layer.linear": "proj_out",
            "final_layer.scale_shift_table": "scale_shift_table",
        }.items():
            name = name.replace(ours, theirs)
        found[name] = value
    return found


def half(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, dtype=torch.float32).half()


@pytest.fixture(scope="module")
def sigma() -> dict[str, Tensor]:
    return pixart(TINY, half)


def test_436_of_437_keys_of_pixart_sigma_load_and_537_are_initialised() -> None:
    # The true names and shapes of XL/2, without values.
    source = pixart(XL_2, lambda shape: torch.empty(shape, dtype=torch.float16, device="meta"))
    assert len(source) == 437
    state, report = convert_pixart({"state_dict": source})
    assert len(report.loaded) == 436
    assert len(report.initialised) == 537
    assert {name: tuple(value.shape) for name, value in state.items()} == state_shapes(XL_2)
    assert set(report.loaded) | set(report.initialised) == set(state)
    assert report.unused == ("pos_embed",)
    assert report.allowed == ()
    assert list(report.reshaped) == ["x_embedder.proj.weight"]
    kinds = [
        ("temporal blocks", r"temporal_blocks\..*", 476),
        ("norms", r"spatial_blocks\.\d+\.attn\.[qk]_norm\.weight", 56),
        ("fps", r"fps_embedder\..*", 4),
        ("rope", r"rope\.freqs", 1),
    ]
    for kind, pattern, count in kinds:
        assert sum(bool(re.fullmatch(pattern, name)) for name in report.initialised) == count, kind
    lines = report.lines()
    for line in ("436 loaded", "537 initialised", "  476 temporal_blocks.*", "  fps_embedder.mlp.0.weight"):
        assert line in lines


def test_the_values_arrive_where_they_belong(sigma: dict[str, Tensor]) -> None:
    state, report = convert_pixart(sigma, TINY, seed=5)
    model = STDiT3(TINY, seed=5)
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state, strict=True)
    assert torch.equal(state["x_embedder.proj.weight"][:, :, 0], sigma["x_embedder.proj.weight"].float())
    for name in ("attn.qkv.weight", "cross_attn.kv_linear.bias", "mlp.fc2.weight", "scale_shift_table"):
        assert torch.equal(state[f"spatial_blocks.1.{name}"], sigma[f"blocks.1.{name}"].float())
    for name in report.initialised:
        assert torch.equal(state[name], fresh[name])
    assert all(value.dtype == torch.float32 for value in state.values())


def test_diffusers_names_give_the_same_weights(sigma: dict[str, Tensor]) -> None:
    state, _ = convert_pixart(sigma, TINY)
    other, report = convert_pixart(in_diffusers_names(sigma), TINY)
    null = "y_embedder.y_embedding"
    assert null in report.initialised
    for name in state:
        assert torch.equal(state[name], other[name]) or name == null
    assert (
        "joined from attn1.to_q, attn1.to_k, attn1.to_v"
        in report.reshaped["spatial_blocks.0.attn.qkv.weight"]
    )


def test_alphas_120_tokens_are_filled_up_and_its_extra_embedders_left() -> None:
    source = pixart(TINY, half, tokens=4)
    source |= {"csize_embedder.mlp.0.weight": half((16, 256)), "ar_embedder.mlp.0.weight": half((16, 256))}
    state, report = convert_pixart(source, TINY)
    null = state["y_embedder.y_embedding"]
    assert torch.equal(null[:4], source["y_embedder.y_embedding"].float())
    assert bool((null[4:] == null[3]).all())
    assert report.reshaped["y_embedder.y_embedding"] == "4 -> 10 tokens, last row repeated"
    assert report.unused == ("ar_embedder.mlp.0.weight", "csize_embedder.mlp.0.weight", "pos_embed")
    assert "spatial_blocks.1.mlp.fc1.weight" in report.loaded
    _, report = convert_pixart(pixart(TINY, half, tokens=14), TINY)
    assert report.reshaped["y_embedder.y_embedding"] == "14 -> 10 tokens, cut off"


def test_a_pixart_file_that_does_not_fit_is_refused_by_name(sigma: dict[str, Tensor]) -> None:
    with pytest.raises(CheckpointError, match=r"unexpected spatial_blocks.0.attn.sr"):
        convert_pixart(sigma | {"blocks.0.attn.sr.weight": half((3,))}, TINY)
    _, report = convert_pixart(sigma | {"odd": half((3,))}, TINY, allow=["odd"])
    assert report.allowed == ("odd",)
    # PixArt's own norm of queries is over the whole width and must not pass for ours.
    with pytest.raises(CheckpointError, match=r"unexpected spatial_blocks.0.attn.q_norm.weight"):
        convert_pixart(sigma | {"blocks.0.attn.q_norm.weight": half((12,))}, TINY)
    without = {name: value for name, value in sigma.items() if name != "blocks.1.mlp.fc1.bias"}
    with pytest.raises(
        CheckpointError, match=r"misses spatial_blocks.1.mlp.fc1.bias; is it a PixArt model of depth 2"
    ):
        convert_pixart(without, TINY)
    with pytest.raises(
        CheckpointError, match=r"x_embedder.proj.weight has shape \[48, 4, 2, 2\]; this model needs \[96, "
    ):
        convert_pixart(sigma, TINY.model_copy(update={"hidden_size": 96}))
    with pytest.raises(CheckpointError, match="holds no state dict"):
        convert_pixart({"state_dict": 3}, TINY)
    with pytest.raises(CheckpointError, match="epoch is a int"):
        convert_pixart({"epoch": 3}, TINY)
    piece = in_diffusers_names(sigma)
    del piece["transformer_blocks.0.attn1.to_k.weight"]
    with pytest.raises(CheckpointError, match=r"attn.qkv.weight needs .*attn1.to_k is missing"):
        convert_pixart(piece, TINY)


@pytest.fixture(scope="module")
def model_state() -> dict[str, Tensor]:
    state = STDiT3(TINY, seed=1).state_dict()
    return {name: value.bfloat16() if "mlp" in name else value for name, value in state.items()}


@pytest.mark.parametrize("shard_bytes", [None, 1, 60_000])
def test_weights_go_out_and_come_back_bit_for_bit(
    tmp_path: Path, model_state: dict[str, Tensor], shard_bytes: int | None
) -> None:
    folder = tmp_path / "weights"
    weights.write_open_sora(model_state, TINY, folder, shard_bytes=shard_bytes)
    assert weights.read_config(folder) == TINY
    back = weights.read_open_sora(folder)
    assert list(back) == list(state_shapes(TINY))
    for name, value in model_state.items():
        assert back[name].dtype == value.dtype
        assert torch.equal(back[name], value)
    shards = sorted(folder.glob("*.safetensors"))
    if shard_bytes is None:
        assert [shard.name for shard in shards] == ["model.safetensors"]
    else:
        assert len(shards) == len(model_state) if shard_bytes == 1 else 1 < len(shards) < len(model_state)
        assert all(len(load_file(shard)) == 1 or shard.stat().st_size < 2 * 60_000 for shard in shards)
        assert shards[-1].name == f"model-{len(shards):05d}-of-{len(shards):05d}.safetensors"
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        assert set(index["weight_map"]) == set(model_state)
    other = tmp_path / "again"
    weights.write_open_sora(model_state, TINY, other, shard_bytes=shard_bytes)
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
    state = weights.read_open_sora(inner.parent, TINY)
    assert torch.equal(state["t_block.1.weight"], model_state["t_block.1.weight"].bfloat16())

    torch.save(dict(model_state), tmp_path / "ema.pt")
    assert torch.equal(
        weights.read_open_sora(tmp_path / "ema.pt", TINY)["rope.freqs"], model_state["rope.freqs"]
    )

    hub = tmp_path / "hub"
    hub.mkdir()
    save_file(model_state, hub / "model.safetensors")
    fields = TINY.model_dump(mode="json", exclude={"reproduce"})
    fields |= {"model_type": "STDiT3", "transformers_version": "4.36.2", "input_size": [None, None, None]}
    (hub / "config.json").write_text(json.dumps(fields))
    assert weights.read_config(hub / "model.safetensors") == TINY
    assert len(weights.read_open_sora(hub)) == len(model_state)


def test_every_file_that_does_not_fit_is_named(tmp_path: Path, model_state: dict[str, Tensor]) -> None:
    def refused(state: dict[str, Tensor], message: str, config: STDiT3Config = TINY) -> None:
        path = tmp_path / "model.safetensors"
        save_file(state, path)
        with pytest.raises(CheckpointError, match=message):
            weights.read_open_sora(path, config)

    renamed = {name.replace("final_layer", "last_layer"): value for name, value in model_state.items()}
    refused(renamed, "misses final_layer.linear.bias and 2 more")
    refused(model_state | {"extra": torch.zeros(1)}, "has the unexpected extra; it is not this STDiT3")
    refused(
        model_state,
        r"rope.freqs is \[6\]; this model needs \[12\]",
        TINY.model_copy(update={"hidden_size": 96}),
    )
    refused(model_state | {"rope.freqs": model_state["rope.freqs"] * 1.1}, "rope.freqs are not 10000")

    with pytest.raises(InputError, match="there is no such file"):
        weights.read_open_sora(tmp_path / "none.safetensors", TINY)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match=r"holds no weights; looked for model.safetensors.index.json"):
        weights.read_open_sora(empty, TINY)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes((tmp_path / "model.safetensors").read_bytes()[:2000])
    with pytest.raises(CheckpointError, match=r"broken.safetensors: cannot be read as weights"):
        weights.read_open_sora(broken, TINY)
    code = tmp_path / "code.pth"
    torch.save({"a": Path("x")}, code)
    with pytest.raises(CheckpointError, match=r"code.pth: cannot be read as weights"):
        weights.read_open_sora(code, TINY)


def test_shards_and_their_index_must_agree(tmp_path: Path, model_state: dict[str, Tensor]) -> None:
    folder = tmp_path / "weights"
    weights.write_open_sora(model_state, TINY, folder, shard_bytes=60_000)
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    first = folder / min(listed["weight_map"].values())
    whole = load_file(first)
    dropped = min(whole)
    save_file({name: value for name, value in whole.items() if name != dropped}, first)
    with pytest.raises(
        CheckpointError, match=f"does not hold what its index lists, see {re.escape(dropped)}"
    ):
        weights.read_open_sora(folder)
    first.unlink()
    with pytest.raises(InputError, match=f"{first.name}: there is no such file"):
        weights.read_open_sora(folder)
    listed["weight_map"][dropped] = "../elsewhere.safetensors"
    index.write_text(json.dumps(listed))
    with pytest.raises(CheckpointError, match=r"elsewhere.safetensors, which is not beside it"):
        weights.read_open_sora(folder)
    index.write_text("{}")
    with pytest.raises(CheckpointError, match="is not an index of shards"):
        weights.read_open_sora(folder)


def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path, model_state: dict[str, Tensor]) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(InputError, match="is there already"):
        weights.write_open_sora(model_state, TINY, taken)
    stray = tmp_path / ".weights.partial"
    stray.mkdir()
    (stray / "half").write_text("")
    weights.write_open_sora(model_state, TINY, tmp_path / "weights")
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    assert not stray.exists()
    with pytest.raises(StorageError, match="cannot be written"):
        weights.write_open_sora(model_state, TINY, tmp_path / "weights" / "config.json" / "below")


def test_a_configuration_that_is_nobodys_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_sise": 3}')
    with pytest.raises(CheckpointError, match=r"not an STDiT3 configuration .hidden_sise"):
        weights.read_config(tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(CheckpointError, match="not an STDiT3 configuration"):
        weights.read_config(tmp_path)


def test_the_command_prints_and_writes(
    tmp_path: Path, model_state: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    weights.write_open_sora(model_state, TINY, source)
    assert weights.main(["opensora", str(source), str(copy), "--shard-gb", "0.0001"]) == 0
    assert "depth 2, width 48, 4 heads" in capsys.readouterr().out
    assert weights.main(["show", str(copy)]) == 0
    assert f"{len(model_state)} tensors" in capsys.readouterr().out
    assert weights.main(["opensora", str(source), str(copy)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert weights.main(["pixart", str(source), str(tmp_path / "new")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "unexpected fps_embedder.mlp.0.bias" in error
    with pytest.raises(SystemExit, match="2"):
        weights.main(["show", str(copy), "folder"])


def test_a_runs_average_or_its_weights_go_out_as_open_sora_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(smoke(make_shards(tmp_path / "shards"), run, "stages.0.steps=2", "sample=null"))

    assert weights.main(["export", str(run), str(tmp_path / "average")]) == 0
    assert weights.main(["export", str(run), str(tmp_path / "raw"), "--raw", "--json"]) == 0

    answer = json.loads(capsys.readouterr().out.partition("average\n")[2])
    assert answer["source"] == str(run / "step-00000002" / "model")
    held = checkpoint.load(run).parts
    for part, folder in (("ema", "average"), ("model", "raw")):
        written = weights.read_open_sora(tmp_path / folder)
        assert {name: value.dtype for name, value in written.items()} == {
            name: torch.float32 for name in held[part]
        }
        assert all(torch.equal(written[name], value) for name, value in held[part].items())
    assert not torch.equal(written["x_embedder.proj.weight"], held["ema"]["x_embedder.proj.weight"])

    there = str(run / "step-00000002")
    assert weights.main(["export", there, str(tmp_path / "small"), "--dtype", "bfloat16"]) == 0
    assert weights.main(["show", str(tmp_path / "small"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out.partition("small\n")[2])
    assert (shown["dtypes"], shown["config"]["hidden_size"]) == (["bfloat16"], 32)
    # And in again: a run begins with the exported weights.
    origin = Origin(ckpt_path=tmp_path / "average")
    train(smoke(tmp_path / "shards", tmp_path / "next", "stages.0.steps=1", "sample=null"), origin)

    assert weights.main(["export", str(tmp_path / "shards"), str(tmp_path / "no")]) == 1
    assert "neither a checkpoint" in capsys.readouterr().err


def test_a_pixart_file_given_as_open_sora_weights_is_told_the_way(
    tmp_path: Path, sigma: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    few = {name: value for name, value in sigma.items() if value.numel() < 10_000 and not value.is_meta}
    for number, content in enumerate((few, {"state_dict": few})):
        path = tmp_path / f"PixArt-{number}.pth"
        torch.save(content, path)

        assert weights.main(["opensora", str(path), str(tmp_path / "out")]) == 1
        assert f"python -m trainer.weights pixart {path}" in capsys.readouterr().err


def test_the_report_of_a_conversion_is_plain_values_too(sigma: dict[str, Tensor]) -> None:
    state, report = convert_pixart(sigma, TINY)

    plain = json.loads(json.dumps(report.as_json()))
    assert sorted(plain["loaded"] + plain["initialised"]) == sorted(state)
    assert plain["unused"] == ["pos_embed"]
    assert plain["reshaped"]["x_embedder.proj.weight"].endswith("one frame deep")
