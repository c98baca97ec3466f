"""The export folder: what is written equals what was planned; whole or absent; resumed; refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest

from tests import shard_runs
from tests.vidcurate.curation.export import clip_runs, readers
from vidcurate.cli import main as cli
from vidcurate.curation.clip_table import table
from vidcurate.curation.export import record, stage
from vidcurate.curation.export.clips import ExportSpec, plan
from vidcurate.curation.fit.fit_clip import fit_clip
from vidcurate.curation.fit.models import MODELS
from vidcurate.errors import InputError, StageError, StorageError
from vidcurate.storage import lock

WAN = ExportSpec(model="wan2.1")
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


def of(out: Path) -> dict[str, str]:
    """Return the digests of all files, without what depends on the folder's own path."""
    ends = (".sh", ".toml", ".jsonl", "simpletuner.json")
    return {name: digest for name, digest in shard_runs.contents(out).items() if not name.endswith(ends)}


def exported(folder: Path, out: str, spec: ExportSpec, names: list[str]) -> stage.ExportSummary:
    return stage.run_export(folder / "run", folder / out, names, spec, videos=folder / "videos")


def written(out: Path) -> dict[str, dict[str, object]]:
    found = json.loads((out / record.RECORD).read_text(encoding="utf-8"))
    return {clip["clip_id"]: clip for clip in found["clips"]}


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


def test_a_damaged_clip_is_listed_and_the_others_are_written(tmp_path: Path) -> None:
    clip_runs.make_run(tmp_path, lambda name: name in ("exact.mp4", "faster.mp4", "slower.mkv"))
    data = (tmp_path / "videos/slower.mkv").read_bytes()
    (tmp_path / "videos/slower.mkv").write_bytes(data[: len(data) // 2])
    (tmp_path / "videos/faster.mp4").unlink()
    summary = exported(tmp_path, "out", WAN, ["hf"])

    assert summary.clips == 1
    assert sum(summary.failed.values()) == 2
    found = json.loads((tmp_path / "out" / record.RECORD).read_text())
    assert [(one["clip_id"], one["kind"]) for one in found["failed"][:1]] == [("faster", "missing")]
    assert [path.name for path in (tmp_path / "out/train").glob("*.txt")] == ["exact.txt"]


def test_a_table_that_promises_too_much_is_found_after_writing(tmp_path: Path) -> None:
    clip_runs.make_run(tmp_path, lambda name: name in ("exact.mp4", "faster.mp4"))
    rows = table.scan(tmp_path / "run", "split").collect().to_dicts()
    rows[1] |= {"num_frames": 90, "duration_seconds": 3.0}
    shard_runs.write_table(tmp_path / "run", rows)
    exported(tmp_path, "out", WAN, ["hf"])

    (problem,) = json.loads((tmp_path / "out" / record.RECORD).read_text())["failed"]
    assert problem["kind"] == "wrong_export"
    assert "frames of 96x64 at 16 frames/s were written, 45 frames" in problem["problem"]


def test_what_cannot_be_exported_is_one_line(folder: Path, whole: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "x").touch()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / record.RECORD).write_text('{"version": 7}')
    (tmp_path / "file").touch()
    videos = folder / "videos"

    for name, words in (
        ("foreign", "exists and is no export"),
        ("file", "EXPORT.json"),
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


def test_a_changed_caption_or_clip_is_another_export(tmp_path: Path) -> None:
    clip_runs.make_run(tmp_path, lambda name: name in ("exact.mp4", "dots.mp4"))
    exported(tmp_path, "out", WAN, ["hf"])
    (tmp_path / "out/train/exact.mp4").unlink()
    with pytest.raises(StorageError, match=r"exact.mp4: missing or changed since the export"):
        exported(tmp_path, "out", WAN, ["musubi"])
    rows = table.scan(tmp_path / "run", "split").collect().to_dicts()
    rows[0]["caption"] = "another"
    shard_runs.write_table(tmp_path / "run", rows)
    with pytest.raises(InputError, match="made from other clips, captions or files"):
        exported(tmp_path, "out", WAN, ["musubi"])


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

    for arguments, text in (
        (["out"], "say for whom"),
        (["out", "--for", "musuby"], "Did you mean musubi?"),
        (["out", "--for", "hf,csv"], "--for csv: unknown trainer"),
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


@pytest.mark.soak
def test_fit_agrees_with_what_is_written_on_200_clips(tmp_path: Path) -> None:
    _agrees(tmp_path, 200)


def test_fit_agrees_with_what_is_written_on_generated_clips(tmp_path: Path) -> None:
    _agrees(tmp_path, 12)


def _agrees(folder: Path, count: int) -> None:
    """Write `count` clips of many rates, sizes and lengths; every one comes out as `fit` has said."""
    from vidcurate.curation.clip_table import schema
    from vidcurate.media import encode

    rates = [8.0, 12.0, 15.0, 16.0, 24000 / 1001, 24.0, 25.0, 30000 / 1001, 30.0, 48.0, 60000 / 1001]
    rows = []
    (folder / "videos").mkdir()
    for number in range(count):
        fps, frames = rates[number % len(rates)], 5 + 7 * number % 60
        height, width = 16 + 2 * (number * 5 % 24), 16 + 2 * (number * 11 % 24)
        name = f"{number}.{('mp4', 'mkv', 'mov')[number % 3]}"
        encode.write_video(
            folder / "videos" / name, clip_runs.frames_of(number, frames, height, width), fps=fps
        )
        rows.append(
            {
                "clip_id": str(number), "sample_key": schema.sample_key(str(number)), "source_id": name,
                "video_path": name, "caption": f"clip {number}", "width": width, "height": height,
                "fps": fps, "num_frames": frames, "duration_seconds": frames / fps, "probe_status": "ok",
                "integrity_level": "full", "is_kept": True, "level": 1, "fold": "train",
            }
        )  # fmt: skip
    shard_runs.write_table(folder / "run", rows)
    for model in ("wan2.1", "hunyuan1.5", "ltx2"):
        summary = exported(folder, model, ExportSpec(model=model), ["hf"])
        taken = {}
        for row in rows:
            fit = fit_clip(
                MODELS[model],
                **{name: row[name] for name in ("width", "height", "fps", "num_frames", "duration_seconds")},
            )
            if fit.reason is None:
                taken[row["clip_id"]] = (fit.num_frames, fit.width, fit.height, fit.fps)
        found = {
            name: (clip["num_frames"], clip["width"], clip["height"], float(Fraction(*clip["rate"])))  # type: ignore[call-overload]
            for name, clip in written(folder / model).items()
        }
        assert found == taken
        assert summary.failed == {}


SOME_REAL = (
    "bbb_176x144_h263.3gp",
    "bbb_642x642_vp9.webm",
    "media3_rot270.mp4",
    "media3_portrait.mp4",
    "media3_sample.flv",
)


@pytest.mark.parametrize(
    ("model", "only"),
    [
        pytest.param("wan2.1", SOME_REAL, id="some"),
        pytest.param("wan2.1", (), id="all at 16 frames/s", marks=pytest.mark.soak),
        pytest.param("ltx2", (), id="all at their rate", marks=pytest.mark.soak),
    ],
)
def test_real_clips_are_written_as_fit_says(
    shared: Path, tmp_path: Path, only: tuple[str, ...], model: str
) -> None:
    from vidcurate.curation.ingest.spec import IngestSpec
    from vidcurate.curation.ingest.stage import run_ingest
    from vidcurate.curation.probe.stage import ProbeSpec, run_probe

    (tmp_path / "videos").mkdir()
    for path in (shared / "data" / "clips").iterdir():
        if not only or path.name in only:
            shutil.copyfile(path, tmp_path / "videos" / path.name)
    captions = [f"{path.name},a clip" for path in (tmp_path / "videos").iterdir()]
    (tmp_path / "captions.csv").write_text("\n".join(["video,caption", *sorted(captions)]) + "\n")
    run_ingest(tmp_path / "run", IngestSpec(metadata=tmp_path / "captions.csv", videos=tmp_path / "videos"))
    run_probe(tmp_path / "run", ProbeSpec(videos=tmp_path / "videos"))
    spec = ExportSpec(model=model, frames=9)
    summary = stage.run_export(
        tmp_path / "run", tmp_path / "out", ["hf"], spec, videos=tmp_path / "videos", num_workers=2
    )

    planned = {clip.key: clip.shape for clip in plan(tmp_path / "run", spec, tmp_path / "videos").clips}
    clips = written(tmp_path / "out").values()
    for clip in clips:
        path = tmp_path / "out" / str(clip["fold"]) / f"{clip['key']}.mp4"
        found, shape = readers.probe(path), planned[str(clip["key"])]
        assert shape is not None
        assert (found[0], *found[2:]) == (9, shape.width, shape.height)
        assert found[1] == pytest.approx(float(shape.fps))
    assert len(clips) >= (len(only) if only else 45)
    assert set(summary.failed) <= {"cannot_cut", "corrupt_frame"}  # the clips that are damaged on purpose
