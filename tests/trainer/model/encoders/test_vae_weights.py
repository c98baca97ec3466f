"""The weights of Open-Sora's VAE: where they may come from, and what of them is refused by name."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.trainer.encoders_for_tests import TINY, make_vae, pixels, tiny_vae
from trainer.model.encoders import weights as encoders_weights
from trainer.model.encoders.vae import VaeSpec, VideoVae
from vidcurate.errors import CheckpointError, InputError, StorageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vae(tmp_path_factory.mktemp("vae") / "OpenSora-VAE-v1.2")


@pytest.fixture(scope="module")
def encoder(folder: Path) -> VideoVae:
    return VideoVae(VaeSpec(source=str(folder), dtype="float32"))


def test_weights_come_back_by_the_original_names_to_the_last_bit(folder: Path, encoder: VideoVae) -> None:
    tiny = tiny_vae()
    loaded = encoder.vae(torch.device("cpu")).state_dict()
    assert list(loaded) == list(tiny.state_dict())
    assert all(torch.equal(value, loaded[name]) for name, value in tiny.state_dict().items())
    assert set(load_file(folder / "model.safetensors")) == set(loaded)


def altered(folder: Path, to: Path, change: Callable[[dict[str, Tensor]], object]) -> VideoVae:
    shutil.copytree(folder, to)
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, to / "model.safetensors")
    return VideoVae(VaeSpec(source=str(to), dtype="float32"))


IN = "temporal_vae.encoder.conv_in.conv.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.update({IN.replace("conv_in", "conv_inn"): state.pop(IN)}),
         r"encoder\.conv_in\.conv\.weight is missing \(there is temporal_vae\.encoder\.conv_inn"),
        (lambda state: state.pop("shift"), r"shift is missing; in all 1 of \d+ missing, 0 unknown"),
        (lambda state: state.update(extra=torch.zeros(1)), r"extra is not a key of this encoder"),
        (lambda state: state.update({IN: torch.zeros(8, 3, 3, 3, 3)}),
         r"conv_in\.conv\.weight is \[8, 3, 3, 3, 3\]; this encoder needs \[8, 4, 3, 3, 3\]"),
    ],
)  # fmt: skip
def test_a_key_that_is_renamed_missing_unknown_or_of_another_shape_is_refused_by_name(
    folder: Path, tmp_path: Path, change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        altered(folder, tmp_path / "vae", change).encode(pixels(1))


def test_a_file_cut_short_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "vae")
    path = tmp_path / "vae" / "model.safetensors"
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read"):
        VideoVae(VaeSpec(source=str(tmp_path / "vae"))).encode(pixels(1))


def test_weights_are_read_from_a_file_from_parts_and_from_pytorchs_own_format(
    folder: Path, encoder: VideoVae, tmp_path: Path
) -> None:
    state = load_file(folder / "model.safetensors")
    names = sorted(state)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for part, keys in parts.items():
        (tmp_path / "parts").mkdir(exist_ok=True)
        save_file({key: state[key] for key in keys}, tmp_path / "parts" / part)
    places = {key: part for part, keys in parts.items() for key in keys}
    (tmp_path / "parts" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (tmp_path / "pickled").mkdir()
    torch.save(state, tmp_path / "pickled" / "pytorch_model.bin")
    for name in ("parts", "pickled"):
        (tmp_path / name / "config.json").write_text(json.dumps(TINY))

    latent = encoder.encode(pixels(3))
    for place in (tmp_path / "parts", tmp_path / "pickled", folder / "model.safetensors"):
        other = VideoVae(VaeSpec(source=str(place), dtype="float32"))
        assert torch.equal(other.encode(pixels(3)), latent)


@pytest.mark.parametrize("old_names", [False, True])
def test_the_frame_vae_may_come_from_a_folder_of_diffusers(
    folder: Path, encoder: VideoVae, tmp_path: Path, old_names: bool
) -> None:
    pipeline = tmp_path / "sdxl"
    tiny_vae().frames.save_pretrained(pipeline / "vae")
    weights = pipeline / "vae" / "diffusion_pytorch_model.safetensors"
    if old_names:  # as diffusers wrote them before 0.18
        renamed = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
        state = load_file(weights)
        for new, old in renamed.items():
            state = {name.replace(new, old): value for name, value in state.items()}
        assert any("proj_attn" in name for name in state)
        save_file(state, weights)
    latent = encoder.encode(pixels(3))
    for change in (lambda state: None, lambda state: [state.pop(n) for n in list(state) if "spatial" in n]):
        alone = altered(folder, tmp_path / str(change), change)
        spec = alone.spec.model_copy(update={"spatial_source": str(pipeline)})
        assert torch.equal(VideoVae(spec).encode(pixels(3)), latent)


def test_a_frame_vae_that_compresses_otherwise_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "vae")
    config = {**TINY, "vae_2d": {"config": {"block_out_channels": [8, 8]}}}
    (tmp_path / "vae" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="has 4 channels and 2 levels; 4 channels and 4 levels are needed"):
        VideoVae(VaeSpec(source=str(tmp_path / "vae"))).encode(pixels(1))


def test_a_source_that_is_not_there_is_named_with_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"video_encoder\.source is \S+/no/vae: no such folder or file"):
        VideoVae(VaeSpec(source=str(tmp_path / "no" / "vae"))).encode(pixels(1))
    with pytest.raises(InputError, match=r"holds no weights; one of model\.safetensors"):
        VideoVae(VaeSpec(source=str(tmp_path))).encode(pixels(1))


def test_without_a_network_a_name_on_the_hub_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(StorageError, match=r"hf download hpcai-tech/OpenSora-VAE-v1\.2") as error:
        encoders_weights.locate(VaeSpec().source, key="video_encoder.source", patterns=["*.json"])
    assert "\n" not in str(error.value)
