"""Own columns and several captions: from the user's CSV through the run into what trainers read."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.vidcurate.curation.export import readers
from tests.vidcurate.curation.export.captioned_clips import EVERY, EVERY_ON_ONE_LINE, ROWS, exported
from vidcurate.cli import main as cli
from vidcurate.errors import InputError


def test_trainers_of_several_captions_get_all_of_them(captioned: Path) -> None:
    exported(captioned, "out")

    for reader in (readers.diffusion_pipe, readers.fastvideo):
        assert {path.stem: texts for path, texts in reader(captioned / "out", "train").items()} == EVERY
    lines = {path.stem: texts for path, texts in readers.simpletuner(captioned / "out", "train").items()}
    assert lines == EVERY_ON_ONE_LINE
    one = {path.stem: texts for path, texts in readers.mochi(captioned / "out", "train").items()}
    assert one == {"a": ["a dense caption, of two lines"], "b": ["dense b"], "c": ["dense c"]}


def test_another_caption_can_be_the_one(captioned: Path) -> None:
    summary = exported(captioned, "short", caption="short")

    assert summary.left_out == {"no_caption": 1}
    assert {path.stem: texts for path, texts in readers.mochi(captioned / "short", "train").items()} == {
        "a": ["short a"],
        "c": ["short c"],
    }
    with pytest.raises(
        InputError, match=r"--caption tiny: no clip has such a caption. Names: caption, short"
    ):
        exported(captioned, "tiny", caption="tiny")


def test_own_columns_reach_the_hub_and_come_back_in_the_table(
    captioned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(captioned, "out")
    rows = {
        row["clip_id"]: row for row in pq.read_table(captioned / "out/train/metadata.parquet").to_pylist()
    }

    assert [rows[key]["shots"] for key in "abc"] == [3, -4, None]
    assert [rows[key]["score_2"] for key in "abc"] == [0.25, 1000.0, None]
    assert [rows[key]["ok"] for key in "abc"] == [True, False, True]
    assert [rows[key]["camera make"] for key in "abc"] == ["Çanon", None, "日本"]
    assert [rows[key]["own_caption_names"] for key in "abc"] == ["own", None, "t"]
    assert [rows[key]["note"] for key in "abc"] == ["x", "007", None]
    assert rows["a"]["caption_names"] == ["caption", "short", "style"]

    words = ["export", str(captioned / "run"), str(captioned / "back.csv"), "--json"]
    cli.app(args=words, standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["stage"] == "probe"
    for row, back in zip(ROWS, readers.table_rows(captioned / "back.csv"), strict=True):
        assert back["camera make"] == row[4]
        assert back["note"] == row[9]
        assert back["shots"] == row[5]
