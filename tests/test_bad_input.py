"""Whatever is wrong with what a user gives: one line that names it and the right exit code, or a ledger row.

Exit codes: 1, the work failed; 2, the request was wrong. A bad file never stops a stage: its row says why.
"""

import os
import resource
import shutil
import subprocess
import sys
import wave
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from vidcurate.cli import main as cli_main
from vidcurate.curation.clip_table import schema, table

Make = Callable[..., Path]
HEADER = (
    "video,caption,aesthetic score,motion score,temporal consistency score,camera motion,frame,fps,seconds"
)


def line(name: str, caption: str = "a dog runs", fps: str = "24") -> str:
    return f"{name},{caption},5,4,0.99,static,48,{fps},2"


def write_csv(path: Path, *lines: str) -> Path:
    path.write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")
    return path


def call(*arguments: str | Path) -> int:
    """Run the command line in this process and return its exit code."""
    with pytest.raises(SystemExit) as left:
        cli_main.main([str(argument) for argument in arguments])
    code = left.value.code
    return code if isinstance(code, int) else int(code is not None)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, make_video: Make) -> Path:
    """A folder with videos, a table and a run that has been through every stage."""
    home = tmp_path_factory.mktemp("home")
    (home / "videos").mkdir()
    captions = ("a dog runs", "a dog and a cat run", "a dog, a cat and a bird run on a street", "two dogs")
    for number in range(len(captions)):
        shutil.copy(make_video(f"{number}.mp4", num_frames=48), home / "videos" / f"c{number}.mp4")
    write_csv(home / "clips.csv", *(line(f"c{n}.mp4", f'"{text}"') for n, text in enumerate(captions)))
    assert call("ingest", home / "clips.csv", "--videos", home / "videos", "--out", home / "run") == 0
    for stage in ("probe", "score", "filter"):
        assert call(stage, home / "run") == 0
    assert call("split-by-difficulty", home / "run", "--levels", "2") == 0
    assert call("build-shards", home / "run", "--workers", "1") == 0
    return home


@pytest.fixture
def home(good: Path, tmp_path: Path) -> Path:
    """A copy to spoil; the current directory."""
    copy = tmp_path / "home"
    shutil.copytree(good, copy)
    return copy


def truncate(path: Path, share: float = 0.5) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


# What is spoiled first, the command, the exit code, and what the line must say. HOME stands for the folder.
REQUESTS: dict[str, tuple[Callable[[Path], object] | None, str, int, str]] = {
    "metadata that is not there": (
        None,
        "ingest HOME/none.csv --out HOME/new",
        2,
        "none.csv: no such metadata file",
    ),
    "an empty metadata file": (
        lambda home: (home / "e.csv").touch(),
        "ingest HOME/e.csv --out HOME/new",
        2,
        "e.csv",
    ),
    "columns that no schema knows": (
        lambda home: (home / "o.csv").write_text("a,b\n1,2\n"),
        "ingest HOME/o.csv --out HOME/new",
        2,
        "o.csv",
    ),
    "a mapped column that is missing": (
        None,
        "ingest HOME/clips.csv --schema table --set map.caption=prompt --out HOME/new",
        2,
        "prompt",
    ),
    "an unknown schema": (None, "ingest HOME/clips.csv --schema openvidd --out HOME/new", 2, "openvidd"),
    "bytes that are not UTF-8": (
        lambda home: (home / "l.csv").write_bytes(
            (HEADER + "\n" + line("a.mp4", "caf\xe9")).encode("latin-1")
        ),
        "ingest HOME/l.csv --out HOME/new",
        2,
        "l.csv",
    ),
    "a caption column that is missing": (
        None,
        "ingest HOME/clips.csv --set caption_column=text --out HOME/new",
        2,
        "text",
    ),
    "a folder of videos that is not there": (
        None,
        "ingest HOME/clips.csv --videos HOME/none --out HOME/new",
        2,
        "none",
    ),
    "videos that are a file": (
        None,
        "ingest HOME/clips.csv --videos HOME/clips.csv --out HOME/new",
        2,
        "clips.csv",
    ),
    "a run folder that is a file": (None, "ingest HOME/clips.csv --out HOME/clips.csv", 1, "clips.csv"),
    "two ids that share a sample key": (
        lambda home: write_csv(home / "k.csv", line("a.b.mp4"), line(schema.sample_key("a.b") + ".mp4")),
        "ingest HOME/k.csv --out HOME/new",
        2,
        "share",
    ),
    "a run that is not there": (None, "probe HOME/none", 2, "no such run folder"),
    "a probe of another folder that is not there": (
        None,
        "probe HOME/run --videos HOME/none",
        2,
        "no such folder of videos",
    ),
    "an unknown setting": (None, "filter HOME/run --set min_heigth=3", 2, "--set min_heigth=3: min_heig"),
    "a setting without a value": (None, "filter HOME/run --set min_height", 2, "write it as key=value"),
    "a setting of the wrong type": (
        None,
        "filter HOME/run --set min_height=tall",
        2,
        'limits.height.min is "tall"',
    ),
    "a negative threshold": (None, "filter HOME/run --set min_height=-3", 2, "limits.height.min is -3"),
    "a range that is empty": (
        None,
        "filter HOME/run --set min_height=9 --set max_height=3",
        2,
        "min 9 is above max 3",
    ),
    "a quantile that is none": (
        None,
        "filter HOME/run --set outliers=[{column: noun_count, value: 2}]",
        2,
        "tail_quantile",
    ),
    "a rule on a column that is not there": (
        None,
        "filter HOME/run --set limits={beauty: {min: 1}}",
        2,
        "beauty",
    ),
    "a rule on a score that was not made yet": (
        lambda home: (home / "run/score.parquet").unlink(),
        "filter HOME/run --set min_noun_count=1",
        2,
        "Run `vidcurate score",
    ),
    "more levels than clips": (None, "split-by-difficulty HOME/run --levels 99", 2, "levels is 99"),
    "no levels": (None, "split-by-difficulty HOME/run --levels 0", 2, "levels"),
    "a split before the filter": (
        lambda home: (home / "run/filter.parquet").unlink(),
        "split-by-difficulty HOME/run",
        2,
        "Run `vidcurate filter",
    ),
    "a noun engine that is not installed": (
        None,
        "score HOME/run --set noun_engine=spacy:xx_none_sm",
        2,
        "xx_none_sm",
    ),
    "a table that was cut short": (
        lambda home: truncate(home / "run/probe.parquet"),
        "score HOME/run",
        1,
        "probe.parquet: not a table written by vidcurate",
    ),
    "a table of an older table": (
        lambda home: table.write(
            pl.DataFrame({"clip_id": ["x"]}),
            home / "run/ingest.parquet",
            table.Provenance(stage="ingest", settings={}, inputs={}),
        ),
        "score HOME/run",
        2,
        "made from an older ingest.parquet",
    ),
    "other shards in the folder": (
        None,
        "build-shards HOME/run --set max_clips=1",
        2,
        "holds the shards of another request",
    ),
    "shards into a file": (None, "build-shards HOME/run --out HOME/clips.csv", 1, "clips.csv"),
    "a report of nothing": (None, "report HOME/videos", 2, "ingest"),
    "a clip that is not there": (None, "inspect HOME/run c9", 2, "c9"),
    "an export of unknown form": (None, "export HOME/run HOME/out.xlsx", 2, ".xlsx"),
    "a recipe that is not there": (None, "curate HOME/none.yaml", 2, "none.yaml: no such recipe file"),
    "a recipe that is not YAML": (
        lambda home: (home / "r.yaml").write_text("a: ["),
        "curate HOME/r.yaml",
        2,
        "r.yaml:1: not YAML",
    ),
    "a recipe with an unknown key": (
        lambda home: (home / "r.yaml").write_text("run: x\ningest: {metadata: a}\nfliter: {}\n"),
        "curate HOME/r.yaml",
        2,
        "r.yaml:3: fliter is not a setting. Did you mean filter?",
    ),
    "a command that is none": (None, "prob HOME/run", 2, "prob"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_wrong_request_is_one_line_that_names_it(
    name: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, command, code, words = REQUESTS[name]
    if spoil is not None:
        spoil(home)
    capsys.readouterr()
    # A setting may hold blanks: only those before an option part arguments.
    arguments = [
        part.strip() for part in command.replace("HOME", str(home)).replace(" --", "\n--").split("\n")
    ]
    split = arguments[0].split(" ")
    for part in arguments[1:]:
        split += part.split(" ", 1)

    assert call(*split) == code

    reported = capsys.readouterr().err
    assert words in reported
    assert reported.startswith("error: ")
    assert len(reported.strip().splitlines()) == 1
    assert "Traceback" not in reported


# What a bad file or row is called in the table: (column, word).
def _sound(path: Path) -> None:
    with wave.open(str(path.with_suffix(".wav")), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(b"\0\0" * 4000)
    path.with_suffix(".wav").rename(path)


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "an empty file": (lambda path: path.write_bytes(b""), "empty"),
    "text named .mp4": (lambda path: path.write_text("no video, whatever its name"), "unreadable"),
    "half a video": (lambda path: truncate(path), "unreadable"),  # its index stood at the end
    "a video without its first half": (lambda path: path.write_bytes(path.read_bytes()[1000:]), "unreadable"),
    "sound only": (_sound, "no_video_stream"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "missing_file"),
    "no file": (lambda path: path.unlink(), "missing_file"),
    "a link out of the folder": (
        lambda path: (path.unlink(), path.symlink_to("/etc/hostname")),
        "path_outside_root",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_is_a_row_with_its_reason_and_stops_nothing(name: str, home: Path) -> None:
    spoil, rule = FILES[name]
    spoil(home / "videos" / "c1.mp4")
    run = home / "new"

    assert call("ingest", home / "clips.csv", "--videos", home / "videos", "--out", run) == 0
    for stage in ("probe", "score", "filter"):
        assert call(stage, run) == 0

    rows = {row["clip_id"]: row for row in table.scan(run, "filter").collect().iter_rows(named=True)}
    assert rows["c1"]["reject_rule"] == rule
    assert rows["c1"]["reject_value"]
    assert [name for name, row in rows.items() if row["is_kept"]] == ["c0", "c2", "c3"]


ROWS: dict[str, tuple[list[str], str]] = {
    "a duplicate id": ([line("c0.mp4"), line("c0.mp4", "again")], "duplicate_id"),
    "an empty caption": ([line("c0.mp4", "  ")], "empty_caption"),
    "a path out of the folder": ([line("../clips.csv")], "path_outside_root"),
    "a frame rate that is no number": ([line("c0.mp4", fps="fast")], "bad_value"),
    "a file that is not there": ([line("none.mp4")], "missing_file"),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_bad_row_keeps_its_place_and_says_why(name: str, home: Path) -> None:
    lines, problem = ROWS[name]
    write_csv(home / "bad.csv", *lines, line("c2.mp4"))

    assert call("ingest", home / "bad.csv", "--videos", home / "videos", "--out", home / "new") == 0

    problems = table.scan(home / "new", "ingest").collect()["ingest_problem"].to_list()
    assert problem in problems
    assert problems.count(None) >= 1


def test_a_disk_that_fills_ends_with_one_line_and_the_run_resumes_later(home: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, 4_000))

    command = [sys.executable, "-m", "vidcurate", "build-shards", "run", "--out", "new", "--workers", "1"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    full = subprocess.run(
        command,
        cwd=home,
        capture_output=True,
        text=True,
        preexec_fn=small_files,
        env=environment,
        check=False,
    )
    left = sorted(path.name for path in (home / "new").glob("*.tar")) if (home / "new").exists() else []
    again = subprocess.run(command, cwd=home, capture_output=True, text=True, env=environment, check=False)

    assert full.returncode == 1
    assert full.stderr.startswith("error: ")
    assert len(full.stderr.strip().splitlines()) == 1
    assert left == []
    assert again.returncode == 0
    assert (home / "new" / "index.parquet").exists()


def test_there_are_at_least_twenty_five_bad_inputs() -> None:
    assert len(REQUESTS) + len(FILES) + len(ROWS) >= 40
