"""Scores by neural networks, on random-weight twins of the real ones: a CLIP of two layers with its
tokenizer, LAION's head at its published sizes, a ViT classifier, a net of DBNet's form."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.onnx_net import onnx_net
from tests.tiny_models import WIDTH, head_of
from tests.vidcurate.curation.model_scores.scored_clips import scored
from vidcurate.curation.clip_table import table
from vidcurate.curation.clip_table.schema import AGGREGATES
from vidcurate.curation.dedup.spec import DedupSpec
from vidcurate.curation.dedup.stage import run_dedup
from vidcurate.curation.model_scores.spec import ModelsSpec
from vidcurate.curation.model_scores.stage import run_models
from vidcurate.errors import InputError, RecipeError
from vidcurate.media import decode
from vidcurate.recipe.recipe import parse

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def test_a_clips_match_is_the_cosine_of_its_frames_and_its_caption(
    run: tuple[Path, Path], clip_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelsSpec, "positions", (0.0, 0.5))
    found = scored(run, clip=str(clip_folder))
    assert found["models_status"].to_list() == ["ok", "ok", "ok", "ok", "unreadable", "ok"]
    assert "4.mp4" in found["models_problem"][4]
    assert found["clip_match_mean"].is_null().to_list() == [False, False, True, False, True, False]
    # The same by transformers' own pipeline: its processor, its cosine.
    model = transformers.CLIPModel.from_pretrained(clip_folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(clip_folder)
    frames = decode.read_frames(run[1] / "0.mp4", [0, 6], height=224, width=336)
    processor = transformers.CLIPImageProcessor(
        size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}
    )
    with torch.inference_mode():
        out = model(
            **tokenizer(["a dog runs"], return_tensors="pt"),
            **processor(list(frames), return_tensors="pt"),
        )
        cosines = 100 * (out.image_embeds @ out.text_embeds.T)[:, 0].numpy()
    assert found["clip_match_first"][0] == pytest.approx(cosines[0], abs=1.0)
    assert found["clip_match_mean"][0] == pytest.approx(cosines.mean(), abs=1.0)
    assert found["clip_match_min"][0] <= found["clip_match_median"][0] <= found["clip_match_max"][0]
    names = {"clip_aesthetic_mean", "watermark_mean", "text_area_mean"}
    assert not names & set(found.columns)  # what is not asked for has no column


def test_the_aesthetic_head_has_the_published_form(
    run: tuple[Path, Path], clip_folder: Path, head: Path
) -> None:
    from vidcurate.curation.model_scores.aesthetic import SIZES, AestheticHead

    published = run[0].parent / "sac+logos+ava1-l14-linearMSE.pth"
    torch.save(head_of(SIZES), published)
    loaded = AestheticHead(published, 768)
    embeddings = np.random.default_rng(0).normal(size=(5, 768)).astype(np.float32)
    tensors = head_of(SIZES)
    layers = torch.nn.Sequential(
        torch.nn.Linear(768, 1024), torch.nn.Dropout(0.2), torch.nn.Linear(1024, 128), torch.nn.Dropout(0.2),
        torch.nn.Linear(128, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 16), torch.nn.Linear(16, 1),
    )  # fmt: skip
    layers.load_state_dict({name.removeprefix("layers."): value for name, value in tensors.items()})
    with torch.inference_mode():
        expected = layers.eval()(torch.from_numpy(embeddings))[:, 0].numpy()
    assert loaded.scores(embeddings) == pytest.approx(expected, rel=1e-5)

    found = scored(run, clip=str(clip_folder), aesthetic_head=head)
    assert found["clip_aesthetic_mean"].null_count() == 1
    assert found["clip_aesthetic_mean"].n_unique() == 6  # five clips differ, one has none


def test_a_safetensors_head_is_the_same(run: tuple[Path, Path], clip_folder: Path, head: Path) -> None:
    from safetensors.torch import save_file

    other = run[0].parent / "head.safetensors"
    save_file(torch.load(head, weights_only=True), other)
    one = scored(run, clip=str(clip_folder), aesthetic_head=head)
    two = scored(run, clip=str(clip_folder), aesthetic_head=other)
    assert one["clip_aesthetic_mean"].to_list() == two["clip_aesthetic_mean"].to_list()
    assert one["models_used"][0] != two["models_used"][0]


def test_a_watermark_is_the_label_that_says_so(run: tuple[Path, Path], classifier: Path) -> None:
    found = scored(run, watermark=str(classifier))
    denied = scored(run, watermark=str(classifier), watermark_label="no watermark")
    for one, other in zip(found["watermark_first"], denied["watermark_first"], strict=True):
        assert (one is None and other is None) or one + other == pytest.approx(1, abs=1e-5)
    assert found["watermark_mean"].null_count() == 1


def test_all_models_share_a_decode_and_their_columns_are_whole(
    run: tuple[Path, Path], clip_folder: Path, head: Path, classifier: Path
) -> None:
    settings = {"clip": str(clip_folder), "aesthetic_head": head, "watermark": str(classifier)}
    found = scored(run, **settings, text_detector=onnx_net(run[0].parent / "bright.onnx"), embeddings=True)
    for score in ("clip_match", "clip_aesthetic", "watermark", "text_area"):
        for aggregate in AGGREGATES:
            assert found[f"{score}_{aggregate}"].dtype == pl.Float64
    assert found["text_area_max"].drop_nulls().is_between(0, 1).all()
    used = found["models_used"][0]
    assert all(f"{name}=" in used for name in ("clip", "aesthetic_head", "watermark", "text_detector"))
    alone = scored(run, clip=str(clip_folder))
    assert alone["clip_match_mean"].to_list() == pytest.approx(found["clip_match_mean"].to_list(), abs=3)


def test_embeddings_are_what_dedup_reads(run: tuple[Path, Path], clip_folder: Path) -> None:
    (run[1] / "1.mp4").write_bytes((run[1] / "0.mp4").read_bytes())
    run_models(run[0], ModelsSpec(clip=str(clip_folder), embeddings=True), videos=run[1])
    held = pl.read_parquet(run[0] / "embeddings.parquet")
    assert held["clip_id"].to_list() == ["0", "1", "2", "3", "5"]
    assert np.linalg.norm(np.array(held["embedding"].to_list()), axis=1) == pytest.approx(1, abs=1e-4)
    run_dedup(run[0], DedupSpec(exact=False, perceptual=None, semantic=0.99999))
    found = table.scan(run[0], "dedup").collect()
    copies = found.filter(pl.col("duplicate_of").is_not_null()).select("clip_id", "duplicate_of")
    assert copies.rows() == [("1", "0")]


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({}, "no model is set"),
        ({"clip": "no/such/folder"}, "models.clip is no/such/folder: neither a folder"),
        ({"watermark": "somewhere"}, "models.watermark is somewhere: neither a folder"),
        ({"text_detector": Path("none.onnx")}, r"models\.text_detector is none\.onnx: no such file"),
    ],
)
def test_what_is_not_there_is_named(run: tuple[Path, Path], settings: dict[str, Any], reported: str) -> None:
    with pytest.raises(InputError, match=reported):
        run_models(run[0], ModelsSpec(**settings), videos=run[1])
    assert not table.stage_path(run[0], "models").exists()


def test_files_that_are_no_such_models_are_named(
    run: tuple[Path, Path], clip_folder: Path, classifier: Path, tmp_path: Path
) -> None:
    def refused(reported: str, **settings: Any) -> None:
        with pytest.raises(InputError, match=reported):
            run_models(run[0], ModelsSpec(**settings), videos=run[1])

    bad = tmp_path / "bad.pth"
    bad.write_bytes(b"no")
    refused("aesthetic_head is .*bad.pth: cannot be read", clip=str(clip_folder), aesthetic_head=bad)
    torch.save(head_of((768, 1024, 128, 64, 16, 1)), bad)
    refused("must take 48 inputs", clip=str(clip_folder), aesthetic_head=bad)
    torch.save(head_of((WIDTH, 64, 32, 16, 8, 3)), bad)
    refused("it ends 3 wide", clip=str(clip_folder), aesthetic_head=bad)
    refused("no CLIP that transformers loads .it is a vit", clip=str(classifier))
    refused("no ONNX net that OpenCV runs", text_detector=bad)
    labels = "no label means a watermark. Labels: no watermark, watermark"
    refused(labels, watermark=str(classifier), watermark_label="logo")
    broken = tmp_path / "half"
    broken.mkdir()
    (broken / "config.json").write_bytes((clip_folder / "config.json").read_bytes())
    refused("no CLIP that transformers loads", clip=str(broken))


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("embeddings: true", "embeddings needs clip"),
        ("clips: x", "Did you mean clip"),
    ],
)
def test_settings_that_do_not_fit_are_refused(text: str, reported: str) -> None:
    with pytest.raises(RecipeError, match=reported):
        parse(text, ModelsSpec)


def test_the_package_itself_loads_no_torch(run_python: Callable[[str], str]) -> None:
    heavy = run_python(
        "import sys, vidcurate.curation.model_scores, vidcurate.curation.model_scores.frames\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    assert heavy.strip() == "[]"
