"""Clips encoded ahead train as clips encoded on line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.data.latents.made import (
    CUT_SHORT,
    TRAINED,
    encode,
    from_latents,
    same_weights,
)
from tests.trainer.encoders_for_tests import make_t5, make_vae
from tests.trainer.shards_for_tests import events, make_shards, numbers, smoke
from trainer.data import open_stage
from trainer.data import stages as data_stages
from trainer.data.latents.folder import open_folder
from trainer.data.latents.manifest import MANIFEST_NAME, read_manifest
from trainer.data.latents.read import LatentLoader
from trainer.run_folder.checkpoint import checkpoint
from trainer.train import train
from trainer.training.state import Origin
from vidcurate.errors import InputError, RecipeError, ShardError, StateError


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.soak)])
def test_training_ahead_and_on_line_are_the_same_bit_for_bit(
    hurt_shards: Path, tmp_path: Path, dtype: str
) -> None:
    more = (*TRAINED, f"encoded.latent_dtype={dtype}", f"encoded.text_dtype={dtype}")
    outcome = encode(hurt_shards, tmp_path / "latents", *more)
    assert (outcome.latents, outcome.failed, outcome.is_finished) == (22, 2, True)

    train(smoke(hurt_shards, tmp_path / "line", *more))
    train(smoke(hurt_shards, tmp_path / "ahead", *more, *from_latents(tmp_path / "latents")))

    assert len(numbers(tmp_path / "line")) == 6
    assert numbers(tmp_path / "line") == numbers(tmp_path / "ahead")
    assert same_weights(tmp_path / "line", tmp_path / "ahead")
    replaced = [
        [{**event, "time": 0} for event in events(tmp_path / run, "clip_substituted")]
        for run in ("line", "ahead")
    ]
    assert replaced[0] == replaced[1]
    assert replaced[0][0]["clip_id"] == f"clip-{CUT_SHORT:03d}"


def test_drawn_captions_are_the_same_ahead_and_on_line(shards: Path, tmp_path: Path) -> None:
    drawn = (*TRAINED, "stages.0.steps=3", "stages.0.data.captions={caption: 1, clip_id: 2}")
    encode(shards, tmp_path / "latents", *drawn)

    train(smoke(shards, tmp_path / "line", *drawn))
    train(smoke(shards, tmp_path / "ahead", *drawn, *from_latents(tmp_path / "latents")))
    train(smoke(shards, tmp_path / "turns", *TRAINED, "stages.0.steps=3"))

    assert numbers(tmp_path / "line") == numbers(tmp_path / "ahead") != numbers(tmp_path / "turns")


def test_captions_that_change_with_the_step_are_the_same_ahead_and_on_line(
    shards: Path, tmp_path: Path
) -> None:
    first = (*TRAINED, "stages.0.steps=3", "stages.0.data.captions={caption: 1}")
    later = (*first, "stages.0.data.captions_from={2: {clip_id: 1}}")
    encode(shards, tmp_path / "latents", *later)

    train(smoke(shards, tmp_path / "line", *later))
    train(smoke(shards, tmp_path / "ahead", *later, *from_latents(tmp_path / "latents")))
    train(smoke(shards, tmp_path / "first", *first))

    line, plain = numbers(tmp_path / "line"), numbers(tmp_path / "first")
    assert line == numbers(tmp_path / "ahead")
    assert line[0] == plain[0]
    assert line[1]["loss"] != plain[1]["loss"]


@pytest.mark.parametrize(
    ("captions", "later", "message"),
    [
        ("[caption]", "{2: {clip_id: 1}}", "captions_from changes weights and captions has none"),
        ("{caption: 1}", "{2: {}}", "names with weights at each step"),
        ("{caption: 1}", "{1: {clip_id: 1}}", "greater than or equal to 2"),
        ("{caption: 1}", "{2: {clip_id: 0}}", "greater than 0"),
    ],
)
def test_weights_that_change_nothing_or_to_nothing_are_refused(
    shards: Path, tmp_path: Path, captions: str, later: str, message: str
) -> None:
    given = (f"stages.0.data.captions={captions}", f"stages.0.data.captions_from={later}")
    with pytest.raises(RecipeError, match=message):
        smoke(shards, tmp_path / "run", *given)


def test_what_is_rounded_is_another_training(shards: Path, tmp_path: Path) -> None:
    more = ("stages.0.steps=1", "sample=null")
    for dtype in ("float32", "bfloat16"):
        train(smoke(shards, tmp_path / dtype, *more, f"encoded.latent_dtype={dtype}"))
    (exact,), (rounded,) = numbers(tmp_path / "float32"), numbers(tmp_path / "bfloat16")
    assert exact["loss"] != rounded["loss"]
    assert exact["loss"] == pytest.approx(rounded["loss"], rel=1e-3)


def test_a_resumed_run_on_latents_equals_one_that_never_stopped(
    shards: Path, latents: Path, tmp_path: Path
) -> None:
    train(smoke(shards, tmp_path / "whole", *TRAINED, *from_latents(latents)))
    train(smoke(shards, tmp_path / "half", *TRAINED, *from_latents(latents)))
    half = tmp_path / "half"
    for name in ("step-00000006", "step-00000004"):
        shutil.rmtree(half / name)
    (half / "LATEST").write_text("step-00000002\n")

    train(smoke(shards, half, *TRAINED, *from_latents(latents)))

    assert events(half, "resume")[0]["repeated_steps"] == 4
    assert numbers(half) == numbers(tmp_path / "whole")
    assert same_weights(half, tmp_path / "whole")


def test_a_run_goes_over_from_clips_to_their_latents_and_back(
    shards: Path, latents: Path, tmp_path: Path
) -> None:
    train(smoke(shards, tmp_path / "line", *TRAINED, "stages.0.log_every=1"))
    run = tmp_path / "mixed"
    for steps, source in ((2, ()), (4, from_latents(latents)), (6, ())):
        train(smoke(shards, run, *TRAINED, *source, f"stages.0.steps={steps}", "stages.0.log_every=1"))

    assert [line["changed"].get("stages.0.data.latents") for line in events(run, "resume")] == [
        [None, str(latents)],
        [str(latents), None],
    ]
    assert numbers(run) == numbers(tmp_path / "line")
    assert same_weights(run, tmp_path / "line")


def test_latents_of_other_clips_are_no_way_on(shards: Path, tmp_path: Path) -> None:
    run, other = tmp_path / "run", make_shards(tmp_path / "other", name="other")
    encode(other, tmp_path / "latents")
    train(smoke(shards, run, *TRAINED, "stages.0.steps=2"))

    with pytest.raises(StateError, match=r"none of the 12 old clips .* another data set"):
        train(smoke(shards, run, *TRAINED, *from_latents(tmp_path / "latents")))
    with pytest.raises(
        ShardError, match=r"its latents are of other clips than those of .* \(structure_finger"
    ):
        data_stages.open_stages(smoke(shards, run, *TRAINED, f"stages.0.data.latents={tmp_path / 'latents'}"))
    assert len(numbers(run)) == 2


def test_latents_of_other_weights_are_no_way_on(shards: Path, latents: Path, tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "latents"
    train(smoke(shards, run, *TRAINED, "stages.0.steps=2", *from_latents(latents)))
    shutil.copytree(latents, other)
    manifest = json.loads((other / MANIFEST_NAME).read_text())
    manifest["weights"]["video"] = "0123456789abcdef"
    (other / MANIFEST_NAME).write_text(json.dumps(manifest))

    with pytest.raises(StateError, match=r"made with other weights of the video \(0123456789ab\)"):
        train(smoke(shards, run, *TRAINED, *from_latents(other)))


def test_the_ranks_read_what_one_rank_reads(shards: Path, latents: Path, tmp_path: Path) -> None:
    recipe = smoke(
        shards, tmp_path, *TRAINED, *from_latents(latents), "stages.0.data.micro_batches_per_step=3"
    )
    (stage,) = data_stages.open_stages(recipe)

    def read(size: int) -> list[list[tuple[int, tuple[str, ...], bytes, list[int]]]]:
        steps: list[list[Any]] = [[] for _ in range(4)]
        for rank in range(size):
            with open_stage.open_loader(
                stage, recipe.loader, recipe.video_encoder, rank=rank, world_size=size, on_event=pytest.fail
            ) as loader:
                for step in range(4):
                    for batch in loader.step(step):
                        assert isinstance(loader, LatentLoader)
                        steps[step].append(
                            (
                                batch.position,
                                batch.clip_ids,
                                batch.latents.numpy().tobytes(),
                                batch.start_frame.tolist(),
                            )
                        )
        return [sorted(step) for step in steps]

    alone = read(1)
    assert read(2) == alone
    assert read(3) == alone
    assert [clip for step in alone for _, ids, _, _ in step for clip in ids] == [
        clip
        for step in range(4)
        for clip in data_stages.step_plan(stage, step, recipe.video_encoder, recipe.model.patch_size).clip_ids
    ]


def test_draws_from_a_posterior_and_tokens_of_t5_are_those_of_training_on_line(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "shards", num_clips=6, num_frames=12)
    make_vae(tmp_path / "vae")
    make_t5(
        tmp_path / "t5", ["a red square moves right", "a green square moves down", "blue, white, left, up"]
    )
    more = (
        *TRAINED,
        "stages.0.steps=2",
        "stages.0.data.views=1",
        f"video_encoder={{kind: vae, source: {tmp_path / 'vae'}, dtype: float32, posterior: sample}}",
        f"text_encoder={{kind: t5, source: {tmp_path / 't5'}, caption_channels: 32, model_max_length: 40}}",
        "model={hidden_size: 32, depth: 1, num_heads: 2, input_sq_size: 32}",
        "encoded={latent_dtype: bfloat16, text_dtype: bfloat16}",
    )
    encode(made, tmp_path / "latents", *more)
    manifest = read_manifest(tmp_path / "latents")
    assert manifest is not None
    assert manifest["kept"]["variance"]
    assert len(manifest["weights"]["video"]) == len(manifest["weights"]["text"]) == 64

    train(smoke(made, tmp_path / "line", *more))
    train(smoke(made, tmp_path / "ahead", *more, *from_latents(tmp_path / "latents")))
    mean = ("video_encoder.posterior=mean", *from_latents(tmp_path / "latents"))
    train(smoke(made, tmp_path / "mean", *more, *mean))

    assert numbers(tmp_path / "line") == numbers(tmp_path / "ahead")
    assert same_weights(tmp_path / "line", tmp_path / "ahead")
    assert numbers(tmp_path / "mean")[0]["loss"] != numbers(tmp_path / "line")[0]["loss"]


def test_texts_may_be_kept_as_the_frozen_projection_makes_them(shards: Path, tmp_path: Path) -> None:
    more = (*TRAINED, "stages.0.steps=2", "model.freeze_y_embedder=true", "model.skip_y_embedder=true")
    train(smoke(shards, tmp_path / "first", *more))
    begin = tmp_path / "first" / "step-00000002"
    weights = tmp_path / "weights.safetensors"
    from safetensors.torch import save_file

    save_file(checkpoint.load(begin).parts["model"], weights)
    with pytest.raises(InputError, match=r"Give the weights that training starts from: --ckpt-path PATH"):
        encode(shards, tmp_path / "latents", *more)
    encode(shards, tmp_path / "latents", *more, weights=str(weights))

    origin = Origin(ckpt_path=weights)
    train(smoke(shards, tmp_path / "line", *more), origin)
    train(smoke(shards, tmp_path / "ahead", *more, *from_latents(tmp_path / "latents")), origin)

    assert numbers(tmp_path / "line") == numbers(tmp_path / "ahead")
    assert same_weights(tmp_path / "line", tmp_path / "ahead")
    assert open_folder(tmp_path / "latents").texts.column("channels")[0].as_py() == 32  # the model's width
    with pytest.raises(
        ShardError, match=r"made by a caption projection with the digest .* Start from the weights"
    ):
        train(smoke(shards, tmp_path / "other", *more, *from_latents(tmp_path / "latents"), "seed=7"))
    with pytest.raises(RecipeError, match=r"set model\.freeze_y_embedder=true"):
        smoke(shards, tmp_path / "run", "model.skip_y_embedder=true")
