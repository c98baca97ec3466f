"""Every trainer's manifest, read by the rules of that trainer's dataset code (`readers`).

Five trainers' packages can be installed: test_own_code.py has their own code read the exports, too.
"""

import subprocess
from pathlib import Path

import pytest

from tests.vidcurate.curation.export import readers
from tests.vidcurate.curation.export.fitted_clips import ONE_LINE, expected
from vidcurate.curation.export.trainers.exported import quoted
from vidcurate.curation.export.trainers.registry import TRAINERS

READERS = {name: getattr(readers, name.replace("-", "_")) for name in TRAINERS}


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
