"""A model as it is built: the published names, shapes and counts, how parameters begin, and what it costs."""

import math

import pytest
import torch
from pydantic import ValidationError
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.trainer.model.test_stdit import TINY, filled, inputs
from trainer.model.flops import forward_flops
from trainer.model.stdit import GIANT_3B_2, XL_2, STDiT3, STDiT3Config, initialise


def test_parameters_are_counted_as_published() -> None:
    with torch.device("meta"):
        for config, count in ((XL_2, 1_207_643_972), (GIANT_3B_2, 3_182_211_572)):
            model = STDiT3(config)
            assert sum(parameter.numel() for parameter in model.parameters()) == count
            assert len(model.state_dict()) == 973
            model = STDiT3(config.model_copy(update={"freeze_y_embedder": True}))
            frozen = count - {1152: 6_048_000, 1872: 11_175_840}[config.hidden_size] - 36
            assert sum(p.numel() for p in model.parameters() if p.requires_grad) == frozen


def test_the_state_dict_has_the_published_names_and_shapes() -> None:
    with torch.device("meta"):
        state = STDiT3(XL_2).state_dict()
    d = 1152
    block = {
        "scale_shift_table": (6, d),
        "attn.qkv.weight": (3 * d, d),
        "attn.qkv.bias": (3 * d,),
        "attn.q_norm.weight": (72,),
        "attn.k_norm.weight": (72,),
        "cross_attn.kv_linear.weight": (2 * d, d),
        "cross_attn.kv_linear.bias": (2 * d,),
        "mlp.fc1.weight": (4 * d, d),
        "mlp.fc1.bias": (4 * d,),
        "mlp.fc2.weight": (d, 4 * d),
        "mlp.fc2.bias": (d,),
    }
    for name in ("attn.proj", "cross_attn.q_linear", "cross_attn.proj"):
        block |= {f"{name}.weight": (d, d), f"{name}.bias": (d,)}
    expected = {
        "x_embedder.proj.weight": (d, 4, 1, 2, 2),
        "x_embedder.proj.bias": (d,),
        "t_block.1.weight": (6 * d, d),
        "t_block.1.bias": (6 * d,),
        "y_embedder.y_embedding": (300, 4096),
        "y_embedder.y_proj.fc1.weight": (d, 4096),
        "y_embedder.y_proj.fc1.bias": (d,),
        "y_embedder.y_proj.fc2.weight": (d, d),
        "y_embedder.y_proj.fc2.bias": (d,),
        "rope.freqs": (36,),
        "final_layer.scale_shift_table": (2, d),
        "final_layer.linear.weight": (32, d),
        "final_layer.linear.bias": (32,),
    }
    for name in ("t_embedder", "fps_embedder"):
        expected |= {f"{name}.mlp.0.weight": (d, 256), f"{name}.mlp.0.bias": (d,)}
        expected |= {f"{name}.mlp.2.weight": (d, d), f"{name}.mlp.2.bias": (d,)}
    for kind in ("spatial", "temporal"):
        for number in range(28):
            expected |= {f"{kind}_blocks.{number}.{name}": shape for name, shape in block.items()}
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == expected


def test_a_model_begins_as_published_whatever_it_is_built_on() -> None:
    config = TINY.model_copy(update={"hidden_size": 128, "caption_channels": 256})
    model = STDiT3(config, seed=3)
    state = model.state_dict()
    for name, value in state.items():
        if name.endswith(".bias") and not name.startswith("x_embedder"):
            assert not value.any(), name
    for block in model.temporal_blocks:
        for layer in (block.attn.proj, block.cross_attn.proj, block.mlp.fc2):
            assert not layer.weight.any()
    assert not state["fps_embedder.mlp.2.weight"].any()
    assert float(state["fps_embedder.mlp.0.weight"].std()) == pytest.approx(0.02, rel=0.05)
    qkv = state["spatial_blocks.1.attn.qkv.weight"]
    assert float(qkv.abs().max()) == pytest.approx(math.sqrt(6 / (4 * 128)), rel=0.01)
    assert float(state["y_embedder.y_embedding"].std()) == pytest.approx(1 / 16, rel=0.1)
    assert bool((state["temporal_blocks.0.attn.q_norm.weight"] == 1).all())
    assert bool(state["final_layer.linear.weight"].any())

    with torch.device("meta"):
        late = STDiT3(config)
    late = late.to_empty(device="cpu")
    initialise(late, seed=3)
    for name, value in late.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert not torch.equal(STDiT3(config, seed=4).state_dict()["t_block.1.weight"], state["t_block.1.weight"])


def test_only_what_is_asked_for_is_trained() -> None:
    model = STDiT3(TINY.model_copy(update={"only_train_temporal": True}))
    trained = {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {"temporal_blocks"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 30}, "multiple of 4"),
        ({"hidden_size": 32, "num_heads": 5}, "even width in each of num_heads 5"),
        ({"reproduce": ["fp8"]}, "bf16_timesteps"),
        ({"hidden": 32}, "Extra inputs"),
    ],
)
def test_a_configuration_that_cannot_be_built_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        STDiT3Config(**fields)  # type: ignore[arg-type]


def test_the_operations_are_those_of_the_shapes() -> None:
    # Per token, with 300 caption tokens: 240p of 51 frames, and 720p of 102 frames.
    assert forward_flops(XL_2, 15, 30, 53, 300) / 6075 == pytest.approx(2.227e9, rel=2e-3)
    assert forward_flops(XL_2, 30, 90, 160, 300) / 108_000 == pytest.approx(2.627e9, rel=1e-3)
    # Counted by torch on the real matrix products of a small model.
    model, given = filled(), inputs(batch=1, frames=3, rows=4, columns=5, tokens=6)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(**given)
    assert forward_flops(TINY, 3, 4, 5, 6) == counter.get_total_flops()
