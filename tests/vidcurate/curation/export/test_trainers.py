"""Every trainer's manifest, read by the rules of that trainer's dataset code (`readers`).

Five trainers' packages can be installed: their own code reads the exports, too (`own_readers`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.vidcurate.curation.export import clip_runs, readers
from vidcurate.curation.export.clips import ExportSpec
from vidcurate.curation.export.stage import run_export
from vidcurate.curation.export.trainers.exported import quoted
from vidcurate.curation.export.trainers.registry import TRAINERS

# Trainers that read a caption from a text file see it on one line; the others as it came with the data.
ONE_LINE = {"finetrainers", "mochi", "cogvideo", "cosmos-predict2", "simpletuner"}
# A folder's name for the shell, TOML and YAML to trip over.
HOSTILE = '-it\'s "$(touch pwned)" \\ `x` # {a: b}\x7f\x85\u2028\u202e☂\n%s'
# `make test-engines` installs tests/trainers.txt here; finetrainers needs an older `datasets`.
PACKAGES = Path(sys.prefix) / "trainers"
OWN_PACKAGES = {
    "cosmos-predict2": [PACKAGES],
    "diffsynth": [PACKAGES],
    "fastvideo": [PACKAGES],
    "finetrainers": [PACKAGES / "datasets3", PACKAGES],
    "simpletuner": [PACKAGES],
}
READERS = {name: getattr(readers, name.replace("-", "_")) for name in TRAINERS}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export with every trainer's manifest, fitted to Wan 2.1."""
    folder = tmp_path_factory.mktemp("for all") / HOSTILE
    run = clip_runs.make_run(folder)
    run_export(run, folder / "out", sorted(TRAINERS), ExportSpec(model="wan2.1"), videos=folder / "videos")
    return folder / "out"


@pytest.fixture(scope="module")
def as_they_are(fitted: Path) -> Path:
    """Export of the same clips without a model."""
    folder = fitted.parent
    run_export(folder / "run", folder / "raw", sorted(TRAINERS), ExportSpec(), videos=folder / "videos")
    return folder / "raw"


def expected(out: Path, fold: str, *, one_line: bool) -> readers.Read:
    found = {}
    for number, (name, _, _, _, _, changes) in enumerate(clip_runs.CLIPS):
        stem = str(changes.get("clip_id", name.partition(".")[0])).replace(".", "_")
        match = list((out / fold).glob(f"{stem}*.mp4"))
        if match:
            caption = changes.get("caption", f"clip {number}, {name}")
            found[match[0].resolve()] = [" ".join(caption.split()) if one_line else caption]
    return found


@pytest.mark.parametrize("name", sorted(TRAINERS))
@pytest.mark.parametrize("fold", ["train", "validation"])
def test_a_trainer_reads_every_clip_with_its_caption(fitted: Path, name: str, fold: str) -> None:
    read = READERS[name](fitted, fold)

    assert len(read) == (7 if fold == "train" else 1)
    assert read == expected(fitted, fold, one_line=name in ONE_LINE)
    for path in read:
        num_frames, rate, width, height = readers.probe(path)
        assert rate == 16
        assert num_frames % 4 == 1
        assert width % 16 == height % 16 == 0


@pytest.mark.parametrize("name", sorted(TRAINERS))
def test_clips_without_a_model_are_read_too(as_they_are: Path, name: str) -> None:
    read = READERS[name](as_they_are, "train")

    assert len(read) == 8  # the short one, too
    assert {round(readers.probe(path)[1]) for path in read} == {12, 16, 24, 25, 30}


@pytest.mark.parametrize("name", sorted(TRAINERS))
def test_the_next_commands_run_and_pass_whole_paths(fitted: Path, name: str, tmp_path: Path) -> None:
    script = fitted / TRAINERS[name].script
    for program in ("accelerate", "bash", "deepspeed", "python", "simpletuner", "torchrun", "uv", "show"):
        (tmp_path / program).write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
        (tmp_path / program).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "VAE": "v", "MODEL": "m", "GEMMA": "g"}
    done = subprocess.run(
        [script, "show"], env=environment, capture_output=True, text=True, check=True, timeout=20
    )

    paths = [line.partition("=")[2] if line.startswith("--") else line for line in done.stdout.split("\0")]
    passed = [Path(path) for path in paths if path.startswith(str(fitted))]
    assert passed or name in ("diffusion-pipe", "hf")
    text = script.read_text().replace("'\"'\"'", "'")
    assert str(fitted) in text or quoted(str(fitted))[1:-1] in text or name == "hf"
    for path in passed:
        assert path.exists() or path.parent.name == "automodel" or path.name == "mochi_prepared", path


def test_a_folder_of_a_trainer_holds_nothing_that_another_takes_for_a_clip(fitted: Path) -> None:
    for fold in ("train", "validation"):
        ends = {path.suffix for path in (fitted / fold).iterdir()}
        assert ends == {".mp4", ".txt", ".json", ".parquet"}
        texts = {path.stem for path in (fitted / fold).glob("*.txt")}
        assert texts == {path.stem for path in (fitted / fold).glob("*.mp4")}


def test_the_page_lists_every_trainer() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "exports.md").read_text(encoding="utf-8")
    for name, trainer in TRAINERS.items():
        assert f"| `{name}` | {trainer.title} |" in page


def test_the_hubs_own_package_reads_the_splits_beside_all_other_files(
    fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    raw = datasets.Video(decode=False)

    for fold in ("train", "validation"):
        whole = datasets.load_dataset(str(fitted), split=fold, cache_dir=str(tmp_path))
        stream = datasets.load_dataset(str(fitted), split=fold, streaming=True)
        for rows in (whole.cast_column("video", raw), stream.cast_column("video", raw)):
            read = {Path(row["video"]["path"]).resolve(): [row["text"]] for row in rows}
            assert read == expected(fitted, fold, one_line=False)


def read_by_own_code(name: str, outs: list[Path], folder: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return {export: {fold: rows}} as the trainer's package reads it."""
    script = Path(__file__).with_name("own_readers.py")
    found: dict[str, dict[str, list[dict[str, Any]]]] = json.loads(
        run_with_packages(OWN_PACKAGES[name], [script, name, *outs], folder)
    )
    return found


def run_with_packages(packages: list[Path], words: list[str | Path], folder: Path) -> str:
    """Return what Python prints for the words, in a process of its own that imports these packages."""
    if not all(path.is_dir() for path in packages):
        pytest.skip("the trainers' packages are not installed")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *words],
        env=os.environ | {
            "PYTHONPATH": os.pathsep.join(str(path) for path in packages),
            "HF_HOME": str(folder),
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("name", sorted(OWN_PACKAGES))
def test_the_trainers_own_code_reads_every_clip(
    fitted: Path, as_they_are: Path, tmp_path: Path, name: str
) -> None:
    found = read_by_own_code(name, [fitted, as_they_are], tmp_path)

    for out in (fitted, as_they_are):
        record = json.loads((out / "EXPORT.json").read_text())
        fewest = min(clip["num_frames"] for clip in record["clips"])
        for fold in ("train", "validation"):
            rows = {Path(row["path"]).resolve(): row for row in found[str(out)][fold]}
            read = {path: row["captions"] for path, row in rows.items()}
            assert read == expected(out, fold, one_line=name in ONE_LINE)
            assert len(rows) == len(found[str(out)][fold])
            for path, row in rows.items():
                num_frames, rate, width, height = readers.probe(path)
                assert row.get("num_frames", num_frames) == num_frames
                assert abs(row.get("fps", rate) - rate) < 0.01
                if name in ("finetrainers", "simpletuner"):
                    assert row["pixels"] == [num_frames, height, width]
                else:
                    frames = TRAINERS[name].frames_read(fewest)
                    assert row["pixels"][0] == frames
                    assert row["pixels"][1:] == [64, 96]


def test_the_trainers_own_code_takes_the_arguments_of_the_loader(fitted: Path, tmp_path: Path) -> None:
    code = (
        "import importlib, inspect, sys, yaml;"
        "loader = yaml.safe_load(open(sys.argv[1]))['data']['dataloader'];"
        "module, _, name = loader.pop('_target_').rpartition('.');"
        "build = getattr(importlib.import_module(module), name);"
        "print(inspect.signature(build).bind(**loader).arguments['model_type'])"
    )

    assert run_with_packages([PACKAGES], ["-c", code, fitted / "automodel.yaml"], tmp_path) == "wan\n"
