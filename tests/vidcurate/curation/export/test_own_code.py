"""Exports read by the dataset code of the trainers themselves (`own_readers`)."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.vidcurate.curation.export import readers
from tests.vidcurate.curation.export.captioned_clips import EVERY, EVERY_ON_ONE_LINE, exported
from tests.vidcurate.curation.export.fitted_clips import ONE_LINE, expected
from vidcurate.curation.export.trainers.registry import TRAINERS

# `make test-engines` installs tests/trainers.txt here; finetrainers needs an older `datasets`.
pytestmark = pytest.mark.engine
PACKAGES = Path(sys.prefix) / "trainers"
OWN_PACKAGES = {
    "cosmos-predict2": [PACKAGES],
    "diffsynth": [PACKAGES],
    "fastvideo": [PACKAGES],
    "finetrainers": [PACKAGES / "datasets3", PACKAGES],
    "simpletuner": [PACKAGES],
}
EVERY_CAPTION = {"fastvideo": EVERY, "simpletuner": EVERY_ON_ONE_LINE}


Found = dict[str, dict[str, list[dict[str, Any]]]]


@pytest.fixture(scope="session", autouse=True)
def packages() -> None:
    """Skip before anything is exported."""
    if not all(path.is_dir() for paths in OWN_PACKAGES.values() for path in paths):
        pytest.skip("the trainers' packages are not installed")


@pytest.fixture(scope="module")
def read_by_own_code(
    fitted: Path, as_they_are: Path, captioned: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Found]:
    """Return a function that gives {export: {fold: rows}} as a trainer's package reads all of its exports.

    To import a package takes up to ten seconds, so one process reads them all.
    """
    exported(captioned, "out")

    @functools.cache
    def read(name: str) -> Found:
        outs = [fitted, as_they_are, *([captioned / "out"] if name in EVERY_CAPTION else [])]
        words = [Path(__file__).with_name("own_readers.py"), name, *outs]
        found: Found = json.loads(
            run_with_packages(OWN_PACKAGES[name], words, tmp_path_factory.mktemp("home"))
        )
        return found

    return read


def run_with_packages(packages: list[Path], words: list[str | Path], folder: Path) -> str:
    """Return what Python prints for the words, in a process of its own that imports these packages."""
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
    fitted: Path, as_they_are: Path, read_by_own_code: Callable[[str], Found], name: str
) -> None:
    found = read_by_own_code(name)

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


@pytest.mark.parametrize("name", EVERY_CAPTION)
def test_the_trainers_own_code_reads_every_caption(
    captioned: Path, read_by_own_code: Callable[[str], Found], name: str
) -> None:
    rows = read_by_own_code(name)[str(captioned / "out")]["train"]

    assert {Path(row["path"]).stem: row["captions"] for row in rows} == EVERY_CAPTION[name]
