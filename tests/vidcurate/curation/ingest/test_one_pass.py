"""One pass and two passes over the same metadata give the same table and the same report."""

import csv
import json
from pathlib import Path

import polars as pl
import pytest

from vidcurate.curation.ingest import one_pass
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.errors import InputError

HEADER = ["video", "caption", "aesthetic score", "frame", "fps", "seconds", "camera motion", "mine"]
MANY = 150  # more rows than are tried before the pass
PLAIN = [[f"a{n}_0_0to9.mp4", f"A dog, {n}.", "5.1", "48", "24.0", "2.0", "pan", str(n)] for n in range(MANY)]


def row(video: str, caption: str = "A cat.", score: str = "4.5", frames: str = "50") -> list[str]:
    return [video, caption, score, frames, "25", "2", "", "7"]


CASES = {
    "plain": [],
    "twice": [row("b.mp4"), row("b.mp4", ""), row("b.mp4", score="x")],
    "an id like a second one": [row("b.mp4"), row("b#2.mp4"), row("b.mp4")],
    "bad and empty": [
        row("b.mp4", "", "x"),
        row("c.mp4", "nan"),
        row("d.mp4", frames="-3"),
        row("e.mp4", " ", "NA"),
    ],
    "unsafe keys": [row("-b c.mp4"), row("d.e.mp4"), row("é.mp4"), row("x" * 120 + ".mp4")],
    "folders": [row("/data/b.mp4"), row("x/./y/../z.mp4"), row("x\\y.mp4"), row("s3://k/b.mp4")],
    "out of the root": [row("../b.mp4"), row("c.mp4")],
    "nameless": [row(""), row(" "), row("c.mp4")],
    "a list late": [row("b.mp4", '["One.", "Two."]'), row("c.mp4", "[not a list")],
    "faces": [row("celebv_abcdefghijk_3.mp4"), row("celebv_abcdefghijk_4_0to9.mp4"), row("d/celebv_x.mp4")],
}


def ingest(folder: Path, table: Path) -> tuple[pl.DataFrame, dict[str, object], bytes]:
    run_ingest(folder, IngestSpec(metadata=table))
    path = folder / "ingest.parquet"
    report = json.loads((folder / "reconcile.json").read_text())
    assert sorted(p.name for p in folder.iterdir() if p.name != ".lock") == [path.name, "reconcile.json"]
    return pl.read_parquet(path), report, path.read_bytes()


@pytest.mark.parametrize("case", CASES)
def test_one_pass_writes_what_two_passes_write(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "OpenVid.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEADER, *PLAIN, *CASES[case]])
    frame, report, data = ingest(tmp_path / "one", table)
    monkeypatch.setattr(one_pass, "write_table", lambda *_: None)
    other, other_report, other_data = ingest(tmp_path / "two", table)
    assert frame.equals(other)
    assert frame.schema == other.schema
    assert report == other_report
    assert data == other_data


def test_a_plain_table_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "OpenVid.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEADER, *PLAIN, *CASES["twice"], *CASES["unsafe keys"]])
    monkeypatch.setattr("vidcurate.curation.ingest.two_passes.first_pass", None)
    frame, _, _ = ingest(tmp_path / "run", table)
    assert frame["ingest_problem"].value_counts().sort("count").to_dict(as_series=False) == {
        "ingest_problem": ["duplicate_id", None],
        "count": [2, MANY + 5],
    }
    assert frame["clip_id"].to_list()[MANY : MANY + 3] == ["b", "b#2", "b#3"]


@pytest.mark.parametrize("rows", [[], [row("b.mp4"), ["c.mp4", *["x"] * 20]]])
def test_a_pass_that_fails_leaves_the_old_table(tmp_path: Path, rows: list[list[str]]) -> None:
    table = tmp_path / "OpenVid.csv"
    for written in ([*PLAIN], rows):
        with table.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([HEADER, *written])
        if written == PLAIN:
            _, _, before = ingest(tmp_path / "run", table)
    with pytest.raises(InputError, match=r"OpenVid\.csv"):
        run_ingest(tmp_path / "run", IngestSpec(metadata=table))
    assert (tmp_path / "run" / "ingest.parquet").read_bytes() == before


def test_a_caption_loses_every_blank_around_it_and_no_other_letter(tmp_path: Path) -> None:
    blanks = [chr(code) for code in range(0x3001) if chr(code).isspace()]
    captions = [f"{left}x{right}" for left in ["", "é", *blanks] for right in ["", "日", *blanks]]
    table = tmp_path / "OpenVid.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [HEADER, *(row(f"v{n}.mp4", caption) for n, caption in enumerate(captions))]
        )
    frame, _, _ = ingest(tmp_path / "run", table)
    assert frame["caption"].equals(pl.Series("caption", captions).str.strip_chars())
    assert (frame["caption"] == "x").sum() == (1 + 25) ** 2  # Unicode has 25 blanks; Python adds four


def test_an_id_that_is_there_again_megabytes_later_is_found(tmp_path: Path) -> None:
    table = tmp_path / "OpenVid.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        write = csv.writer(file)
        write.writerow(HEADER)
        write.writerows(row(f"clip{n}.mp4", "A dog runs. " * 200) for n in range(4000))
        write.writerow(row("clip1.mp4"))
    assert table.stat().st_size > 4 * (2 << 20), "four of the chunks that polars reads at once"
    frame, report, _ = ingest(tmp_path / "run", table)
    assert frame["clip_id"][-1] == "clip1#2"
    assert report["problems"] == {"duplicate_id": 1}
