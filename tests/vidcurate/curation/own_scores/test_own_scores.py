"""Own scores: columns like the built-in ones, from functions that may do anything."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.shard_runs import build, write_table
from vidcurate.cli.main import main
from vidcurate.curation.clip_table import table
from vidcurate.curation.filter.spec import FilterSpec
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.own_scores.load import load_scores
from vidcurate.curation.own_scores.stage import OwnScoresSummary, run_own_scores
from vidcurate.curation.report.build import run_report
from vidcurate.errors import InputError, VidcurateError
from vidcurate.executor.parts_folder import ExecutorSpec, parse_part
from vidcurate.recipe.recipe import parse
from vidcurate.shards import index
from vidcurate.shards.layout import ShardSpec
from vidcurate.shards.read_clip import read_clip_facts

ROOT = Path(__file__).resolve().parents[4]
CODE = """
import math, os, time

def corner(frames):
    assert frames.dtype == "uint8" and frames.shape[1:] == (32, 48, 3), frames.shape
    return frames[:, :4, :4].mean()

corner.unit, corner.num_frames, corner.short_side_px = "0-255", 2, 32

def letters(caption):
    return len(caption)

def facts(row):
    return {"pixels": row["width"] * row["height"], "is_long": row["num_frames"] > 8, "none": math.nan}

def touchy(row):
    if row["clip_id"] == "clip2":
        raise ValueError("no such thing")
    return 1

def slow(row):
    time.sleep(60 * (row["clip_id"] == "clip1"))
    return 0.5

def deadly(row):
    if row["clip_id"] == "clip3":
        os._exit(7)
    return 0

def wrong(row):
    return "many"

def gets_nothing():
    return 1

class Silent(Exception):
    def __str__(self):
        raise RuntimeError

def silent(row):
    raise Silent

def long(row):
    raise ValueError("word\\n" * 10_000 + row["clip_id"])

def empty_key(row):
    return {"": 1}

def line_key(row):
    return {"a\\nb": 1}

def long_key(row):
    return {"k" * 200: 1}

def own_scores(row):
    return {"status": 1}

def file_size(row):
    return {"bytes": 1}

def forks(row):
    number = int(row["clip_id"][4:])
    os.fork()
    return number

def clears(row):
    row.clear()
    return 1

def many(row):
    return {f"{row['clip_id']}-{number}": number for number in range(400)}

def tables(row):
    import sys
    return sum(name in sys.modules for name in ("polars", "pyarrow"))

def prints(row):
    print("a word")
    os.write(1, b"another")
    return 1

print("imported")
clip_id = letters

class Thing: pass
"""


@pytest.fixture
def folder(tmp_path: Path, make_video: Callable[..., Path]) -> Path:
    """Return a folder with five clips, the last of which probe rejected, and the code of scores."""
    (tmp_path / "videos").mkdir()
    rows: list[dict[str, Any]] = []
    for number in range(5):
        source = make_video("clip.mp4", num_frames=6 + number)
        (tmp_path / "videos" / f"clip{number}.mp4").write_bytes(source.read_bytes())
        rows.append(
            {
                "clip_id": f"clip{number}", "source_dataset": "made", "source_id": f"s{number}",
                "video_path": f"clip{number}.mp4", "caption": "a" * number, "width": 96, "height": 64,
                "fps": 24.0, "num_frames": 6 + number, "duration_seconds": (6 + number) / 24,
                "probe_status": "ok" if number < 4 else "corrupt_frame", "ingest_problem": None,
                "file_size_bytes": source.stat().st_size, "integrity_level": "full", "probe_problem": None,
            }
        )  # fmt: skip
    write_table(tmp_path / "run", rows, stage="probe")
    (tmp_path / "scores.py").write_text(CODE)
    return tmp_path


def score(folder: Path, *names: str, file: str = "scores.py", **more: Any) -> OwnScoresSummary:
    loaded = load_scores([f"{folder / file}:{name}" for name in names])
    summary = run_own_scores(folder / "run", loaded, videos=folder / "videos", **more)
    assert isinstance(summary, OwnScoresSummary)
    return summary


def column(folder: Path, name: str) -> list[Any]:
    return table.scan(folder / "run", "own_scores").collect()[name].to_list()


def test_a_function_of_frames_caption_or_row_is_a_column(folder: Path) -> None:
    summary = score(folder, "corner", "letters", "facts")

    assert summary.by_status == {"not_scored": 1, "ok": 4}
    assert column(folder, "letters") == [0.0, 1.0, 2.0, 3.0, None]
    assert column(folder, "facts_pixels") == [6144.0] * 4 + [None]
    assert column(folder, "facts_is_long") == [0.0, 0.0, 0.0, 1.0, None]
    assert column(folder, "facts_none") == [None] * 5
    corners = column(folder, "corner")  # the corner of frame t is 8 t; of 6 frames, numbers 1 and 4
    assert corners[0] == pytest.approx(20, abs=4)
    assert corners[3] > corners[0]
    words = table.column_words(table.stage_path(folder / "run", "own_scores"))
    assert words["corner"]["unit"] == "0-255"
    assert "scores.py:corner (SHA-256 " in words["corner"]["meaning"]


def test_a_worker_holds_no_library_of_tables(folder: Path) -> None:
    score(folder, "tables")

    assert column(folder, "tables") == [0.0] * 4 + [None]  # polars and pyarrow are 50 MB a worker


def test_it_is_computed_again_when_the_file_has_changed_and_only_then(folder: Path) -> None:
    assert not score(folder, "letters").up_to_date
    assert score(folder, "letters").up_to_date
    (folder / "other.py").write_text(CODE.replace("len(caption)", "2 * len(caption)"))
    assert not score(folder, "letters", file="other.py").up_to_date
    assert column(folder, "letters")[:4] == [0.0, 2.0, 4.0, 6.0]


def test_what_a_function_raises_is_the_clips_problem_and_the_others_still_run(folder: Path) -> None:
    summary = score(folder, "touchy", "letters")

    assert summary.by_status == {"error": 1, "not_scored": 1, "ok": 3}
    assert column(folder, "touchy") == [1.0, 1.0, None, 1.0, None]
    assert column(folder, "letters")[2] == 2.0
    assert column(folder, "own_scores_problem")[2] == "touchy: ValueError: no such thing"


def test_a_function_that_hangs_or_kills_costs_its_clip(folder: Path) -> None:
    assert score(folder, "slow", time_limit_seconds=3.0).by_status == {"not_scored": 1, "ok": 3, "timeout": 1}
    assert column(folder, "slow") == [0.5, None, 0.5, 0.5, None]
    summary = score(folder, "deadly", executor=ExecutorSpec(num_workers=2))
    assert summary.by_status == {"crashed": 1, "not_scored": 1, "ok": 3}


def test_scores_are_filtered_reported_and_travel_with_the_clips(folder: Path) -> None:
    score(folder, "letters", "corner")
    run_filter(folder / "run", parse("limits: {letters: {min: 2}}", FilterSpec))
    build(folder, ShardSpec())

    opened = index.read_index(folder / "shards")
    assert sorted(opened.words("clip_id").to_pylist()) == ["clip2", "clip3"]
    row = index.find_clip(opened, "clip3")
    assert opened.at("letters", row) == read_clip_facts(opened, row)["letters"] == 3.0
    assert "own_scores_status" not in read_clip_facts(opened, row)
    ledger = pl.read_parquet(folder / "run" / "ledger.parquet")
    assert "letters" in str(ledger.filter(pl.col("clip_id") == "clip0").rows())
    run_report(folder / "run")
    assert "letters" in (folder / "run" / "report.html").read_text()


def test_parts_are_merged_to_the_same_table(folder: Path) -> None:
    score(folder, "letters", "facts")
    whole = table.stage_path(folder / "run", "own_scores").read_bytes()
    table.stage_path(folder / "run", "own_scores").unlink()
    scores = load_scores([f"{folder / 'scores.py'}:{name}" for name in ("letters", "facts")])
    for number in (1, 2):
        run_own_scores(
            folder / "run", scores, videos=None, executor=ExecutorSpec(part=parse_part(f"{number}/2"))
        )
    run_own_scores(folder / "run", scores, videos=None, executor=ExecutorSpec(merge=True))
    assert table.stage_path(folder / "run", "own_scores").read_bytes() == whole


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "has no function nothing"),
        ("gets_nothing", "first parameter is missing; name it frames, caption or row"),
        ("Thing", "has no function Thing"),
    ],
)
def test_what_is_no_score_is_one_line(folder: Path, name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        score(folder, name)


def test_files_that_cannot_be_run_are_one_line(folder: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.py: no such file"):
        score(folder, "x", file="nowhere.py")
    (folder / "broken.py").write_text("def x(row:\n")
    with pytest.raises(InputError, match=r"cannot be imported .SyntaxError"):
        score(folder, "x", file="broken.py")
    with pytest.raises(InputError, match=r"nor an entry point of vidcurate\.scores"):
        load_scores(["sharp_faces"])
    with pytest.raises(InputError, match="letters is given 2 times"):
        score(folder, "letters", "letters")
    (folder / "many.py").write_text("def f(frames): return 1\nf.num_frames = 10**9\n")
    with pytest.raises(InputError, match=r"f\.num_frames is 1000000000; a whole number from 1 to 256"):
        score(folder, "f", file="many.py")
    (folder / "clash.py").write_text("def caption(row): return 1\n")
    with pytest.raises(InputError, match="the table has a column caption; rename the function"):
        score(folder, "caption", file="clash.py")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("silent", "silent: Silent: its text raises RuntimeError"),
        ("long", "long: ValueError: word word "),
        ("empty_key", "the key 'empty_key_' cannot be a column's name"),
        ("line_key", r"the key 'line_key_a\nb' cannot be a column's name"),
        ("long_key", "cannot be a column's name"),
        (
            "own_scores",
            "the key 'status' makes a column own_scores_status, which the table has",
        ),
        ("file_size", "the key 'bytes' makes a column file_size_bytes, which the table has; rename the key"),
    ],
)
def test_what_a_table_cannot_hold_is_the_clips_problem(folder: Path, name: str, problem: str) -> None:
    assert score(folder, name).by_status == {"error": 4, "not_scored": 1}
    for found in column(folder, "own_scores_problem")[:4]:
        assert problem in found
        assert len(found) < 600


def test_a_function_that_forks_or_changes_its_row_leaves_the_others_theirs(folder: Path) -> None:
    assert score(folder, "forks", executor=ExecutorSpec(num_workers=2)).rows_ok == 4
    assert column(folder, "forks") == [0.0, 1.0, 2.0, 3.0, None]
    score(folder, "clears", "facts")
    assert column(folder, "facts_pixels")[:4] == [96.0 * 64] * 4


def test_a_column_for_each_clip_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"made 1,600 columns, such as many_clip0-0; at most 1,000"):
        score(folder, "many")


def test_what_a_function_prints_is_not_in_the_summary(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["score-own", str(folder / "run"), "--score", f"{folder / 'scores.py'}:prints", "--json"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--videos", str(folder / "videos")])
    said = capfd.readouterr()
    assert ended.value.code == 0
    assert json.loads(said.out)["rows_ok"] == 4
    assert {"imported", "a word", "another"} <= set(said.err.replace("another", "another\n").split("\n"))


def test_a_score_that_fails_for_every_clip_stops_the_stage(folder: Path) -> None:
    rows = table.scan(folder / "run", "probe").collect()
    many = pl.concat(
        [
            rows.head(1).with_columns(clip_id=pl.lit(f"clip{n}"), sample_key=pl.lit(f"clip{n}"))
            for n in range(9)
        ]
    )
    write_table(folder / "run", many.to_dicts(), stage="probe")
    with pytest.raises(
        VidcurateError, match=r"all 9 clips failed for one reason.*returned str, not a number"
    ):
        score(folder, "wrong")
    assert not table.stage_path(folder / "run", "own_scores").exists()


def test_an_installed_package_offers_scores_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = folder / "site"
    (site / "nice_scores-1.0.dist-info").mkdir(parents=True)
    (site / "nice_scores.py").write_text("def niceness(caption): return 0.25\n")
    (site / "nice_scores-1.0.dist-info" / "METADATA").write_text("Name: nice_scores\nVersion: 1.0\n")
    (site / "nice_scores-1.0.dist-info" / "entry_points.txt").write_text(
        "[vidcurate.scores]\nniceness = nice_scores:niceness\n"
    )
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "nice_scores", raising=False)

    run_own_scores(folder / "run", load_scores(["niceness"]), videos=None)

    assert column(folder, "niceness") == [0.25] * 4 + [None]


def test_the_example_file_scores_real_clips(folder: Path) -> None:
    sources = [
        f"{ROOT / 'recipes' / 'own_scores.py'}:{name}" for name in ("colourfulness", "questions", "shape")
    ]
    summary = run_own_scores(folder / "run", load_scores(sources), videos=folder / "videos")
    assert isinstance(summary, OwnScoresSummary)
    assert summary.values == {"colourfulness": 4, "questions": 4, "shape_pixels": 4, "shape_ratio": 4}
    assert json.dumps(summary.values)
