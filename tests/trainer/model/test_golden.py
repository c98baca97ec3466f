"""The published code's own tensors: forward, intermediates, losses, gradients, samplings, bf16, tables.

Skips where the folder of reference tensors is not beside the checkout; test_stdit and test_flow then cover
the same ground with references of their own.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from trainer.model import rectified_flow
from trainer.model.stdit import PUBLISHED_FAULTS, Fault, STDiT3
from trainer.run_folder.checkpoint.convert import read_config

FORWARD = ["plain", "mask", "xmask", "mask_xmask", "xmask_allone", "hires", "oddsize", "image", "cfg"]
TRAINING = ["train_plain", "train_mask", "train_xmask", "train_drop"]


@pytest.fixture(scope="module")
def golden(shared: Path) -> Path:
    return shared / "golden"


@pytest.fixture(scope="module")
def cases(golden: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = load_file(golden / "cases.safetensors")
    return tensors


def arguments(cases: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key.removeprefix(f"{name}."): value for key, value in cases.items() if key.startswith(f"{name}.")}


def build(golden: Path, *faults: Fault) -> STDiT3:
    config = read_config(golden)  # without the published keys that have no effect
    assert config is not None
    model = STDiT3(config.model_copy(update={"reproduce": faults}) if faults else config)
    model.load_state_dict(load_file(golden / "stdit3_tiny.safetensors"), strict=True)
    return model.eval()


@pytest.mark.parametrize("name", FORWARD)
def test_the_forward_pass_is_the_published_one(golden: Path, cases: dict[str, Tensor], name: str) -> None:
    given = arguments(cases, f"fwd_{name}")
    expected = given.pop("out")
    with torch.no_grad():
        out = build(golden)(**given)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, expected, rtol=0, atol=2e-5)


def test_every_intermediate_is_the_published_one(golden: Path, cases: dict[str, Tensor]) -> None:
    model = build(golden)
    given = arguments(cases, "fwd_mask_xmask")
    given.pop("out")
    expected = arguments(cases, "dbg_mask_xmask")
    seen: dict[str, list[Tensor]] = {}

    def record(name: str) -> Any:
        def hook(module: object, inputs: object, output: Tensor) -> None:
            seen.setdefault(name, []).append(output)

        return hook

    for name in {key.removesuffix("_t0").removesuffix("_out") for key in expected}:
        path = name.replace("block_0", "blocks.0").replace("block_1", "blocks.1")
        for part in ("_cross_attn", "_attn"):
            if path.endswith(part):
                path = path.removesuffix(part) + "." + part.removeprefix("_")
                break
        model.get_submodule(path).register_forward_hook(record(name))
    with torch.no_grad():
        model(**given)
    for key, value in expected.items():
        name = key.removesuffix("_t0").removesuffix("_out")
        got = seen[name][1 if key.endswith("_t0") else 0]
        torch.testing.assert_close(got, value, rtol=0, atol=2e-5, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", TRAINING)
def test_losses_and_gradients_are_the_published_ones(
    golden: Path, cases: dict[str, Tensor], name: str
) -> None:
    model = build(golden, "double_modulation", "cut_null_caption").train()
    given = arguments(cases, name)
    conditions: dict[str, Tensor | None] = {
        key: given.get(key) for key in ("y", "mask", "fps", "height", "width", "num_frames")
    }
    if "drop_ids" in given:
        conditions["drop_caption"] = given["drop_ids"].bool()
    x_mask = given.get("x_mask")
    x_t = rectified_flow.noised_input(given["x_start"], given["noise"], given["t"], x_mask)
    torch.testing.assert_close(x_t, given["x_t"], rtol=0, atol=1e-6)

    losses = rectified_flow.training_losses(
        model, given["x_start"], given["noise"], given["t"], x_mask=x_mask, **conditions
    )
    losses.mean().backward()
    expected = json.loads((golden / "train.json").read_text())[name]
    torch.testing.assert_close(losses, torch.tensor(expected["loss"]), rtol=1e-5, atol=0)

    gradients = {
        key: value.grad
        for key, value in model.named_parameters()
        if value.requires_grad and value.grad is not None
    }
    assert set(gradients) == set(expected["grad_norm"])
    for key, norm in expected["grad_norm"].items():
        assert float(gradients[key].norm()) == pytest.approx(norm, rel=1e-4, abs=1e-7), key
    total = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    assert float(total) == pytest.approx(expected["total_grad_norm"], rel=1e-5)
    for key, value in given.items():
        if key.startswith("grad."):
            distance = (gradients[key.removeprefix("grad.")] - value).norm() / value.norm()
            assert float(distance) < 1e-4, key


@pytest.mark.parametrize("name", ["sample_plain", "sample_cond"])
def test_the_sampling_is_the_published_one(golden: Path, cases: dict[str, Tensor], name: str) -> None:
    model = build(golden)
    given = arguments(cases, name)
    inner = rectified_flow.guided(
        model,
        given["y"],
        given["mask"],
        model.y_embedder.y_embedding[None, None],
        scale=7.0,
        cut_null_caption=True,
        conditions={key: given[key] for key in ("fps", "height", "width")},
    )
    path: list[tuple[Tensor, Tensor | None]] = []

    def velocity(x: Tensor, timesteps: Tensor, x_mask: Tensor | None) -> Tensor:
        path.append((x, x_mask))
        return inner(x, timesteps, x_mask)

    ratio = rectified_flow.shift_ratio(given["height"], given["width"], given["num_frames"])
    timesteps = rectified_flow.sampling_timesteps(30, ratio)
    torch.testing.assert_close(timesteps, given["timesteps"], rtol=1e-6, atol=0)
    with torch.no_grad():
        out = rectified_flow.sample(
            velocity, given["z0"], timesteps, edit=given.get("cond_mask"), noise=given.get("renoise")
        )
    torch.testing.assert_close(out, given["out"], rtol=0, atol=2e-5)
    for step, (x, x_mask) in enumerate(path):
        torch.testing.assert_close(x, given["z_traj"][step], rtol=0, atol=2e-5)
        if x_mask is not None:
            assert torch.equal(x_mask, given["x_masks"][step])


def test_bfloat16_stays_within_the_stated_distance(golden: Path, cases: dict[str, Tensor]) -> None:
    stated = json.loads((golden / "noise_floor.json").read_text())["bf16_mask_xmask"]
    given = arguments(cases, "fwd_mask_xmask")
    exact = given.pop("out")
    published = cases["bf16_mask_xmask.out"]
    with torch.no_grad():
        ours = build(golden).to(torch.bfloat16)(**given)
        theirs = build(golden, *PUBLISHED_FAULTS).to(torch.bfloat16)(**given)
    # Without the faults we are eight times nearer to float32 than the published run ...
    assert float((ours - exact).abs().max()) < stated["max_abs_vs_float32"] / 4
    assert float((ours - exact).norm() / exact.norm()) < stated["rel_l2_vs_float32"] / 4
    # ... and with them we are where it was.
    assert float((theirs - published).norm() / published.norm()) < 0.02
    assert float((theirs - exact).norm() / exact.norm()) < 1.1 * stated["rel_l2_vs_float32"]


def _row(row: dict[str, Any]) -> list[Tensor]:
    return [torch.tensor([float(row[key])]) for key in ("height", "width", "num_frames")]


def test_the_timestep_shift_has_the_published_values(golden: Path) -> None:
    table = json.loads((golden / "tables" / "timestep_transform.json").read_text())
    timesteps = torch.tensor(table["t"])

    def shifted(row: dict[str, Any], dtype: torch.dtype = torch.float32) -> Tensor:
        return rectified_flow.shift_timesteps(timesteps, rectified_flow.shift_ratio(*_row(row), dtype=dtype))

    for row in table["rows"]:
        torch.testing.assert_close(shifted(row), torch.tensor(row["out"]), rtol=5e-7, atol=0)
        rounded = shifted(row, torch.bfloat16)
        torch.testing.assert_close(rounded, torch.tensor(row["out_bf16_args"]), rtol=0, atol=0)
    for row in table["odd_num_frames"]:
        if row["num_frames"] > 16:
            torch.testing.assert_close(shifted(row), torch.tensor(row["out"]), rtol=5e-7, atol=0)
        else:  # published: 0, and NaN at 1000
            assert bool((shifted(row)[1:] > 0).all())
            assert bool((shifted(row).diff() > 0).all())


def test_the_sampling_schedules_are_the_published_ones(golden: Path) -> None:
    schedules = json.loads((golden / "tables" / "sampling_schedule.json").read_text())["schedules"]
    assert len(schedules) > 20
    for row in schedules:
        dtype = torch.bfloat16 if row["bf16_info"] else torch.float32
        timesteps = rectified_flow.sampling_timesteps(
            row["num_sampling_steps"], rectified_flow.shift_ratio(*_row(row), dtype=dtype)
        )
        torch.testing.assert_close(timesteps[:, 0], torch.tensor(row["t"]), rtol=5e-7, atol=0)


def test_the_draw_of_timesteps_is_the_published_one(golden: Path) -> None:
    table = json.loads((golden / "tables" / "sampling_schedule.json").read_text())["training_t"]
    torch.manual_seed(table["torch_manual_seed"])
    draws = torch.randn(len(table["sample_t"]))
    drawn = rectified_flow.draw_timesteps(draws) / 1000
    torch.testing.assert_close(drawn, torch.tensor(table["sample_t"]), rtol=1e-5, atol=0)
