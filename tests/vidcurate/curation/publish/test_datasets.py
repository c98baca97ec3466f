"""Shards in Hugging Face datasets: loaded by its own code, streaming and not, with equal values."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.shard_runs import build, write_table
from vidcurate.cli.main import app
from vidcurate.curation.demo_data.write import write_demo_data
from vidcurate.curation.filter.spec import FilterSpec
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.curation.probe.stage import ProbeSpec, run_probe
from vidcurate.curation.publish.readme import run_readme
from vidcurate.curation.report.card import CardSpec
from vidcurate.recipe.recipe import parse
from vidcurate.shards import index
from vidcurate.shards.build import run_build_shards
from vidcurate.shards.layout import ShardSpec
from vidcurate.shards.read_clip import read_clip_bytes, read_clip_facts

HASHES = [2**64 - 1, 2**63, 5, 0, 7]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """Return a folder with shards of nine clips, the first seven of which lack two columns' values."""
    folder = tmp_path_factory.mktemp("published")
    (folder / "videos").mkdir()
    rows: list[dict[str, Any]] = []
    for number in range(9):
        name = f"clip{number}.{'mkv' if number % 3 == 1 else 'mp4'}"
        source = make_video(name, num_frames=4 + number)
        (folder / "videos" / name).write_bytes(source.read_bytes())
        rows.append(
            {
                "clip_id": f"clip{number}", "source_dataset": "made", "video_path": name,
                "caption": f"a square, take {number} – ünï", "width": 96, "height": 64, "fps": 24.0,
                "num_frames": 4 + number, "duration_seconds": (4 + number) / 24, "codec": "h264",
                "container": "matroska" if number % 3 == 1 else "mov", "noun_count": number,
                "perceptual_hashes": HASHES if number > 6 else None, "cut_seconds": [],
                "is_audio_silent": None if number < 7 else True, "level": 1 + number % 2, "fold": "train",
                "is_kept": True, "probe_status": "ok", "ingest_problem": None,
                "file_size_bytes": source.stat().st_size,
            }
        )  # fmt: skip
    write_table(folder / "run", rows)
    build(folder, ShardSpec(max_clips=3))
    run_readme(folder / "run", folder / "shards", CardSpec(name="Squares", licences={"made": "CC-BY-4.0"}))
    return folder


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("config", "count"), [("default", 9), ("level2", 4)])
def test_datasets_reads_every_sample_with_equal_values(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streaming: bool, config: str, count: int
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    loaded = datasets.load_dataset(
        str(published / "shards"), config, split="train", streaming=streaming, cache_dir=str(tmp_path)
    ).cast_column("mp4", datasets.Video(decode=False))

    opened = index.read_index(published / "shards")
    seen = set()
    for sample in loaded:
        row = index.find_clip(opened, sample["json"]["clip_id"])
        assert sample["json"] == read_clip_facts(opened, row)
        assert sample["mp4"]["bytes"] == read_clip_bytes(opened, row)
        assert sample["txt"] == opened.word("caption", row)
        seen.add(sample["json"]["clip_id"])
    assert len(seen) == count


def read_all(shards: Path, cache: Path, *, streaming: bool) -> list[str]:
    import datasets

    splits = datasets.load_dataset(str(shards), streaming=streaming, cache_dir=str(cache))
    return sorted(
        sample["json"]["clip_id"]
        for part in splits.values()
        for sample in part.cast_column("mp4", datasets.Video(decode=False))
    )


@pytest.mark.parametrize("source", ["demo", "real"])
def test_the_demos_shards_and_those_of_the_real_clips_load(
    tmp_path: Path, source: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have clips that MP4 does not carry (VP8, FFV1 …), so the set is transcoded."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if source == "demo":
        write_demo_data(tmp_path / "data", clips=16)
        videos = tmp_path / "data" / "videos"
        metadata = tmp_path / "data" / "captions.csv"
    else:
        videos = tmp_path / "clips"
        videos.mkdir()
        for path in sorted((request.getfixturevalue("shared") / "data" / "clips").iterdir()):
            if path.stat().st_size < 250_000:
                (videos / path.name).write_bytes(path.read_bytes())
                (videos / f"{path.stem}.txt").write_text(f"the clip {path.stem}")
        metadata = videos
    run, shards = tmp_path / "run", tmp_path / "shards"
    run_ingest(run, IngestSpec(metadata=metadata, videos=videos))
    run_probe(run, ProbeSpec(videos=videos, level="full"))
    run_filter(run, FilterSpec())
    spec = parse("{mode: proxy, transcode: {short_side_px: 64}}", ShardSpec)
    written = run_build_shards(run, spec, videos=videos, out=shards).rows_written
    run_readme(run, shards, CardSpec())

    whole = read_all(shards, tmp_path / "cache", streaming=False)

    assert len(whole) == written > 5
    assert whole == read_all(shards, tmp_path / "cache", streaming=True)
    assert whole == sorted(index.read_index(shards).words("clip_id").to_pylist())


def test_the_first_samples_alone_would_not_have_been_enough(published: Path) -> None:
    """Without the README's features, five samples without a value decide the type of a column."""
    opened = index.read_index(published / "shards")
    facts = [read_clip_facts(opened, row) for row in range(len(opened))]
    assert len({tuple(one) for one in facts}) == 1
    assert {one["is_audio_silent"] for one in facts} == {None, True}
    assert [one["perceptual_hashes"] for one in facts if one["clip_id"] == "clip8"] == [
        [f"{value:016x}" for value in HASHES]
    ]
    assert set(opened.words("video_extension").to_pylist()) == {"mp4"}
    assert {opened.word("rendition", row) for row in range(len(opened))} == {"copy", "remux"}


def test_the_front_matter_says_licence_size_and_levels(published: Path) -> None:
    import yaml

    front = yaml.safe_load((published / "shards" / "README.md").read_text().split("---\n")[1])
    assert (front["pretty_name"], front["license"]) == ("Squares", "cc-by-4.0")
    assert front["size_categories"] == ["n<1K"]
    assert [one["config_name"] for one in front["configs"]] == ["default", "level1", "level2"]
    json.dumps(front)


def test_shards_of_several_extensions_have_no_features_and_the_build_says_who_cannot_read_them(
    tmp_path: Path, published: Path
) -> None:
    (tmp_path / "videos").symlink_to(published / "videos")
    (tmp_path / "run").symlink_to(published / "run")
    answer = CliRunner().invoke(
        app,
        ["build-shards", f"{tmp_path}/run", "--videos", f"{tmp_path}/videos", "--out", f"{tmp_path}/shards",
         "--set", "mode=copy"],
    )  # fmt: skip
    assert answer.exit_code == 0, answer.output
    assert "3 .mkv, 6 .mp4: Hugging Face datasets reads shards of one extension only." in answer.stdout
    readme = run_readme(tmp_path / "run", tmp_path / "shards", CardSpec())
    assert "dataset_info" not in readme.read_text()
