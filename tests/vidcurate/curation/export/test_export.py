"""The export folder: what is written equals what was planned; whole or absent; resumed; refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.vidcurate.curation.export import clip_runs, readers
from tests.vidcurate.curation.export.exported import WAN, exported, of, written
from vidcurate.cli import main as cli
from vidcurate.curation.clip_table import table
from vidcurate.curation.export import record, stage
from vidcurate.curation.export.clips import ExportSpec, plan
from vidcurate.curation.model_fit.fit_clip import fit_clip
from vidcurate.curation.model_fit.models import MODELS
from vidcurate.errors import InputError, StageError
from vidcurate.storage import lock

CODE = """
import sys
from pathlib import Path
from vidcurate.curation.export.clips import ExportSpec
from vidcurate.curation.export.stage import run_export
folder, out, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
def reported(done, total, unit):
    print(done, flush=True)
run_export(folder / "run", out, ["musubi", "hf", "simpletuner"], ExportSpec(model="wan2.1"),
           videos=folder / "videos", num_workers=workers, progress=reported)
print("end", flush=True)
"""
TRAINERS = ["hf", "musubi", "simpletuner"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    clip_runs.make_run(folder)
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, str]:
    stage.run_export(folder / "run", folder / "out", TRAINERS, WAN, videos=folder / "videos")
    return of(folder / "out")


def test_what_is_written_is_what_fit_says_clip_by_clip(folder: Path, whole: dict[str, str]) -> None:
    rows = table.scan(folder / "run", "split").collect().to_dicts()
    found = written(folder / "out")

    for row in rows:
        facts = {name: row[name] for name in ("width", "height", "fps", "num_frames", "duration_seconds")}
        fit = fit_clip(MODELS["wan2.1"], **facts)
        if row["is_kept"] and row["caption"].strip() and fit.reason is None:
            clip = found.pop(row["clip_id"])
            path = folder / "out" / row["fold"] / f"{clip['key']}.mp4"
            assert readers.probe(path) == (fit.num_frames, fit.fps, fit.width, fit.height)
    assert found == {}


@pytest.mark.parametrize("name", ["ltx2", "wan2.2", "stdit3"])
def test_other_models_are_written_as_fit_says(folder: Path, tmp_path: Path, name: str) -> None:
    videos = folder / "videos"
    if name == "stdit3":
        with pytest.raises(StageError, match=r"none of its 11 kept clips can be .* fold train .*too_short 9"):
            exported(folder, "stdit3", ExportSpec(model=name), ["hf"])
        return
    stage.run_export(folder / "run", tmp_path / "out", ["hf"], ExportSpec(model=name), videos=videos)

    for clip in written(tmp_path / "out").values():
        wanted = next(
            one
            for one in plan(folder / "run", ExportSpec(model=name), videos).clips
            if one.key == clip["key"]
        )
        shape = wanted.shape
        assert shape is not None
        assert MODELS[name].is_valid_frame_count(shape.num_frames)
        found = readers.probe(tmp_path / "out" / str(clip["fold"]) / f"{clip['key']}.mp4")
        assert (found[0], *found[2:]) == (shape.num_frames, shape.width, shape.height)
        assert found[1] == pytest.approx(float(shape.fps))


def test_a_clip_that_needs_no_change_is_the_same_file(folder: Path, whole: dict[str, str]) -> None:
    clips = written(folder / "out")

    assert clips["exact"]["how"] == "linked"
    assert (folder / "out/train/exact.mp4").samefile(folder / "videos/exact.mp4")
    assert {clip["how"] for name, clip in clips.items() if name != "exact"} == {"transcoded"}


def test_without_a_model_only_what_trainers_cannot_read_is_changed(folder: Path) -> None:
    summary = exported(folder, "raw", ExportSpec(), ["finetrainers"])
    how = {name: clip["how"] for name, clip in written(folder / "raw").items()}

    assert how == {
        "exact": "linked",
        "faster": "linked",
        "captions": "linked",
        "12.1": "linked",
        "short": "linked",
        "slower": "remuxed",
        "other": "remuxed",
        "turned": "transcoded",
        "inside": "transcoded",
    }
    assert summary.left_out == {"no_caption": 1, "still_image": 1}
    assert readers.probe(folder / "raw/train/turned.mp4")[2:] == (64, 112)
    assert readers.probe(folder / "raw/train/inside.mp4")[0] == 30


def test_the_summary_counts_every_kept_clip_once(folder: Path, whole: dict[str, str]) -> None:
    summary = exported(folder, "out", WAN, TRAINERS)

    assert (summary.clips, summary.clips_kept) == (8, 8)
    assert summary.left_out == clip_runs.LEFT_OUT
    assert sum(summary.by_how.values()) == sum(summary.by_fold.values()) == summary.clips
    assert summary.failed == {}
    (warning,) = summary.warnings  # hf and musubi read each clip whole
    assert warning.startswith("simpletuner: reads 13 frames of every clip")


def test_another_trainer_adds_its_manifest_and_touches_no_clip(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stage.run_export(folder / "run", out, ["musubi"], WAN, videos=folder / "videos")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.mp4")}
    summary = stage.run_export(folder / "run", out, ["ltx"], WAN, videos=folder / "videos")

    assert summary.trainers == ["ltx", "musubi"]
    assert (out / "ltx.train.json").exists()
    assert (out / "musubi.train.toml").exists()
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.mp4")} == before


def test_the_bytes_do_not_depend_on_the_workers(folder: Path, whole: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    stage.run_export(folder / "run", out, TRAINERS, WAN, videos=folder / "videos", num_workers=2)

    assert of(out) == whole


def test_what_cannot_be_exported_is_one_line(folder: Path, whole: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "x").touch()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / record.RECORD).write_text('{"version": 7}')
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    os.mkfifo(tmp_path / "pipe")
    videos = folder / "videos"

    for name, words in (
        ("foreign", "exists and is no export"),
        ("file", "file: is no folder, and an export is one"),
        ("file/out", "file: is no folder, and an export is one"),
        ("pipe", "pipe: is no folder, and an export is one"),
        ("/dev/null", "/dev/null: is no folder, and an export is one"),
        ("dangling", "dangling: is a link to nothing"),
        ("loop", "loop: is a link to nothing"),
        ("link", r"link: is a link to an empty folder. Name the folder itself: .*/empty"),
        ("damaged", "damaged"),
    ):
        with pytest.raises(InputError, match=words):
            stage.run_export(folder / "run", tmp_path / name, ["hf"], WAN, videos=videos)
    with pytest.raises(InputError, match=r"made with --fit wan2.1, this is --fit ltx2"):
        exported(folder, "out", ExportSpec(model="ltx2"), ["hf"])
    with pytest.raises(InputError, match="Add --fit MODEL"):
        exported(folder, "new", ExportSpec(frames=81), ["hf"])
    with pytest.raises(InputError, match="no such video folder"):
        stage.run_export(folder / "run", tmp_path / "new", ["hf"], WAN, videos=tmp_path / "none")
    assert not (folder / "new").exists()
    assert of(folder / "out") == whole


@pytest.mark.parametrize(
    "change",
    [
        {"clips": []},
        {"clips": [1]},
        {"clips": [{"fold": "../..", "key": "x"}]},
        {"failed": None},
        {"trainers": 7},
        {"spec": []},
        {"own_columns": None, "clips": None},
        {"trainers": ["no-such"]},
        {"trainers": "hf"},
        {"left_out": {"\n": "x"}},
    ],
)
def test_a_forged_record_is_one_line(
    folder: Path, whole: dict[str, str], tmp_path: Path, change: dict[str, object]
) -> None:
    shutil.copytree(folder / "out", tmp_path / "out", symlinks=True)
    path = tmp_path / "out" / record.RECORD
    path.write_text(json.dumps(json.loads(path.read_text()) | change))

    with pytest.raises(InputError, match=r"EXPORT.json: damaged"):
        stage.run_export(folder / "run", tmp_path / "out", ["ltx"], WAN, videos=folder / "videos")
    assert not (tmp_path / "out" / "ltx.train.json").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clip_id", "another"),
        ("captions", [["caption", "another"]]),
        ("captions", [["caption", ["a"]]]),
        ("own", {"score": 1e30}),
        ("how", []),
        ("num_frames", 0),
        ("num_frames", 1e30),
        ("width", -64),
        ("height", True),
        ("rate", []),
        ("rate", [24, -1]),
        ("rate", [24, 0]),
        ("size_bytes", None),
    ],
)
def test_a_forged_clip_of_a_record_is_one_line(
    folder: Path, whole: dict[str, str], tmp_path: Path, name: str, value: object
) -> None:
    shutil.copytree(folder / "out", tmp_path / "out", symlinks=True)
    path = tmp_path / "out" / record.RECORD
    found = json.loads(path.read_text())
    found["clips"][0][name] = value
    path.write_text(json.dumps(found))

    with pytest.raises(InputError, match=r"EXPORT.json: damaged"):
        stage.run_export(folder / "run", tmp_path / "out", ["ltx"], WAN, videos=folder / "videos")
    assert not (tmp_path / "out" / "ltx.train.json").exists()


def test_two_exports_of_one_folder_do_not_mix(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with stage._alone(out), pytest.raises(StageError, match="is writing this folder"):
        stage.run_export(folder / "run", out, ["hf"], WAN, videos=folder / "videos")
    assert not out.exists()


def start(folder: Path, out: Path, workers: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", CODE, str(folder), str(out), str(workers)],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def kill_after(child: "subprocess.Popen[str]", clips: int, seconds: float) -> None:
    """Kill the whole session once `clips` are done and `seconds` have passed."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.strip().isdigit() and int(line) >= clips:
            break
    time.sleep(seconds)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()


@pytest.mark.parametrize(
    "number", [*range(3), *(pytest.param(number, marks=pytest.mark.soak) for number in range(3, 23))]
)
def test_killed_and_run_again_the_bytes_are_the_same(
    folder: Path, whole: dict[str, str], tmp_path: Path, number: int
) -> None:
    out = tmp_path / "out"
    kill_after(start(folder, out, 1 + number % 2), 3 * number % 9, 0.013 * (7 * number % 11))
    with lock.exclusive(tmp_path / ".out.lock"):
        pass  # a worker that was just being started dies a moment after its parent

    assert not out.exists() or of(out) == whole
    stage.run_export(folder / "run", out, TRAINERS, WAN, videos=folder / "videos")
    assert of(out) == whole
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_command_writes_tables_as_before_and_names_what_is_wrong(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(folder / "run")
    for words in (
        ["clips.csv"],
        ["clips", "--for", "csv"],
        ["clips.jsonl"],
        ["clips.parquet", "--for", "parquet"],
    ):
        cli.app(args=["export", run, str(tmp_path / words[0]), *words[1:], "--json"], standalone_mode=False)
        assert json.loads(capsys.readouterr().out)["stage"] == "split"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clips.csv", "clips.jsonl", "clips.parquet"]
    assert len(readers.table_rows(tmp_path / "clips.csv")) == len(clip_runs.CLIPS)

    (tmp_path / "taken").mkdir()
    (tmp_path / "taken.csv").mkdir()
    for arguments, text in (
        (["out"], "say for whom"),
        (["out", "--for", "musuby"], "Did you mean musubi?"),
        (["out", "--for", "hf,csv"], "--for csv: unknown trainer"),
        (["taken", "--for", "csv"], r"taken: is a folder. Name the table's file: .* .*/taken/clips.csv"),
        (["taken.csv"], r"taken.csv: is a folder. Name the table's file: .* .*/taken.csv/clips.csv"),
        (["out", "--for", "hf", "--fit", "wan21"], "Did you mean wan2.1?"),
    ):
        with pytest.raises(InputError, match=text.replace("?", r"\?")):
            cli.app(
                args=[
                    "export",
                    run,
                    str(tmp_path / arguments[0]),
                    *arguments[1:],
                    "--videos",
                    str(folder / "videos"),
                ],
                standalone_mode=False,
            )


def test_the_command_prints_the_next_command(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "export",
        str(folder / "run"),
        str(tmp_path / "out"),
        "--for",
        "mochi",
        "--videos",
        str(folder / "videos"),
    ]
    cli.app(args=words, standalone_mode=False)
    text = capsys.readouterr().out
    cli.app(args=[*words, "--json"], standalone_mode=False)

    assert "warning: mochi: trains mochi, and the clips were exported with no --fit." in text
    assert "warning: mochi: reads 3 frames of every clip" in text
    assert "warning: clips have several frame rates" in text
    assert "next, with mochi" in text
    assert "preprocess.bash" in text
    assert json.loads(capsys.readouterr().out)["clips_kept"] == 9
