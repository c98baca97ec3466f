"""PixArt's weights, by their own names and by those of diffusers, become a model's or are refused by name."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from trainer.model.stdit import XL_2, STDiT3, STDiT3Config
from trainer.run_folder.checkpoint import convert_command
from trainer.run_folder.checkpoint.pixart import convert_pixart, state_shapes
from vidcurate.errors import CheckpointError

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
        CheckpointError, match=r"lacks spatial_blocks.1.mlp.fc1.bias; is it a PixArt model of depth 2"
    ):
        convert_pixart(without, TINY)
    with pytest.raises(
        CheckpointError, match=r"x_embedder.proj.weight has shape \[48, 4, 2, 2\]; this model needs \[96, "
    ):
        convert_pixart(sigma, TINY.model_copy(update={"hidden_size": 96}))
    with pytest.raises(CheckpointError, match="has no state dict"):
        convert_pixart({"state_dict": 3}, TINY)
    with pytest.raises(CheckpointError, match="epoch is a int"):
        convert_pixart({"epoch": 3}, TINY)
    piece = in_diffusers_names(sigma)
    del piece["transformer_blocks.0.attn1.to_k.weight"]
    with pytest.raises(CheckpointError, match=r"attn.qkv.weight needs .*attn1.to_k is missing"):
        convert_pixart(piece, TINY)


def test_a_pixart_file_given_as_open_sora_weights_is_reported_the_way(
    tmp_path: Path, sigma: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    few = {name: value for name, value in sigma.items() if value.numel() < 10_000 and not value.is_meta}
    for number, content in enumerate((few, {"state_dict": few})):
        path = tmp_path / f"PixArt-{number}.pth"
        torch.save(content, path)

        assert convert_command.main(["opensora", str(path), str(tmp_path / "out")]) == 2
        assert f"python -m trainer convert pixart {path}" in capsys.readouterr().err


def test_the_report_of_a_conversion_is_plain_values_too(sigma: dict[str, Tensor]) -> None:
    state, report = convert_pixart(sigma, TINY)

    plain = json.loads(json.dumps(report.to_json()))
    assert sorted(plain["loaded"] + plain["initialised"]) == sorted(state)
    assert plain["unused"] == ["pos_embed"]
    assert plain["reshaped"]["x_embedder.proj.weight"].endswith("one frame deep")
