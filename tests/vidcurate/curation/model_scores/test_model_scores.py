"""Scores by neural networks, on random-weight twins of the real ones: a CLIP of two layers with its
tokenizer, LAION's head at its published sizes, a ViT classifier, a net of DBNet's form."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.onnx_net import onnx_net
from tests.tiny_models import WIDTH, head_of, make_classifier, make_clip
from vidcurate.curation.clip_table import table
from vidcurate.curation.clip_table.schema import AGGREGATES
from vidcurate.curation.clip_table.table import Provenance
from vidcurate.curation.dedup.spec import DedupSpec
from vidcurate.curation.dedup.stage import run_dedup
from vidcurate.curation.model_scores.spec import ModelsSpec
from vidcurate.curation.model_scores.stage import run_models
from vidcurate.errors import InputError, RecipeError, StageError, VidcurateError
from vidcurate.executor.parts_folder import ExecutorSpec, Part
from vidcurate.media import decode, encode
from vidcurate.recipe.recipe import parse

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clip(tmp_path_factory.mktemp("models") / "tiny-clip")


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("head") / "linearMSE.pth"
    torch.save(head_of((WIDTH, 1024, 128, 64, 16, 1)), path)
    return path


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_classifier(tmp_path_factory.mktemp("watermark") / "tiny-vit")


def pictures(seed: int, num_frames: int = 12, height: int = 64, width: int = 96) -> np.ndarray:
    rng = np.random.default_rng(seed)
    block = np.kron(
        rng.integers(0, 255, (height // 8, width // 8, 3), np.uint8), np.ones((8, 8, 1), np.uint8)
    )
    return np.stack([np.roll(block, 2 * number, 1) for number in range(num_frames)])


CAPTIONS = ["a dog runs", "a red cat", None, "the sea at night", "a broken one", "a portrait"]


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, Path]:
    """Six clips: four whole ones of two sizes, one cut out of a file, one that does not decode."""
    videos = tmp_path / "videos"
    videos.mkdir()
    for number in range(4):
        encode.write_video(videos / f"{number}.mp4", pictures(number), fps=8)
    (videos / "4.mp4").write_bytes(b"no video")
    encode.write_video(videos / "5.mp4", pictures(5, height=96, width=64), fps=8)
    frame = pl.DataFrame(
        {
            "clip_id": [f"{n}" for n in range(6)],
            "video_path": [f"{n}.mp4" for n in range(6)],
            "caption": CAPTIONS,
            "ingest_problem": pl.Series([None] * 6, dtype=pl.String),
            "source_id": [f"{n}" for n in range(6)],
            "file_size_bytes": [1] * 6,
            "start_seconds": [None, None, None, 0.5, None, None],
            "end_seconds": [None, None, None, 1.0, None, None],
            "width": [96] * 5 + [64],
            "height": [64] * 5 + [96],
        }
    )
    folder = tmp_path / "run"
    table.write(frame, table.stage_path(folder, "ingest"), Provenance(stage="ingest", settings={}, inputs={}))
    return folder, videos


def scored(run: tuple[Path, Path], **settings: Any) -> pl.DataFrame:
    run_models(run[0], ModelsSpec(**settings), videos=run[1])
    return table.scan(run[0], "models").collect()


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


def test_the_workers_change_no_byte_and_a_second_run_is_up_to_date(
    run: tuple[Path, Path], clip_folder: Path, head: Path
) -> None:
    spec = ModelsSpec(clip=str(clip_folder), aesthetic_head=head)
    run_models(run[0], spec, videos=run[1], executor=ExecutorSpec(num_workers=2))
    path = table.stage_path(run[0], "models")
    before = path.read_bytes()
    assert run_models(run[0], spec, videos=run[1]).up_to_date
    path.unlink()
    assert not run_models(run[0], spec, videos=run[1]).up_to_date
    assert path.read_bytes() == before
    torch.save(head_of((WIDTH, 1024, 128, 64, 16, 1), seed=5), head.with_name("other.pth"))
    head.with_name("other.pth").replace(head)
    assert not run_models(run[0], spec, videos=run[1]).up_to_date  # other weights under the same name


def test_a_stopped_run_resumes_from_its_chunks(
    run: tuple[Path, Path], clip_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vidcurate.curation.model_scores import scorers
    from vidcurate.curation.model_scores import stage as model_scores_stage

    monkeypatch.setattr(model_scores_stage, "_CLIPS_A_CHUNK", 2)
    spec = ModelsSpec(clip=str(clip_folder), embeddings=True)
    run_models(run[0], spec, videos=run[1])
    path = table.stage_path(run[0], "models")
    whole, vectors = path.read_bytes(), (run[0] / "embeddings.parquet").read_bytes()
    path.unlink()
    seen: list[int] = []
    measure = scorers.columns_of

    def stopping(*given: Any) -> Any:
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(1)
        return measure(*given)

    monkeypatch.setattr(scorers, "columns_of", stopping)
    with pytest.raises(KeyboardInterrupt):
        run_models(run[0], spec, videos=run[1])
    assert not path.exists()
    monkeypatch.setattr(scorers, "columns_of", lambda *given: seen.append(2) or measure(*given))
    run_models(run[0], spec, videos=run[1])
    assert seen == [1, 1, 2]
    assert path.read_bytes() == whole
    assert (run[0] / "embeddings.parquet").read_bytes() == vectors
    assert not list(run[0].glob(".models-*"))


def test_parts_give_the_tables_of_one_run_and_a_missing_one_is_named(
    run: tuple[Path, Path], clip_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vidcurate.curation.model_scores import stage as model_scores_stage

    monkeypatch.setattr(model_scores_stage, "_CLIPS_A_CHUNK", 2)
    spec = ModelsSpec(clip=str(clip_folder), embeddings=True)
    run_models(run[0], spec, videos=run[1])
    files = [table.stage_path(run[0], "models"), run[0] / "embeddings.parquet"]
    whole = [path.read_bytes() for path in files]
    for path in files:
        path.unlink()

    def part(number: int) -> Any:
        return run_models(run[0], spec, videos=run[1], executor=ExecutorSpec(part=Part(number=number, of=3)))

    first, third = part(1), part(3)
    assert (first.clips, third.clips, third.parts_missing) == (2, 2, ("2/3",))
    assert part(3).clips_done_before == 2
    with pytest.raises(StageError, match=r"part 2/3 is missing \(2 of 6 clips\)"):
        run_models(run[0], spec, videos=run[1], executor=ExecutorSpec(merge=True))
    assert not any(path.exists() for path in files)
    part(2)
    run_models(run[0], spec, videos=run[1], executor=ExecutorSpec(merge=True))
    assert [path.read_bytes() for path in files] == whole
    assert not list(run[0].glob(".models-*"))


def test_a_kill_leaves_no_table_and_the_same_command_ends_with_the_same_bytes(
    run: tuple[Path, Path], clip_folder: Path
) -> None:
    # Ended as the first file of its unfinished work is to get its name.
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from vidcurate.curation.model_scores.spec import ModelsSpec\n"
        "from vidcurate.curation.model_scores.stage import run_models\n"
        "def hook(event, words):\n"
        "    if event == 'os.rename' and '.models-' in str(words[0]):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.addaudithook(hook)\n"
        f"spec = ModelsSpec(clip={str(clip_folder)!r})\n"
        f"run_models(Path({str(run[0])!r}), spec, videos=Path({str(run[1])!r}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    path = table.stage_path(run[0], "models")
    assert not path.exists()
    spec = ModelsSpec(clip=str(clip_folder))
    run_models(run[0], spec, videos=run[1])
    first = path.read_bytes()
    path.unlink()
    run_models(run[0], spec, videos=run[1])
    assert path.read_bytes() == first


def test_clips_that_all_fail_for_one_reason_end_the_stage_and_are_scored_once_it_is_mended(
    run: tuple[Path, Path], clip_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vidcurate.curation.model_scores import stage as model_scores_stage

    monkeypatch.setattr(model_scores_stage, "_CLIPS_A_CHUNK", 4)
    folder, videos = run
    clips = pl.concat([table.scan(folder, "ingest").collect().head(3)] * 4).with_columns(
        pl.Series("clip_id", [f"{n}" for n in range(12)])
    )
    origin = Provenance(stage="ingest", settings={}, inputs={})
    table.write(clips, table.stage_path(folder, "ingest"), origin)
    good = {path: path.read_bytes() for path in videos.iterdir()}
    for path in good:
        path.write_bytes(b"no video")

    with pytest.raises(VidcurateError, match=r"^all 12 clips failed for one reason, so no table was written"):
        scored(run, clip=str(clip_folder), embeddings=True)

    assert [path.name for path in folder.iterdir()] == ["ingest.parquet"]
    for path, data in good.items():
        path.write_bytes(data)
    assert scored(run, clip=str(clip_folder))["models_status"].to_list() == ["ok"] * 12


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
