"""Training on the published encoders, small: from recipe to samples, and the memory that they take."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file

from tests.trainer.encoders_for_tests import TINY, WIDTH, make_t5, make_vae, tiny_vae
from tests.trainer.shards_for_tests import make_shards, numbers, smoke
from trainer.data import stages as data_stages
from trainer.data.latents.precompute import encode_ahead, request_of
from trainer.distributed import memory, mesh
from trainer.distributed.activation_checkpointing import Recompute
from trainer.health.checks import device
from trainer.model.encoders.registry import text_encoder, video_encoder
from trainer.model.encoders.space_to_depth import SpaceToDepthSpec
from trainer.model.encoders.t5 import T5, T5Spec
from trainer.model.encoders.vae import VaeSpec, VideoVae
from trainer.model.encoders.word_hash import WordsSpec
from trainer.recipe.recipe import TrainRecipe
from trainer.report.preview import dry_run
from trainer.train import train
from trainer.training.preflight.run_checks import run_checks

CPU = torch.device("cpu")
DTYPES = ("float32", "bfloat16", "float16")
XXL = {"vocab_size": 32128, "d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 24, "num_heads": 64}
XXL |= {"relative_attention_num_buckets": 32}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a VAE, a T5 and shards of clips of 22 frames."""
    folder = tmp_path_factory.mktemp("published")
    make_vae(folder / "vae")
    make_t5(folder / "t5", ["a red square moves right", "a green square moves down", "blue, white, left, up"])
    make_shards(folder / "shards", num_frames=22)
    return folder


def recipe(made: Path, run: Path, *more: str) -> TrainRecipe:
    return smoke(
        made / "shards",
        run,
        "stages.0.data.buckets.table={32px: {17: [1.0, 2]}}",
        "stages.0.steps=2",
        f"video_encoder={{kind: vae, source: {made / 'vae'}, dtype: float32, posterior: sample}}",
        f"text_encoder={{kind: t5, source: {made / 't5'}, caption_channels: {WIDTH}, model_max_length: 40}}",
        "sample={prompts: [a red square], every: 2, steps: 2, num_frames: 17, height: 32, width: 32}",
        *more,
    )


def test_the_tiny_model_trains_and_samples_on_the_vae_and_t5(made: Path, tmp_path: Path) -> None:
    train(recipe(made, tmp_path / "run"))
    train(recipe(made, tmp_path / "again"))
    train(recipe(made, tmp_path / "mean", "video_encoder.posterior=mean", "sample=null"))

    first, again, mean = (
        [line["loss"] for line in numbers(tmp_path / name)] for name in ("run", "again", "mean")
    )
    assert len(first) == 2
    assert again == pytest.approx(first, rel=1e-4)  # draws belong to the clips
    assert mean != pytest.approx(first, rel=1e-4)
    assert (tmp_path / "run" / "samples" / "step-00000002" / "00-0.mp4").stat().st_size > 0


# ── what their weights take ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_predicted_bytes_are_those_that_are_loaded(made: Path, dtype: str) -> None:
    vae = VideoVae(VaeSpec.model_validate({"source": str(made / "vae"), "dtype": dtype}))
    t5 = T5(
        T5Spec.model_validate({"source": str(made / "t5"), "caption_channels": WIDTH, "dtype": dtype}), CPU
    )
    predicted = vae.predicted_bytes(), t5.predicted_bytes()
    assert (vae.device_bytes, t5.device_bytes) == (0, 0)  # asking loads nothing
    vae.vae(CPU)
    t5.loaded()
    assert predicted == (vae.device_bytes, t5.device_bytes)


def test_the_vaes_bytes_are_known_of_each_kind_of_file_that_it_is_loaded_from(
    made: Path, tmp_path: Path
) -> None:
    state = load_file(made / "vae" / "model.safetensors")
    torch.save(state, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    tiny_vae().frames.save_pretrained(tmp_path / "sdxl" / "vae")
    whole = VideoVae(VaeSpec(source=str(made / "vae"))).predicted_bytes()
    assert VideoVae(VaeSpec(source=str(tmp_path))).predicted_bytes() == whole
    apart = VaeSpec(source=str(made / "vae"), spatial_source=str(tmp_path / "sdxl"))
    assert VideoVae(apart).predicted_bytes() == whole


@pytest.mark.parametrize("kind", ["gated-gelu", "relu"])
def test_t5_is_counted_from_its_configuration_alone(tmp_path: Path, kind: str) -> None:
    from transformers import T5Config, T5EncoderModel

    config = XXL | {"feed_forward_proj": kind}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with torch.device("meta"):
        model = T5EncoderModel(T5Config.from_dict(config))
    count = sum(value.numel() for value in model.parameters())
    assert T5(T5Spec(source=str(tmp_path)), CPU).predicted_bytes() == 2 * count
    assert 9.5e9 < 2 * count < 9.6e9 or kind == "relu"


def test_what_has_no_weights_takes_none_and_what_is_not_here_is_unknown(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert video_encoder(SpaceToDepthSpec()).predicted_bytes() == 0
    assert text_encoder(WordsSpec()).predicted_bytes() == 0
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "config.json").write_text('{"d_model": "wide"}')
    for source in (str(tmp_path / "none"), str(tmp_path), "owner/name"):
        assert VideoVae(VaeSpec(source=source)).predicted_bytes() is None
        assert T5(T5Spec(source=source), CPU).predicted_bytes() is None
    # In the hub's cache, as the hub's client lays it out.
    for name in ("vae", "t5"):
        cached = tmp_path / "hub" / f"models--owner--{name}"
        shutil.copytree(made / name, cached / "snapshots" / "1234")
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text("1234")
    here = VideoVae(VaeSpec(source=str(made / "vae"))), T5(T5Spec(source=str(made / "t5")), CPU)
    there = VideoVae(VaeSpec(source="owner/vae")), T5(T5Spec(source="owner/t5"), CPU)
    assert [each.predicted_bytes() for each in there] == [each.predicted_bytes() for each in here]


# ── the forecasts ───────────────────────────────────────────────────────────────────────────────────────────


def reported(given: TrainRecipe) -> tuple[dict[str, Any], str]:
    """Return the first stage's memory by the dry run, and all of it as text."""
    report = dry_run.dry_run(given)
    return report["stages"][0]["memory"], dry_run.to_text(report)


def test_the_forecast_of_a_stage_of_clips_counts_the_encoders(made: Path, tmp_path: Path) -> None:
    given = recipe(made, tmp_path / "run")
    found, words = reported(given)
    video, text = found["video_encoder_bytes"], found["text_encoder_bytes"]
    assert video == video_encoder(given.video_encoder).predicted_bytes() > 0
    assert text == text_encoder(given.text_encoder).predicted_bytes() > 0
    assert f", {(video + text) / 1e9:.3g} GB of the encoders' weights, " in words
    assert dry_run.needed_bytes(found) == found["state_bytes"] + found["least_bytes"] + video + text


def test_an_encoder_that_is_not_here_is_named_and_the_rest_is_counted(made: Path, tmp_path: Path) -> None:
    found, words = reported(recipe(made, tmp_path / "run", f"text_encoder.source={tmp_path / 'none'}"))
    assert found["text_encoder_bytes"] is None
    assert found["video_encoder_bytes"] > 0
    assert "; not counted: the text encoder (text_encoder.source cannot be read here)\n" in words
    needed, without = dry_run.needed_bytes(found), dry_run.unknown_encoders(found)
    fits = device.memory(CPU, needed, without)[-1]
    assert (fits.name, fits.verdict) == ("memory forecast", "ok")
    assert fits.value.endswith("GB needed by the forecast, without the text encoder (text_encoder.source "
                               "cannot be read here)")  # fmt: skip
    assert device.memory(CPU, 1 << 60, without)[-1].verdict == "warn"


def test_the_preflight_counts_the_encoders(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "t5", tmp_path / "t5")
    config = json.loads((tmp_path / "t5" / "config.json").read_text()) | XXL | {"d_ff": 1 << 40}
    (tmp_path / "t5" / "config.json").write_text(json.dumps(config))
    world = mesh.init_process_groups()
    try:
        checks = {}
        for folder in (made, tmp_path):
            given = recipe(made, tmp_path / "run", f"text_encoder.source={folder / 't5'}")
            found = run_checks(given, world, data_stages.open_stages(given), full=False)
            checks[folder] = {check["name"]: check for check in found.nodes[0]["checks"]}
    finally:
        mesh.destroy_process_groups(world)
    assert "memory forecast" not in checks[made]
    said = checks[tmp_path]["memory forecast"]
    three_matrices = 24 * 3 * 4096 * (1 << 40) * 2  # beside which all else is nothing
    assert said["verdict"] == "warn"
    assert said["value"] == f"{three_matrices / 1e9:.3g} GB needed by the forecast"


def test_memory_left_for_micro_batches_is_the_same_before_and_after_samples_load_the_encoders(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a resumed run would compute other chunks than the run that never stopped, and round otherwise."""
    clips = recipe(made, tmp_path / "clips", "stages.0.data.views=1", "sample=null")
    encode_ahead(request_of(clips), tmp_path / "latents")
    asked: list[int] = []
    monkeypatch.setattr(
        Recompute, "choose_plan", lambda self, *given: asked.append(given[2]) or memory.KEEP_ALL
    )
    wanted = {}
    for name, more in (("alone", ("sample=null",)), ("sampled", ("sample.every=1",))):
        video_encoder.cache_clear()
        text_encoder.cache_clear()
        asked.clear()
        latents = f"stages.0.data.latents={tmp_path / 'latents'}"
        given = recipe(
            made, tmp_path / name, "stages.0.data.views=1", "stages.0.data.shards=null", latents, *more
        )
        train(given)
        video, text = video_encoder(given.video_encoder), text_encoder(given.text_encoder)
        wanted[name] = video.device_bytes + text.device_bytes
        assert len(asked) >= 2
        assert set(asked) == {wanted[name]}, name
    assert wanted["sampled"] > wanted["alone"] == 0


def test_a_stage_of_latents_counts_the_encoders_once_something_else_has_loaded_them(
    made: Path, tmp_path: Path
) -> None:
    unsampled = ("stages.0.data.views=1", "sample=null")
    clips = recipe(made, tmp_path / "clips", *unsampled)
    encode_ahead(request_of(clips), tmp_path / "latents")
    ahead = (*unsampled, "stages.0.data.shards=null", f"stages.0.data.latents={tmp_path / 'latents'}")
    sample = "sample={prompts: [a red square], every: 1, steps: 1, num_frames: 17, height: 32, width: 32}"
    for name, more in (("alone", ()), ("sampled", (sample,))):
        video_encoder.cache_clear()
        text_encoder.cache_clear()
        given = recipe(made, tmp_path / name, *ahead, *more)
        found, _ = reported(given)
        train(given)
        video, text = video_encoder(given.video_encoder), text_encoder(given.text_encoder)
        assert found["video_encoder_bytes"] == video.device_bytes, name
        assert found["text_encoder_bytes"] == text.device_bytes, name
        assert bool(video.device_bytes) == bool(text.device_bytes) == bool(more)
    state = dry_run.parameters(clips.model)
    (of_clips,), (of_latents,) = (
        data_stages.open_stages(each) for each in (clips, recipe(made, tmp_path, *ahead))
    )
    both = dry_run.memory_of([of_clips, of_latents], clips, state)
    turned = dry_run.memory_of([of_latents, of_clips], clips, state)
    assert [bool(found["text_encoder_bytes"]) for found in both] == [True, True]
    assert [bool(found["text_encoder_bytes"]) for found in turned] == [False, True]
