"""Ids against each other, bad cells, bad requests: every row stays, by name."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vidcurate.curation.ingest.metadata_tables import (
    KOALA,
    OPENVID,
    ingest,
    openvid_row,
    row_of,
    write_csv,
)
from vidcurate.curation.clip_table import schema, table
from vidcurate.curation.clip_table.table import digest
from vidcurate.curation.ingest import reconcile
from vidcurate.curation.ingest.rows import MEASURES
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.errors import ColumnError, InputError, StorageError, VidcurateError


def test_a_cell_that_does_not_parse_is_named_and_one_that_says_nothing_is_not(tmp_path: Path) -> None:
    table = write_csv(
        tmp_path / "t.csv",
        OPENVID,
        [
            openvid_row("a.mp4", aes="high", seconds="-1"),
            openvid_row("b.mp4", frame="24.5"),
            openvid_row("c.mp4", motion="inf"),
            openvid_row("d.mp4", aes="nan", motion="None", fps="", frame="24.0"),
            openvid_row("e.mp4", caption="nan"),
            openvid_row("", caption="no name"),
            openvid_row("f.mp4", frame="99999999999999999999"),
        ],
    )
    summary, frame, report = ingest(tmp_path / "run", table)
    assert summary.problems == {"bad_value": 5, "empty_caption": 1}
    assert [(bad["row"], bad["column"], bad["value"]) for bad in report["bad_values"]["listed"]] == [
        (1, "seconds", "-1"),
        (1, "aesthetic score", "high"),
        (2, "frame", "24.5"),
        (3, "motion score", "inf"),
        (6, "clip_id", ""),
        (7, "frame", "99999999999999999999"),
    ]
    fine = row_of(frame, "d")
    assert (fine["aesthetic_score"], fine["num_frames"], fine["ingest_problem"]) == (None, 24, None)
    assert row_of(frame, "row-6")["ingest_problem"] == "bad_value"


@pytest.mark.parametrize("column", ["start_seconds", "end_seconds", "duration_seconds", "fps"])
def test_a_time_or_rate_that_no_clip_has_is_a_bad_value(tmp_path: Path, column: str) -> None:
    rows = [(f"{n}.mp4", "A ball", cell) for n, cell in enumerate(("1e9", "1e10", "1e308", "1e400"))]
    table = write_csv(tmp_path / "t.csv", f"path,caption,{column}", rows)

    summary, frame, report = ingest(tmp_path / "run", table, schema="table")

    assert summary.problems == {"bad_value": 3}
    assert frame[f"{column}_from_metadata" if column in MEASURES else column].to_list() == [1e9, *[None] * 3]
    assert [one["value"] for one in report["bad_values"]["listed"]] == ["1e10", "1e308", "1e400"]
    assert {one["column"] for one in report["bad_values"]["listed"]} == {column}


def test_a_time_that_was_worked_out_is_a_bad_value_too(tmp_path: Path) -> None:
    clock = f"['0:00:01', '{'9' * 300}:00:02']"
    rows = [("v_0", "u", clock, "A ball", "1", "1", "1", "1")]
    table = write_csv(tmp_path / "t.csv", KOALA, rows)

    summary, frame, report = ingest(tmp_path / "run", table, files="sources")

    assert summary.problems == {"bad_value": 1}
    assert frame["end_seconds"].to_list() == [None]
    named = {one["column"] for one in report["bad_values"]["listed"]}
    assert named == {"end_seconds", "duration_seconds"}


def test_ids_stay_text_and_unlike_ids_never_share_a_key(tmp_path: Path) -> None:
    ids = ["12.1", "12.10", "a b", "a_b", "ü/ß", "日本", "-x", "a#2", "a", "a", "0012", "1e3", "None"]
    table = write_csv(tmp_path / "t.csv", "clip_id,caption", [(name, "c") for name in ids])
    _, frame, _ = ingest(tmp_path / "run", table)
    assert frame["clip_id"].to_list() == [*ids[:9], "a#3", *ids[10:]]
    assert frame["sample_key"].to_list() == [schema.sample_key(name) for name in frame["clip_id"]]
    assert frame["sample_key"].n_unique() == len(ids)


def test_two_ids_with_one_key_stop_the_ingest_with_both_names(tmp_path: Path) -> None:
    taken = schema.sample_key("a b")
    table = write_csv(tmp_path / "t.csv", "clip_id,caption", [("a b", "c"), (taken, "c")])
    with pytest.raises(InputError, match=f"'a b' and '{taken}' would share"):
        ingest(tmp_path / "run", table)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.sampled_from("ab#2.1 /é"), min_size=1, max_size=4), min_size=1, max_size=12))
def test_ids_are_unique_whatever_the_metadata_holds(ids: list[str]) -> None:
    keys = pl.DataFrame(
        {"clip_id": ids, "video_path": ids, "is_empty": False, "bad": "", "note": ""},
        schema_overrides={"clip_id": pl.String},
    )
    ledger = reconcile.reconcile(keys, None, ".mp4", with_extra_files=False, finds_by_name=True)
    named = ledger.frame["clip_id"].to_list()
    assert len(set(named)) == len(ids)
    assert [new for new, old in zip(named, ids, strict=True) if new == old] == list(dict.fromkeys(ids))
    assert ledger.frame["base_id"].to_list() == ids


def test_a_second_run_is_up_to_date_until_something_changes(tmp_path: Path, videos: Path) -> None:
    table = write_csv(tmp_path / "t.csv", OPENVID, [openvid_row("a.mp4"), openvid_row("gone.mp4")])
    run = tmp_path / "run"
    first, _, _ = ingest(run, table, videos=videos)
    made = digest(run / "ingest.parquet"), digest(run / "reconcile.json")
    second, _, _ = ingest(run, table, videos=videos, schema="openvid")
    assert second.up_to_date
    assert second.problems == first.problems
    assert second.findings == first.findings
    other, _, _ = ingest(tmp_path / "run2", table, videos=videos)
    assert made == (digest(tmp_path / "run2/ingest.parquet"), digest(tmp_path / "run2/reconcile.json"))
    assert not other.up_to_date
    (videos / "gone.mp4").write_bytes(b"here now")
    third, _, _ = ingest(run, table, videos=videos)
    assert not third.up_to_date
    assert "missing_file" not in third.problems
    assert not ingest(run, table, videos=videos, caption_column="camera motion")[0].up_to_date
    old = (run / "ingest.parquet").read_bytes()
    ingest(run, table, videos=videos)
    (run / "ingest.parquet").write_bytes(old)  # as if the run had been killed between the two files
    assert not ingest(run, table, videos=videos, caption_column="camera motion")[0].up_to_date
    (run / "reconcile.json").write_text("{")
    assert not ingest(run, table, videos=videos, caption_column="camera motion")[0].up_to_date
    assert sorted(path.name for path in run.iterdir()) == ["ingest.parquet", "reconcile.json"]


def test_bom_spaces_quotes_and_line_breaks_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(
        b'\xef\xbb\xbf video , Caption ,"AESTHETIC SCORE",motion_score,Temporal-Consistency Score\r\n'
        b'"a, b.mp4","She said ""hi""\nand left", 5.0 ,1,0.9\r\n'
    )
    summary, frame, _ = ingest(tmp_path / "run", path)
    row = frame.row(0, named=True)
    assert (summary.schema, row["clip_id"]) == ("openvid", "a, b")
    assert (row["caption"], row["aesthetic_score"]) == ('She said "hi"\nand left', 5.0)


def test_latin_1_is_read_when_asked_for_and_named_when_not(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"path,text\na.mp4,fine\nb.mp4,caf\xe9\n")
    with pytest.raises(InputError, match=r"line 3 is not UTF-8 \(byte 0xe9\)"):
        ingest(tmp_path / "run", path)
    _, frame, _ = ingest(tmp_path / "run", path, encoding="latin-1")
    assert frame["caption"].to_list() == ["fine", "café"]
    lines = tmp_path / "t.jsonl"
    lines.write_bytes(b'{"path": "a.mp4", "text": "fine"}\n{"path": "b.mp4", "text": "caf\xe9"}\n')
    with pytest.raises(InputError, match=r"t\.jsonl: line 2 is not UTF-8 \(byte 0xe9\)"):
        ingest(tmp_path / "run", lines)
    path.write_bytes("path,text\na.mp4,café\n".encode("utf-16"))
    with pytest.raises(InputError, match="begins like UTF-16"):
        ingest(tmp_path / "run", path)
    _, frame, _ = ingest(tmp_path / "run", path, encoding="utf-16")
    assert frame["caption"].to_list() == ["café"]


BAD_REQUESTS: dict[str, tuple[bytes | None, dict[str, Any], str]] = {
    "missing": (None, {}, "no such metadata file"),
    "empty": (b"", {}, "the metadata file is empty"),
    "blank": (b"\n\n", {}, "no header and no rows"),
    "header only": (b"path,text\n", {}, "a header and no rows"),
    "no header": (b"a.mp4,A ball\nb.mp4,A cat\n", {}, r"no known schema has these columns \(a.mp4, A ball\)"),
    "semicolons": (b"path;text\na.mp4;b\n", {}, "its separator seems to be ';'"),
    "long row": (b"path,text\na.mp4,b\nc.mp4,d,e\n", {}, r"row 2 \(line 3\) has 3 cells, the header 2"),
    "unmapped": (b"path,words\na.mp4,b\n", {"map": {"caption": "wordz"}}, "Did you mean 'words'"),
    "map of nothing": (b"path,text\na,b\n", {"map": {"captoin": "text"}}, "Did you mean caption"),
    "map elsewhere": (
        b"path,text\na,b\n",
        {"map": {"caption": "text"}, "schema": "opensora"},
        "only schema table",
    ),
    "no caption": (b"path,words\na.mp4,b\n", {"schema": "table"}, "no caption column"),
    "caption choice": (b"path,text\na,b\n", {"caption_column": "texts"}, "Did you mean 'text'"),
    "no clip": (b"words,text\na,b\n", {"schema": "table"}, "no column names the video"),
    "other schema": (b"path,text\na.mp4,b\n", {"schema": "openvid"}, "no column 'video'"),
    "twice": (b"Path,path ,text\na,b,c\n", {"schema": "table"}, "both read as video_path|both read as path"),
    "encoding": (b"path,text\na,b\n", {"encoding": "utf-99"}, "encoding 'utf-99' is not known"),
    "not folder": (b"path,text\na,b\n", {"schema": "folder"}, "needs a folder"),
    "files": (b"path,text\na,b\n", {"files": "sources"}, "files: sources can be set for miradata"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_a_bad_request_is_one_line_and_writes_nothing(tmp_path: Path, case: str) -> None:
    content, spec, message = BAD_REQUESTS[case]
    path = tmp_path / "t.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((InputError, ColumnError), match=message) as caught:
        run_ingest(tmp_path / "run", IngestSpec(metadata=path, **spec))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_unreadable_places_are_named(tmp_path: Path, videos: Path) -> None:
    table = write_csv(tmp_path / "t.csv", "path,text", [("a.mp4", "A ball")])
    cases: list[tuple[type[VidcurateError], dict[str, Any], str]] = [
        (InputError, {"metadata": table, "videos": tmp_path / "none"}, "no such folder of videos"),
        (InputError, {"metadata": table, "videos": table}, "is a file; the folder"),
        (InputError, {"metadata": table.with_suffix(".xlsx")}, "no such metadata"),
        (InputError, {"metadata": tmp_path / "nothing-here"}, "neither videos nor .tar"),
        (InputError, {"metadata": videos, "videos": tmp_path}, "schema folder reads the videos in"),
        (InputError, {"metadata": videos, "schema": "openvid"}, "is no table"),
    ]
    (tmp_path / "nothing-here").mkdir()
    for kind, spec, message in cases:
        with pytest.raises(kind, match=message):
            run_ingest(tmp_path / "run", IngestSpec(**spec))
    odd = tmp_path / "t.xlsx"
    odd.write_bytes(b"PK")
    with pytest.raises(InputError, match=r"\.xlsx is not a kind of table"):
        run_ingest(tmp_path / "run", IngestSpec(metadata=odd))
    broken = tmp_path / "t.parquet"
    broken.write_bytes(b"PAR1 but no more")
    with pytest.raises(InputError, match=r"t\.parquet: cannot be read as parquet"):
        run_ingest(tmp_path / "run", IngestSpec(metadata=broken))
    with pytest.raises(StorageError, match="the run folder cannot be made"):
        run_ingest(table / "run", IngestSpec(metadata=table))
    if os.geteuid() != 0:
        (videos / "part").chmod(0)
        with pytest.raises(InputError, match="part: the folder cannot be read"):
            run_ingest(tmp_path / "run", IngestSpec(metadata=table, videos=videos))
        (videos / "part").chmod(0o755)


BIG = """
import sys
from pathlib import Path
from tests.vidcurate.curation.ingest.metadata_tables import OPENVID
from vidcurate.curation.ingest.rows import MEASURES
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
folder, rows = Path(sys.argv[1]), int(sys.argv[2])
captions = ["caption %d " % number + "of a long and winding street " * 40 for number in range(97)]
with (folder / "big.csv").open("w") as file:
    file.write(OPENVID + "\\n")
    for start in range(0, rows, 1000):
        file.write("".join(
            f"abcdefghijk_{i}_0to{i}.mp4,{captions[i % 97]}{i},5.5,1.25,0.99,static,48,24.0,2.0\\n"
            for i in range(start, start + 1000)
        ))
summary = run_ingest(folder / "run", IngestSpec(metadata=folder / "big.csv"))
assert summary.rows_kept == rows, summary
size = (folder / "big.csv").stat().st_size
# Not ru_maxrss: a child begins with its parent's.
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(size, int(peak.split()[1]) * 1024)
"""


def test_a_table_is_never_held_in_memory(tmp_path: Path) -> None:
    """Three times the table is not three times the memory: what grows is ids, never captions."""
    # One thread, and memory given back at once: what is left is what is held.
    env = {**os.environ, "POLARS_MAX_THREADS": "1", "_RJEM_MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:0"}
    peaks = []
    for rows in (100_000, 300_000):
        folder = tmp_path / str(rows)
        folder.mkdir()
        command = [sys.executable, "-c", BIG, str(folder), str(rows)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600, env=env)
        size, peak = map(int, done.stdout.split())
        (folder / "big.csv").unlink()
        peaks.append((size, peak))
    (small, low), (large, high) = peaks
    assert large - small > 225e6
    assert high - low < 0.4 * (large - small), json.dumps(peaks)


def test_a_date_beyond_what_can_be_written_stays_a_number(tmp_path: Path) -> None:
    far = 2**62  # microseconds: the year 148108; milliseconds: no year that polars writes
    columns = {
        "clip_id": ["a"],
        "video": ["a.mp4"],
        "caption": ["a dog"],
        "day": pl.Series([2**30], dtype=pl.Int32).cast(pl.Date),
        "micro": pl.Series([far]).cast(pl.Datetime("us")),
        "milli": pl.Series([far]).cast(pl.Datetime("ms")),
        "nano": pl.Series([0]).cast(pl.Datetime("ns")),
        "near": pl.Series([18_628], dtype=pl.Int32).cast(pl.Date),
    }
    pl.DataFrame(columns).write_parquet(tmp_path / "t.parquet")

    run_ingest(tmp_path / "run", IngestSpec(metadata=tmp_path / "t.parquet"))

    row = table.scan(tmp_path / "run", "ingest").collect().row(0, named=True)
    assert (row["day"], row["milli"], row["near"]) == (str(2**30), str(far), "2021-01-01")
    assert row["micro"].startswith("+148108-")
    assert row["nano"].startswith("1970-01-01")
