"""The wheel is complete: built from the tracked files and installed elsewhere, it curates and trains."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FEW_STEPS = [
    word
    for setting in (
        "stages.0.steps=2",
        "stages.0.data.buckets.table.24px={8: [1.0, 4]}",
        "stages.1.steps=1",
        "stages.1.data.buckets.table.24px={8: [1.0, 4]}",
        "sample=null",
        "loader.max_failure_share=0.5",
    )
    for word in ("--set", setting)
]


def _tracked() -> list[str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git checkout: which files belong to the project is not known")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and os.path.lexists(ROOT / name)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that pip builds from a copy of the tracked files, without a download."""
    if int(metadata.version("setuptools").split(".")[0]) < 77:
        pytest.skip("setuptools is older than 77, which builds the wheel: run `pip install -e '.[dev]'`")
    folder = tmp_path_factory.mktemp("wheel")
    for name in _tracked():
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / "source" / name, follow_symlinks=False)
    build = ["wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist"]
    _run(folder, [sys.executable, "-m", "pip", *build, "./source"])
    (made,) = (folder / "dist").glob("*.whl")
    return made


def _run(folder: Path, words: list[str]) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_wheel_holds_packages_recipes_and_licences_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for path in filter(Path.is_file, (ROOT / "recipes").iterdir()):  # Python leaves a __pycache__ there
            assert archive.read(f"vidcurate/recipe/bundled/{path.name}") == path.read_bytes()
        (described,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        about = archive.read(described).decode()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"vidcurate", "trainer"}
    tracked = [name for name in _tracked() if name.split("/")[0] in ("vidcurate", "trainer")]
    assert {name for name in tracked if not (ROOT / name).is_dir()} <= names
    licences = described.replace("METADATA", "licenses/")
    tables = "vidcurate/curation/caption_scores/noun_tables.LICENSE.txt"
    assert {f"{licences}{name}" for name in ("LICENSE", "NOTICE", tables)} <= names
    assert "License-Expression: Apache-2.0 AND CC-BY-SA-4.0\n" in about


def test_the_installed_wheel_curates_and_trains_in_another_folder(wheel: Path, tmp_path: Path) -> None:
    environment, folder = tmp_path / "environment", tmp_path / "work"
    folder.mkdir()
    _run(tmp_path, [sys.executable, "-m", "venv", "--without-pip", str(environment)])
    bin_folder = environment / "bin"
    python = str(bin_folder / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps"]
    _run(tmp_path, [*pip, str(wheel)])
    # The packages that vidcurate depends on are those of this interpreter; nothing is downloaded.
    (packages,) = environment.glob("lib/python*/site-packages")
    own = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("".join(f"{path}\n" for path in sorted(own)))

    vidcurate = str(bin_folder / "vidcurate")
    where = _run(
        folder, [python, "-c", "import trainer, vidcurate; print(trainer.__file__, vidcurate.__file__)"]
    )
    assert all(path.startswith(str(packages)) for path in where.split())
    assert "build-shards" in _run(folder, [vidcurate, "--help"])
    assert json.loads(_run(folder, [vidcurate, "version", "--json"]))["decoders"]["h264"]
    _run(folder, [vidcurate, "recipes", "copy"])
    assert (folder / "recipes" / "smoke.yaml").read_bytes() == (ROOT / "recipes" / "smoke.yaml").read_bytes()

    _run(folder, [vidcurate, "demo-data", "demo/data", "--clips", "60"])
    _run(folder, [vidcurate, "curate", "recipes/curate-demo.yaml"])
    assert (folder / "demo" / "run" / "report.html").is_file()
    ended = _run(folder, [vidcurate, "train", "recipes/smoke.yaml", "--json", *FEW_STEPS])
    assert json.loads(ended)["step"] == 3
    _run(folder, [vidcurate, "train-report", "demo/train"])
    assert "<svg" in (folder / "demo" / "train" / "report.html").read_text(encoding="utf-8")
