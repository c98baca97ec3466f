"""The T5 encoder, on a small one with its own tokenizer; and the projection of captions, applied ahead."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.trainer.encoders_for_tests import WIDTH, make_t5
from trainer.model import rng
from trainer.model.encoders.caption_projection import load_projection, projection_of
from trainer.model.encoders.registry import TextEncoder, text_encoder
from trainer.model.encoders.t5 import T5, T5Spec
from trainer.model.stdit import STDiT3, STDiT3Config
from vidcurate.errors import CheckpointError, InputError, StorageError

LENGTH = 24
CPU = torch.device("cpu")
CAPTIONS = (
    "A red circle moves left over a blue field.",
    "",
    "two dogs run on the beach at sunset, waves behind them " * 4,
    "Kamera   fährt langsam nach rechts – ｆｕｌｌ width, 12½ cups",
    "pours coffee",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_t5(tmp_path_factory.mktemp("t5") / "t5-v1_1-tiny", CAPTIONS)


def spec(folder: Path, **changes: object) -> T5Spec:
    settings: dict[str, object] = {
        "source": str(folder),
        "caption_channels": WIDTH,
        "model_max_length": LENGTH,
        "dtype": "float32",
    }
    return T5Spec.model_validate({**settings, **changes})


@pytest.fixture(scope="module")
def encoder(folder: Path) -> T5:
    return T5(spec(folder), CPU)


def test_a_recipe_names_it_and_sizes_are_known_without_weights() -> None:
    encoder: TextEncoder = text_encoder(T5Spec())
    assert (encoder.caption_channels, encoder.model_max_length) == (4096, 300)
    assert text_encoder(T5Spec()) is encoder


def test_t5_xxl_has_the_published_names_and_parameters() -> None:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=32128,
        d_model=4096,
        d_kv=64,
        d_ff=10240,
        num_layers=24,
        num_heads=64,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        model = T5EncoderModel(config)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    expected = {"shared.weight": (32128, 4096), "encoder.embed_tokens.weight": (32128, 4096)}
    for layer in range(24):
        block = f"encoder.block.{layer}.layer"
        for name in "qkvo":
            expected[f"{block}.0.SelfAttention.{name}.weight"] = (4096, 4096)
        expected[f"{block}.1.DenseReluDense.wi_0.weight"] = (10240, 4096)
        expected[f"{block}.1.DenseReluDense.wi_1.weight"] = (10240, 4096)
        expected[f"{block}.1.DenseReluDense.wo.weight"] = (4096, 10240)
        for number in range(2):
            expected[f"{block}.{number}.layer_norm.weight"] = (4096,)
    expected["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (32, 64)
    expected["encoder.final_layer_norm.weight"] = (4096,)
    assert shapes == expected
    assert sum(value.numel() for value in model.parameters()) == 4_762_310_656


def test_tokens_are_those_of_sentencepiece_and_the_end(folder: Path, encoder: T5) -> None:
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    tokenizer, _ = encoder.loaded()
    for caption in CAPTIONS:
        assert tokenizer(caption)["input_ids"] == [*pieces.encode(caption), 1]


def test_features_are_the_models_for_the_tokens_alone(encoder: T5) -> None:
    features, mask = encoder.encode(CAPTIONS)
    assert features.shape == (len(CAPTIONS), 1, LENGTH, WIDTH)
    assert features.dtype == torch.float32
    assert mask.dtype == torch.bool
    assert mask.shape == (len(CAPTIONS), LENGTH)
    tokenizer, model = encoder.loaded()
    for row, caption in enumerate(CAPTIONS):
        ids = tokenizer(caption)["input_ids"]
        if len(ids) > LENGTH:
            ids = [*ids[: LENGTH - 1], 1]
        assert mask[row].tolist() == [True] * len(ids) + [False] * (LENGTH - len(ids))
        with torch.no_grad():
            alone = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        torch.testing.assert_close(features[row, 0, : len(ids)], alone, atol=1e-5, rtol=1e-5)
        assert not features[row, 0, len(ids) :].any()
    assert mask.sum(1).tolist()[1] == 1  # the empty caption has its end token
    assert int(mask.sum(1).max()) == LENGTH  # and the long one is cut


def test_padding_leaks_into_no_feature(encoder: T5) -> None:
    tokenizer, model = encoder.loaded()
    features, mask = encoder.encode(CAPTIONS[-1:])
    count = int(mask.sum())
    ids = tokenizer(CAPTIONS[-1])["input_ids"]
    assert count == len(ids) < LENGTH
    for filler in (0, 5):  # whatever stands where nothing is
        padded = torch.tensor([ids + [filler] * 40])
        real = torch.tensor([[1] * count + [0] * 40])
        with torch.no_grad():
            states = model(input_ids=padded, attention_mask=real).last_hidden_state
        torch.testing.assert_close(states[0, :count], features[0, 0, :count], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_features_are_the_same_whatever_is_computed_at_once(
    folder: Path, encoder: T5, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, mask = encoder.encode(CAPTIONS)
    assert torch.equal(encoder.encode(CAPTIONS)[0], features)
    monkeypatch.setattr(T5Spec, "micro_batch_size", size)
    other, other_mask = T5(spec(folder), CPU).encode(CAPTIONS)
    assert torch.equal(mask, other_mask)
    torch.testing.assert_close(other, features, atol=1e-5, rtol=1e-5)


def test_bfloat16_features_are_near_float32s_under_autocast_too(folder: Path, encoder: T5) -> None:
    features, mask = encoder.encode(CAPTIONS)
    with torch.autocast("cpu", torch.bfloat16):
        half, half_mask = T5(spec(folder, dtype="bfloat16"), CPU).encode(CAPTIONS)
        assert torch.equal(encoder.encode(CAPTIONS)[0], features)
    assert half.dtype == torch.bfloat16
    assert torch.equal(mask, half_mask)
    assert float((half.float() - features).norm() / features.norm()) < 0.1


def test_captions_are_cleaned_where_the_recipe_says_so(folder: Path, encoder: T5) -> None:
    dirty, tidy = "<b>Two DOGS</b> run, see https://example.com/x #1234567", "two dogs run, see"
    cleaned, mask = T5(spec(folder, clean=True), CPU).encode([dirty])
    expected, expected_mask = encoder.encode([tidy])
    assert torch.equal(mask, expected_mask)
    assert torch.equal(cleaned, expected)
    assert not torch.equal(encoder.encode([dirty])[1], expected_mask)


# ── loading ─────────────────────────────────────────────────────────────────────────────────────────────────

WO = "encoder.block.1.layer.1.DenseReluDense.wo.weight"


def altered(folder: Path, to: Path, change: Callable[[dict[str, Tensor]], object]) -> T5:
    shutil.copytree(folder, to)
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, to / "model.safetensors", metadata={"format": "pt"})
    return T5(spec(to), CPU)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.update({WO.replace("wo", "ow"): state.pop(WO)}),
         rf"{WO} is missing and \S+ow\.weight is not a key of the encoder; in all 1 missing, 1 unknown"),
        (lambda state: state.pop(WO), rf"{WO} is missing; in all 1 missing, 0 unknown"),
        (lambda state: state.update(extra=torch.zeros(1)), "extra is not a key of the encoder"),
        (lambda state: state.update({WO: torch.zeros(3, 3)}),
         rf"{WO} is \[3, 3\]; this encoder needs \[32, 64\]"),
    ],
)  # fmt: skip
def test_a_key_that_is_renamed_missing_unknown_or_of_another_shape_is_refused_by_name(
    folder: Path, tmp_path: Path, change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        altered(folder, tmp_path / "t5", change).encode(["a"])


def test_the_decoder_of_a_whole_t5_is_left_out(folder: Path, encoder: T5, tmp_path: Path) -> None:
    decoder = {"decoder.final_layer_norm.weight": torch.zeros(WIDTH), "lm_head.weight": torch.zeros(3, WIDTH)}
    whole = altered(folder, tmp_path / "t5", lambda state: state.update(decoder))
    assert torch.equal(whole.encode(CAPTIONS)[0], encoder.encode(CAPTIONS)[0])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: os.truncate(path / "model.safetensors", 1000), "cannot be loaded as a T5 encoder"),
        (lambda path: (path / "model.safetensors").unlink(), r"no file named model\.safetensors"),
        (lambda path: (path / "config.json").write_text("{"), "is not a valid JSON file"),
        (lambda path: (path / "config.json").unlink(), r"no configuration; config\.json is needed there"),
        (lambda path: (path / "spiece.model").unlink(),
         "holds no tokenizer"),
    ],
)  # fmt: skip
def test_a_folder_with_a_part_damaged_or_missing_is_refused_in_one_line(
    folder: Path, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    shutil.copytree(folder, tmp_path / "t5")
    damage(tmp_path / "t5")
    with pytest.raises((CheckpointError, InputError), match=message) as error:
        T5(spec(tmp_path / "t5"), CPU).encode(["a"])
    assert "\n" not in str(error.value)


def test_another_width_and_a_missing_folder_are_refused_with_what_is_needed(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        InputError, match=r"is 4096 and .* of width 32; set text_encoder\.caption_channels=32"
    ):
        T5(spec(folder, caption_channels=4096), CPU).encode(["a"])
    with pytest.raises(InputError, match=r"text_encoder\.source is \S+/none: no such folder or file"):
        T5(spec(tmp_path / "none"), CPU).encode(["a"])


def test_weights_are_read_in_pytorchs_own_format_in_parts(folder: Path, encoder: T5, tmp_path: Path) -> None:
    # As DeepFloyd/t5-v1_1-xxl has them, whose tied embedding is there once.
    shutil.copytree(folder, tmp_path / "t5", ignore=shutil.ignore_patterns("*.safetensors"))
    state = load_file(folder / "model.safetensors")
    assert ("shared.weight" in state) != ("encoder.embed_tokens.weight" in state)
    places = {}
    for number, names in enumerate((sorted(state)[::2], sorted(state)[1::2]), start=1):
        part = f"pytorch_model-0000{number}-of-00002.bin"
        torch.save({name: state[name] for name in names}, tmp_path / "t5" / part)
        places |= dict.fromkeys(names, part)
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (tmp_path / "t5" / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert torch.equal(T5(spec(tmp_path / "t5"), CPU).encode(CAPTIONS)[0], encoder.encode(CAPTIONS)[0])


# ── the projection ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def model() -> STDiT3:
    config = STDiT3Config(
        hidden_size=48,
        depth=1,
        num_heads=2,
        caption_channels=WIDTH,
        model_max_length=LENGTH,
        freeze_y_embedder=True,
    )
    return STDiT3(config, seed=3)


def test_the_projection_applied_ahead_is_the_models_own(model: STDiT3, encoder: T5, tmp_path: Path) -> None:
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    features, mask = encoder.encode(CAPTIONS)
    ahead = load_projection(str(tmp_path))(features)
    assert ahead.shape == (len(CAPTIONS), 1, LENGTH, 48)
    with torch.no_grad():
        assert torch.equal(ahead, model.y_embedder.y_proj(features))

    # The model gives the same whether it projects captions itself or gets them projected.
    config = model.config.model_copy(update={"skip_y_embedder": True})
    other = STDiT3(config, seed=3)
    other.load_state_dict(model.state_dict())
    count = len(CAPTIONS)
    x = rng.normal(0, "noise", 0, [str(row) for row in range(count)], (4, 2, 4, 4))
    timestep = torch.linspace(10, 990, count)
    sizes = {name: torch.full((count,), 32.0) for name in ("fps", "height", "width")}
    with torch.no_grad():
        out = model(x, timestep, features, mask, **sizes)
        torch.testing.assert_close(other(x, timestep, ahead, mask, **sizes), out, atol=1e-6, rtol=1e-5)


def test_weights_without_the_projection_are_refused_by_name(model: STDiT3) -> None:
    state = model.state_dict()
    with pytest.raises(CheckpointError, match=r"weights\.pt: y_embedder\.y_proj\.fc1\.weight is missing"):
        projection_of({"x": torch.zeros(1)}, "weights.pt")
    del state["y_embedder.y_proj.fc2.bias"]
    with pytest.raises(CheckpointError, match=r"fc2\.bias is missing"):
        projection_of(state, "weights.pt")


def test_without_a_network_the_hubs_name_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(StorageError, match=r"text_encoder\.source .*hf download DeepFloyd/t5-v1_1-xxl"):
        T5(T5Spec(), CPU).encode(["a"])
