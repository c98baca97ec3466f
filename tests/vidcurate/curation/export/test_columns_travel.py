"""Own columns and several captions: from the user's CSV through the run into what trainers read."""

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.vidcurate.curation.export import clip_runs, readers
from tests.vidcurate.curation.export.test_trainers import read_by_own_code
from vidcurate.cli import main as cli
from vidcurate.curation.export.clips import ExportSpec
from vidcurate.curation.export.stage import ExportSummary, run_export
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.curation.probe.stage import ProbeSpec, run_probe
from vidcurate.errors import InputError
from vidcurate.media import encode

FIELDS = [
    "video",
    "caption",
    "short_caption",
    "style_caption",
    "camera make",
    "shots",
    "score_2",
    "ok",
    "caption_names",
    "note",
]
ROWS: list[list[str]] = [
    [
        "a.mp4",
        "a dense caption,\nof two lines",
        "short a",
        "style ☂",
        "Çanon",
        "3",
        "0.25",
        "true",
        "own",
        "x",
    ],
    ["b.mp4", "dense b", "", "style b", "", "-4", "1e3", "false", "", "007"],
    ["c.mp4", "dense c", "short c", "", "日本", "", "", "true", "t", ""],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("columns")
    (folder / "videos").mkdir()
    for number, row in enumerate(ROWS):
        encode.write_video(folder / "videos" / row[0], clip_runs.frames_of(number, 17, 64, 96), fps=16.0)
    with (folder / "captions.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([FIELDS, *ROWS])
    run_ingest(folder / "run", IngestSpec(metadata=folder / "captions.csv", videos=folder / "videos"))
    run_probe(folder / "run", ProbeSpec(videos=folder / "videos"))
    return folder


def exported(folder: Path, out: str, **spec: str) -> ExportSummary:
    names = ["diffusion-pipe", "fastvideo", "hf", "mochi", "simpletuner"]
    return run_export(
        folder / "run", folder / out, names, ExportSpec(model="wan2.1", **spec), videos=folder / "videos"
    )


EVERY = {
    "a": ["a dense caption,\nof two lines", "short a", "style ☂"],
    "b": ["dense b", "style b"],
    "c": ["dense c", "short c"],
}
EVERY_ON_ONE_LINE = {key: [" ".join(text.split()) for text in texts] for key, texts in EVERY.items()}


def test_trainers_of_several_captions_get_all_of_them(folder: Path) -> None:
    exported(folder, "out")

    for reader in (readers.diffusion_pipe, readers.fastvideo):
        assert {path.stem: texts for path, texts in reader(folder / "out", "train").items()} == EVERY
    lines = {path.stem: texts for path, texts in readers.simpletuner(folder / "out", "train").items()}
    assert lines == EVERY_ON_ONE_LINE
    one = {path.stem: texts for path, texts in readers.mochi(folder / "out", "train").items()}
    assert one == {"a": ["a dense caption, of two lines"], "b": ["dense b"], "c": ["dense c"]}


@pytest.mark.parametrize(("name", "every"), [("fastvideo", EVERY), ("simpletuner", EVERY_ON_ONE_LINE)])
def test_the_trainers_own_code_reads_every_caption(
    folder: Path, tmp_path: Path, name: str, every: dict[str, list[str]]
) -> None:
    exported(folder, "out")

    rows = read_by_own_code(name, [folder / "out"], tmp_path)[str(folder / "out")]["train"]

    assert {Path(row["path"]).stem: row["captions"] for row in rows} == every


def test_another_caption_can_be_the_one(folder: Path) -> None:
    summary = exported(folder, "short", caption="short")

    assert summary.left_out == {"no_caption": 1}
    assert {path.stem: texts for path, texts in readers.mochi(folder / "short", "train").items()} == {
        "a": ["short a"],
        "c": ["short c"],
    }
    with pytest.raises(
        InputError, match=r"--caption tiny: no clip has such a caption. Names: caption, short"
    ):
        exported(folder, "tiny", caption="tiny")


def test_own_columns_reach_the_hub_and_come_back_in_the_table(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(folder, "out")
    rows = {row["clip_id"]: row for row in pq.read_table(folder / "out/train/metadata.parquet").to_pylist()}

    assert [rows[key]["shots"] for key in "abc"] == [3, -4, None]
    assert [rows[key]["score_2"] for key in "abc"] == [0.25, 1000.0, None]
    assert [rows[key]["ok"] for key in "abc"] == [True, False, True]
    assert [rows[key]["camera make"] for key in "abc"] == ["Çanon", None, "日本"]
    assert [rows[key]["own_caption_names"] for key in "abc"] == ["own", None, "t"]
    assert [rows[key]["note"] for key in "abc"] == ["x", "007", None]
    assert rows["a"]["caption_names"] == ["caption", "short", "style"]

    words = ["export", str(folder / "run"), str(folder / "back.csv"), "--json"]
    cli.app(args=words, standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["stage"] == "probe"
    for row, back in zip(ROWS, readers.table_rows(folder / "back.csv"), strict=True):
        assert back["camera make"] == row[4]
        assert back["note"] == row[9]
        assert back["shots"] == row[5]
