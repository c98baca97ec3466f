"""The commands about rules: their answers, and the exit code that says that too much failed."""

import json
import os
import re
import shlex
import zipfile
from pathlib import Path

import polars as pl
import pytest

from tests.forked_runs import Forks
from tests.vidcurate.curation.filter.test_filter import clip, scored
from vidcurate.cli.common import print_summary, screen
from vidcurate.cli.main import main
from vidcurate.curation.demo_data import write as demo_data_write
from vidcurate.curation.report import inspect_clip


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Return (exit code, stdout, stderr) of a command."""
    try:
        main([str(one) for one in arguments])
        code = 0
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    reported = capsys.readouterr()
    return code, reported.out, reported.err


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return scored(
        tmp_path / "run",
        *(clip(f"c{n}", noun_count=n) for n in range(9)),
        clip("x", probe_status="truncated"),
    )


def test_a_filter_above_its_limit_answers_and_leaves_with_3(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "filter", run, "--max-failure-share", "0.05", "--json")

    assert code == 3
    assert json.loads(out)["rows_rejected"] == 1
    assert err.splitlines()[-1].startswith(
        "error: 1 of 10 rows (10 %) are missing or broken; max_failure_share"
    )
    assert (run / "filter.parquet").exists()
    assert call(capsys, "filter", run, "--max-failure-share", "0.1", "--json")[0] == 0
    assert call(capsys, "filter", run, "--set", "min_noun_count=8", "--max-rejected-share", "0.5")[0] == 3


@pytest.mark.parametrize("name", ["a[/]b", "[red]a", ":dog: \x1b[2J\n\u202e"])
def test_names_and_captions_of_others_are_printed_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run = scored(tmp_path / "run", clip(name))
    shown = name.replace("\x1b", r"\x1b").replace("\n", r"\n").replace("\u202e", r"\u202e")

    code, out, err = call(capsys, "inspect", run, name)
    assert (code, err) == (0, "")
    assert f"clip id  {shown}" in out
    screen(is_wide=False).print(inspect_clip.render({"ingest": {"caption": f"A {name} [/bold]"}}))
    assert f"A {shown} [/bold]" in (shown_caption := capsys.readouterr().out)
    assert "\x1b" not in out + shown_caption
    code, out, err = call(capsys, "inspect", run, f"{name}?")
    assert (code, out) == (2, "")
    assert err.rstrip("\n").isprintable()
    print_summary({"kept": name, "largest": [{"kept": name}]}, title=name, to_json=False)
    assert [line.strip() for line in capsys.readouterr().out.splitlines() if shown in line] == [
        shown,
        f"kept  {shown}",
        shown,
    ]


def test_a_curation_stops_behind_the_stage_that_failed_too_much_and_resumes_from_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo_data_write.write_demo_data(tmp_path / "data", clips=12)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"run: {tmp_path / 'run'}\n"
        f"ingest: {{metadata: {tmp_path / 'data/captions.csv'}, videos: {tmp_path / 'data/videos'}}}\n"
        "score: {noun_engine: builtin}\nsplit: {levels: 1}\ncard: {licences: {openvid: CC-BY-4.0}}\n"
    )

    code, _, err = call(capsys, "curate", recipe, "--set", "max_failure_share=0.01", "--json")

    assert code == 3
    assert "are missing or broken; max_failure_share allows 1 %" in err
    assert (tmp_path / "run/probe.parquet").exists()
    assert not (tmp_path / "run/score.parquet").exists()
    code, out, _ = call(capsys, "curate", recipe, "--set", "max_failure_share=1", "--json")
    assert code == 0
    assert json.loads(out)["probe"]["up_to_date"]
    assert "| CC-BY-4.0 |" in (tmp_path / "run/card.md").read_text()
    assert (tmp_path / "run/levels.yaml").exists()

    code, _, err = call(capsys, "probe", tmp_path / "run", "--max-failure-share", "0.02", "--json")
    assert code == 3
    assert "max_failure_share allows 2 %" in err


def test_the_answers_of_the_commands_can_be_read_by_machines(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(capsys, "filter", run, "--set", "max_noun_count=5", "--json")[0] == 0
    with zipfile.ZipFile(tmp_path / "part.zip", "w") as archive:
        for number in range(9):
            archive.writestr(f"c{number}.mp4", f"video {number}")
        archive.writestr("x.mp4", "video x")

    found = json.loads(call(capsys, "what-if", run, "--set", "max_noun_count=7", "--json")[1])
    swept = json.loads(call(capsys, "what-if", run, "--sweep", "max_noun_count=5,7", "--json")[1])
    reported = json.loads(call(capsys, "ledger", run, tmp_path / "out.csv", "--check", "--json")[1])
    usual = ["--parts", tmp_path / "part.zip", "--out", tmp_path / "plan.csv", "--fetch", tmp_path / "got"]
    code, out, _ = call(capsys, "fetch-plan", run, *usual, "--json")
    card = json.loads(call(capsys, "card", run, "--json")[1])
    presets = json.loads(call(capsys, "presets", "--json")[1])

    assert (found["kept"]["clips"], found["newly_kept"]) == (8, 2)
    assert [point["clips"] for point in swept["points"]] == [6, 8]
    assert reported["check"]["rows_rejected"] == 4
    assert pl.read_csv(tmp_path / "out.csv")["clip_id"].to_list() == ["c6", "c7", "c8", "x"]
    assert code == 0
    assert json.loads(out)["files_fetched"] == 6
    assert (tmp_path / "got/c3.mp4").read_text() == "video 3"
    assert card["rows_kept"] == 6
    assert "lambda" in presets


def test_a_fetch_that_finds_other_bytes_leaves_with_3(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(tmp_path / "part.zip", "w") as archive:
        archive.writestr("c0.mp4", "a" * 99)
        archive.writestr("c1.mp4", "b" * 99)
    data = (tmp_path / "part.zip").read_bytes().replace(b"b" * 99, b"b" * 98 + b"c")
    (tmp_path / "part.zip").write_bytes(data)
    places = ["--parts", tmp_path / "part.zip", "--out", tmp_path / "p.csv", "--fetch", tmp_path]
    usual = ["fetch-plan", run, *places]

    code, out, err = call(capsys, *usual, "--json")

    assert code == 3
    assert json.loads(out)["failed"][0].startswith("c1.mp4: its CRC-32 is")
    assert "1 of 2 rows (50 %) do not match their zip directory; max_failure_share allows 0 %" in err
    assert (tmp_path / "c0.mp4").exists()
    assert not (tmp_path / "c1.mp4").exists()
    assert call(capsys, *usual, "--max-failure-share", "0.9")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["presets", "nothing"], "nothing: unknown preset. Presets: lambda"),
        (["what-if", "RUN", "--set", "limits.beauty.min=1"], "limits.beauty needs the column beauty"),
        (["what-if", "RUN", "--sweep", "min_height"], "--sweep min_height: write key=1,2,3"),
        (["ledger", "RUN"], "no ledger. Run `vidcurate filter"),
        (["fetch-plan", "RUN", "--parts", "none.zip"], "none.zip: cannot be read"),
        (
            ["fetch-plan", "RUN", "--parts", "none.zip", "--out", "plan.txt"],
            "plan.txt: a plan is a .csv file",
        ),
        (["card", "RUN", "--set", "licence=MIT"], "licence is not a setting. Did you mean licences?"),
    ],
)
def test_a_wrong_request_is_one_line_and_leaves_with_2(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = call(capsys, *(str(run) if one == "RUN" else one for one in arguments))

    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


# A command whose files may have so many bytes; what it says goes through a pipe, which has no such limit.
LIMITED = """
import os, resource, sys
from vidcurate.cli.main import main

reported, end = os.pipe()
stderr = os.dup(2)
os.dup2(end, 2)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
try:
    main({words})
finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    sys.stderr.flush()
    os.set_blocking(reported, False)
    os.write(end, b"\\n")  # so that there is something to read
    os.write(stderr, os.read(reported, 1 << 16))
"""


@pytest.mark.parametrize("command", ["probe", "filter", "export"])
def test_a_full_disk_is_one_line_and_the_same_command_continues(
    forks: Forks, tmp_path: Path, command: str
) -> None:
    """RLIMIT_FSIZE fails a write as a full disk does: in the middle of the file."""
    demo_data_write.write_demo_data(tmp_path / "data", clips=12)

    def start(limit: int, *words: object) -> tuple[int, str]:
        """Return (exit code, stderr)."""
        reported = tmp_path / "reported.txt"
        reported.unlink(missing_ok=True)
        program = LIMITED.format(limit=limit, words=[str(word) for word in words])
        (code,) = forks.start(["-c", program], reported=reported).codes()
        return code, reported.read_text().removesuffix("\n")

    run, big = tmp_path / "run", 1 << 30
    ingest = ["ingest", tmp_path / "data/captions.csv", "--videos", tmp_path / "data/videos", "--out", run]
    assert start(big, *ingest)[0] == 0
    words = [command, run, *([tmp_path / "table.parquet"] if command == "export" else [])]
    if command == "filter":
        assert start(big, "probe", run)[0] == 0
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}

    for limit in (16, 1500):
        code, reported = start(limit, *words)
        assert code == 1, reported
        (line,) = reported.splitlines()
        assert re.fullmatch(r"error: .+ cannot be written \((File too large|its last bytes .+)\)\.", line)
        after = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
        assert {name: after[name] for name in before if name != "costs.jsonl"} == {
            name: data for name, data in before.items() if name != "costs.jsonl"
        }
        assert not [path for path in run.rglob("*") if path.name.endswith(".partial")]

    assert start(big, *words)[0] == 0
    assert start(big, "inspect", run)[0] == 0


class Panic(BaseException):
    """As polars raises a panic of its Rust code: not an Exception."""


@pytest.mark.parametrize("error", [KeyError("a\nb"), Panic("rust"), RecursionError(), MemoryError()])
def test_an_error_that_nobody_foresaw_is_one_line_and_a_hint(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("vidcurate.curation.filter.stage.run_filter", fail)

    code, out, err = call(capsys, "filter", run)

    assert (code, out) == (1, "")
    (line,) = [line for line in err.splitlines() if line.startswith("error")]
    assert "Traceback" not in err
    assert line.startswith(f"error: unforeseen {type(error).__name__}")
    assert "(test_analyse.py, line " in line
    assert "`vidcurate --traceback COMMAND …`" in line
    with pytest.raises(type(error)):
        main(["--traceback", "filter", str(run)])


def test_a_folder_whose_name_is_not_utf8_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No table can hold its name: `ingest --out` and `probe --videos` ended as a fault of vidcurate."""
    folder = tmp_path / os.fsdecode(b"d\xff")
    folder.mkdir()
    code, out, err = call(capsys, "ingest", folder, "--out", tmp_path / "run")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "is not UTF-8, so no table can name it. Rename it." in err
    assert not (tmp_path / "run").exists()

    monkeypatch.chdir(folder)
    assert call(capsys, "ingest", ".", "--out", "run")[0] == 2


def test_paths_that_repeat_the_folder_of_videos_bring_the_command_that_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c"):
        path = tmp_path / "data" / "videos" / "part" / f"{name}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"video")
    table = tmp_path / "captions.csv"

    def hint(prefix: str, folder: str) -> str:
        rows = "".join(f"{prefix}{name}.mp4,text\n" for name in ("a", "b", "c"))
        table.write_text(f"video_path,caption\n{rows}")
        code, _, err = call(capsys, "ingest", "captions.csv", "--videos", folder, "--out", "run")
        assert code == 0
        return "".join(line for line in err.splitlines() if line.startswith("hint: "))

    helps = "hint: not below '{}', but below '{}': 3 files of the table. Run `vidcurate ingest captions.csv "
    helps += "--videos {} "
    assert hint("videos/part/", "data/videos").startswith(helps.format("data/videos", "data", "data"))
    assert hint("part/", "data/videos/part").startswith(
        helps.format("data/videos/part", "data/videos", "data/videos")
    )
    below = str(tmp_path / "data" / "videos")
    assert hint("part/", "data").startswith(helps.format("data", below, below))
    assert hint("part/", "data/videos") == ""
    assert hint("elsewhere/", "data/videos") == ""

    own = tmp_path / "my {table}.csv"
    own.write_text("file,words\nvideos/part/a.mp4,text\n")
    given = ["--map", "video=file", "--map", "caption=words", "--out", "run"]
    _, _, err = call(capsys, "ingest", own.name, "--videos", "data/videos", *given)
    assert "hint: not below 'data/videos', but below 'data': 1 file of the table. Run `" in err
    words = shlex.split(err.partition("Run `")[2].partition("`.")[0])
    assert words[1:5] == ["ingest", own.name, "--videos", "data"]
    code, _, err = call(capsys, *words[1:])
    assert (code, "hint" in err) == (0, False)

    hint("videos/part/", "data/videos")  # the table of that name once more
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("run: other\ningest: {metadata: captions.csv, videos: data/videos}\n")
    _, _, err = call(capsys, "curate", "recipe.yaml", "--until", "ingest")
    assert [line for line in err.splitlines() if line.startswith("hint: ")] == [
        "hint: not below 'data/videos', but below 'data': 3 files of the table. "
        "Run `vidcurate curate recipe.yaml --set ingest.videos=data`."
    ]
