"""What people bring in: manifests and folders of other trainers are read without a setting."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from vidcurate.cli.main import app
from vidcurate.curation.clip_table.own_columns import captions_of
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.errors import ColumnError, InputError


def ingest(run: Path, metadata: Path, **settings: Any) -> tuple[Any, list[dict[str, Any]]]:
    summary = run_ingest(run, IngestSpec(metadata=metadata, **settings))
    return summary, pl.read_parquet(run / "ingest.parquet").to_dicts()


def videos(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"video")
    return folder


def jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def both(video: str, caption: str, **more: Any) -> list[dict[str, Any]]:
    return [{video: "a.mp4", caption: "A", **more}, {video: "b.mp4", caption: "B", **more}]


WRAPPED = {"version": 1, "data": [{"path": "a.mp4", "cap": ["A"]}, {"path": "b.mp4", "cap": ["B"]}]}
MANIFESTS: dict[str, tuple[str, str]] = {
    "hf": ("metadata.jsonl", jsonl(both("file_name", "text"))),
    "hf csv": ("metadata.csv", "file_name,text\na.mp4,A\nb.mp4,B\n"),
    "musubi": ("metadata.jsonl", jsonl(both("video_path", "caption"))),
    "ltx": ("dataset.json", json.dumps(both("media_path", "caption"))),
    "ltx csv": ("dataset.csv", "caption,video\nA,a.mp4\nB,b.mp4\n"),
    "videox-fun": ("metadata.json", json.dumps(both("file_path", "text", type="video"))),
    "diffsynth": ("metadata.csv", "video,prompt\na.mp4,A\nb.mp4,B\n"),
    "automodel": ("meta.json", json.dumps(both("file_name", "caption"))),
    "diffusion-pipe": ("captions.json", json.dumps({"a.mp4": ["A"], "b.mp4": ["B"]})),
    "a map to text": ("captions.json", json.dumps({"a.mp4": "A", "b.mp4": "B"})),
    "a map to objects": ("captions.json", json.dumps({"a.mp4": {"text": "A"}, "b.mp4": {"text": "B"}})),
    "an array inside": ("metadata.json", json.dumps(WRAPPED)),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_in_a_folder_of_videos_is_read(tmp_path: Path, name: str) -> None:
    folder = videos(tmp_path / "data", "a.mp4", "b.mp4", "c.mp4")
    file, text = MANIFESTS[name]
    (folder / file).write_text(text)

    summary, rows = ingest(tmp_path / "run", folder)

    assert file in summary.reason
    assert (summary.metadata_rows, summary.rows_kept, summary.problems) == (2, 2, {"extra_file": 1})
    assert [(row["clip_id"], row["caption"]) for row in rows] == [("a", "A"), ("b", "B"), ("c", None)]
    assert ingest(tmp_path / "run", folder)[0].up_to_date
    (folder / file).write_text(text.replace("B", "Z"))
    assert not ingest(tmp_path / "run", folder)[0].up_to_date
    _, rows = ingest(tmp_path / "alone", folder / file, videos=folder)
    assert [row["caption"] for row in rows] == ["A", "Z", None]


def test_fastvideo_lists_captions_and_its_videos_lie_in_a_folder(tmp_path: Path) -> None:
    folder = videos(tmp_path, "videos/a.mp4", "videos/b.mp4")
    facts = {"resolution": {"width": 640, "height": 360}, "fps": 24.0, "duration": 2.0, "num_frames": 48}
    given = [{"path": "a.mp4", "cap": ["one", "two"], **facts}, {"path": "b.mp4", "cap": ["three"], **facts}]
    (folder / "videos2caption.json").write_text(json.dumps(given))

    _, rows = ingest(tmp_path / "run", folder)

    assert [captions_of(row) for row in rows] == [{"1": "one", "2": "two"}, {"caption": "three"}]
    assert {(row["width"], row["height"], row["fps"], row["num_frames"]) for row in rows} == {
        (640, 360, 24, 48)
    }
    assert [row["file_size_bytes"] for row in rows] == [5, 5]


def test_splits_of_a_videofolder_are_one_table_with_typed_columns(tmp_path: Path) -> None:
    folder = videos(tmp_path / "data", "train/a.mp4", "train/sub/b.mp4", "test/a.mp4")
    (folder / "train/metadata.csv").write_text("file_name,text,score\na.mp4,A,1\nsub/b.mp4,B,\n")
    (folder / "test/metadata.csv").write_text("file_name,text,score\na.mp4,C,2.5\n")

    summary, rows = ingest(tmp_path / "run", folder)

    assert (summary.rows_kept, summary.problems) == (3, {})
    assert {row["clip_id"]: (row["caption"], row["score"]) for row in rows} == {
        "train/a": ("A", 1.0),
        "train/sub/b": ("B", None),
        "test/a": ("C", 2.5),
    }


def test_prompts_and_videos_are_paired_by_line_or_refused(tmp_path: Path) -> None:
    folder = videos(tmp_path / "data", "videos/1.mp4", "videos/2.mp4")
    (folder / "prompts.txt").write_text("A cat, asleep\nA dog\n")
    (folder / "videos.txt").write_text("videos/1.mp4\nvideos/2.mp4\n")

    _, rows = ingest(tmp_path / "run", folder)

    assert [(row["video_path"], row["caption"]) for row in rows] == [
        ("videos/1.mp4", "A cat, asleep"),
        ("videos/2.mp4", "A dog"),
    ]
    (folder / "prompts.txt").write_text("A cat, asleep\n")
    with pytest.raises(InputError, match=r"prompts\.txt: has 1 lines and videos\.txt 2"):
        ingest(tmp_path / "run", folder)


def test_a_line_separator_within_a_caption_ends_no_line(tmp_path: Path) -> None:
    text = "A cat\u2028asleep\x0con\x85a mat"
    folder = videos(tmp_path / "pairs", "videos/1.mp4", "videos/2.mp4")
    (folder / "prompts.txt").write_bytes(f"{text}\r\nA dog\n".encode())
    (folder / "videos.txt").write_text("videos/1.mp4\nvideos/2.mp4\n")
    beside = videos(tmp_path / "beside", "1.mp4")
    (beside / "1.txt").write_text(f"{text}\nA dog\n")

    _, pairs = ingest(tmp_path / "run", folder)
    _, (row,) = ingest(tmp_path / "run2", beside)

    assert [one["caption"] for one in pairs] == [text, "A dog"]
    assert [one["text"] for one in row["captions"]] == [text, "A dog"]


def test_cosmos_windows_are_rows_with_their_frames_and_captions(tmp_path: Path) -> None:
    folder = videos(tmp_path / "out", "clips/u1.mp4", "clips/u2.mp4", "clips/u3.mp4")
    metas = folder / "metas" / "v0"
    metas.mkdir(parents=True)
    one = {"start_frame": 0, "end_frame": 47, "qwen_caption": "A", "qwen_lm_enhanced_caption": "A, richly"}
    two = {"start_frame": 48, "end_frame": 95, "qwen_caption": "B"}
    shared = {"source_video": "s.mp4", "framerate_source": 24.0, "aesthetic_score": 5.5}
    motion = {"motion_score": {"global_mean": 0.25, "per_patch_min_256": 0.5}, "valid": True}
    for uuid, windows in (("u1", [one]), ("u2", [one, two]), ("u3", [])):
        place = f"/mnt/out/clips/{uuid}.mp4"
        facts = {"span_uuid": uuid, **shared, **motion, "clip_location": place, "windows": windows}
        (metas / f"{uuid}.json").write_text(json.dumps(facts))

    summary, rows = ingest(tmp_path / "run", folder)

    assert summary.problems == {"empty_caption": 1}
    by_id = {row["clip_id"]: row for row in rows}
    assert list(by_id) == ["u1", "u2_0_47", "u2_48_95", "u3"]
    assert captions_of(by_id["u1"]) == {"qwen": "A", "qwen_lm_enhanced": "A, richly"}
    assert [by_id["u1"][name] for name in ("start_seconds", "end_seconds", "start_frame")] == [None, None, 0]
    assert [by_id["u2_48_95"][name] for name in ("start_seconds", "end_seconds", "caption")] == [
        2.0,
        4.0,
        "B",
    ]
    assert {row["video_path"] for row in rows} == {"clips/u1.mp4", "clips/u2.mp4", "clips/u3.mp4"}
    assert by_id["u3"]["motion_score_global_mean"] == 0.25
    assert (by_id["u3"]["source_id"], by_id["u3"]["valid"]) == ("s.mp4", True)


def test_cosmos_predict_has_a_text_for_each_video(tmp_path: Path) -> None:
    folder = videos(tmp_path / "data", "videos/a.mp4", "videos/b.mp4")
    (folder / "metas").mkdir()
    for name in "ab":
        (folder / f"metas/{name}.txt").write_text(f"caption {name}\n")
    _, rows = ingest(tmp_path / "run", folder)
    assert [(row["video_path"], row["caption"]) for row in rows] == [
        ("videos/a.mp4", "caption a"),
        ("videos/b.mp4", "caption b"),
    ]


def test_data_juicer_gives_each_video_the_text_of_its_chunk(tmp_path: Path) -> None:
    given = [
        {"videos": ["a.mp4"], "text": "<__dj__video> A cat <|__dj__eoc|>", "__dj__stats__": {"x": [1.5]}},
        {"videos": ["b.mp4", "c.mp4"], "text": "<__dj__video> B <|__dj__eoc|> <__dj__video> C <|__dj__eoc|>"},
    ]
    (tmp_path / "m.jsonl").write_text(jsonl(given))
    _, rows = ingest(tmp_path / "run", tmp_path / "m.jsonl")
    assert [(row["clip_id"], row["caption"]) for row in rows] == [("a", "A cat"), ("b", "B"), ("c", "C")]
    assert json.loads(rows[0]["__dj__stats__"]) == {"x": [1.5]}
    (tmp_path / "m.jsonl").write_text(jsonl([{"videos": ["a.mp4", "b.mp4"], "text": "<__dj__video> A"}]))
    with pytest.raises(InputError, match="line 1 has 2 videos and 1 <__dj__video>"):
        ingest(tmp_path / "run", tmp_path / "m.jsonl")


def test_one_object_is_one_clip_and_own_keys_of_json_keep_their_types(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(
        json.dumps({"video": "a.mp4", "caption": "A", "tags": ["x", "y"], "n": 7})
    )
    _, rows = ingest(tmp_path / "run", tmp_path / "m.json")
    assert [(row["clip_id"], row["tags"], row["n"]) for row in rows] == [("a", ["x", "y"], 7)]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "is no JSON"),
        ("3", "neither an array of objects nor a map"),
        ('["a.mp4"]', 'entry 1 is "a.mp4", not an object'),
        ('{"a.mp4": 3}', "'a.mp4' maps to 3, which is no caption"),
        ("[]", "no row; there is nothing"),
    ],
)
def test_json_of_another_kind_is_named(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(InputError, match=match):
        ingest(tmp_path / "run", tmp_path / "m.json")


def test_two_manifests_in_one_folder_are_refused_with_the_command(tmp_path: Path) -> None:
    folder = videos(tmp_path / "data", "a.mp4")
    (folder / "metadata.csv").write_text("file_name,text\na.mp4,A\n")
    (folder / "captions.json").write_text('{"a.mp4": "B"}')
    with pytest.raises(InputError, match=r"vidcurate ingest \S+/metadata\.csv --videos \S+/data"):
        ingest(tmp_path / "run", folder)
    assert ingest(tmp_path / "run", folder, schema_name="folder")[0].schema == "folder"


def test_an_unknown_table_says_the_command_that_reads_it(tmp_path: Path) -> None:
    (tmp_path / "my table.csv").write_text("clip name,words,more words\na.mp4,A,B\n")
    with pytest.raises(InputError) as caught:
        ingest(tmp_path / "run", tmp_path / "my table.csv", videos=videos(tmp_path / "v", "a.mp4"))
    command = f"vidcurate ingest '{tmp_path}/my table.csv' --videos {tmp_path}/v --out RUN"
    assert str(caught.value).endswith(f"{command} --map video=COLUMN --map caption=COLUMN")
    given = {"video": "clip name", "caption": "words", "caption_more": "more words"}
    summary, rows = ingest(tmp_path / "run", tmp_path / "my table.csv", map=given)
    assert captions_of(rows[0]) == {"caption": "A", "more": "B"}
    assert (rows[0]["clip_id"], summary.own_columns) == ("a", ())
    with pytest.raises(ColumnError, match="no column 'wrods'"):
        ingest(tmp_path / "run", tmp_path / "my table.csv", map={"video": "clip name", "caption": "wrods"})


HOSTILE: list[tuple[dict[str, Any], dict[str, str], dict[str, Any]]] = [
    ({"captions": [{"name": "a", "text": "x"}, {"name": "a", "text": "y"}]}, {"a": "x", "a_": "y"}, {}),
    ({"captions": {"short": "s", "dense": ["d", "e"]}}, {"dense_1": "d", "dense_2": "e", "short": "s"}, {}),
    ({"caption": "c", "captions": [1, 2]}, {"caption": "c"}, {"own_captions": [1, 2]}),
    ({"caption": "c", "captions": "more"}, {"caption": "c"}, {"own_captions": "more"}),
    (
        {"text": "t", "short_caption": "s", "caption_model": "m"},
        {"caption": "t", "short": "s"},
        {"caption_model": "m"},
    ),
    (
        {"caption": "c", "caption_name": "x", "big": 2**70},
        {"caption": "c"},
        {"own_caption_name": "x", "big": str(2**70)},
    ),
    ({"caption": "c", "nan": float("nan"), "n": None}, {"caption": "c"}, {}),
]


@pytest.mark.parametrize(("facts", "captions", "own"), HOSTILE)
def test_captions_of_a_json_beside_a_video_lose_nothing(
    tmp_path: Path, facts: dict[str, Any], captions: dict[str, str], own: dict[str, Any]
) -> None:
    folder = videos(tmp_path / "data", "a.mp4")
    (folder / "a.json").write_text(json.dumps(facts))
    _, (row,) = ingest(tmp_path / "run", folder)
    assert captions_of(row) == captions
    assert {name: row[name] for name in own} == own


def test_images_with_captions_are_clips_and_others_are_none(tmp_path: Path) -> None:
    folder = videos(tmp_path / "data", "a.mp4", "a.jpg", "b.png", "c.webp")
    (folder / "a.txt").write_text("A video\nthat moves\n")
    (folder / "b.txt").write_text("A picture")

    summary, rows = ingest(tmp_path / "run", folder)

    assert [(row["video_path"], captions_of(row)) for row in rows] == [
        ("a.mp4", {"1": "A video", "2": "that moves"}),
        ("b.png", {"caption": "A picture"}),
    ]
    assert summary.problems == {}
    _, rows = ingest(tmp_path / "run2", folder, caption_lines=False)
    assert rows[0]["caption"] == "A video\nthat moves"


def test_the_command_takes_a_map_and_refuses_one_written_wrong(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("clip name,words\na.mp4,A\n")
    words = ["ingest", str(tmp_path / "m.csv"), "--out", str(tmp_path / "run"), "--json"]

    shown = CliRunner().invoke(app, words)
    assert "--map video=COLUMN --map caption=COLUMN" in " ".join(str(shown.exception or shown.output).split())
    answer = CliRunner().invoke(app, [*words, "--map", "video=clip name", "--map", "caption=words"])

    assert json.loads(answer.stdout)["rows_kept"] == 1
    for wrong in (["video"], ["=x"], ["video="], ["video=clip name", "video=words"]):
        maps = [word for given in wrong for word in ("--map", given)]
        refused = CliRunner().invoke(app, [*words, *maps])
        assert "write each once, as --map video=COLUMN" in str(refused.exception or refused.output)
