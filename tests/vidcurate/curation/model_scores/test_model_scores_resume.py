"""score-models stopped, killed, in parts and by several workers: the same bytes."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.tiny_models import WIDTH, head_of
from tests.vidcurate.curation.model_scores.scored_clips import scored
from vidcurate.curation.clip_table import table
from vidcurate.curation.clip_table.table import Provenance
from vidcurate.curation.model_scores.spec import ModelsSpec
from vidcurate.curation.model_scores.stage import run_models
from vidcurate.errors import StageError, VidcurateError
from vidcurate.executor.parts_folder import ExecutorSpec, Part

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def test_the_workers_change_no_byte_and_a_second_run_is_up_to_date(
    run: tuple[Path, Path], clip_folder: Path, head: Path
) -> None:
    spec = ModelsSpec(clip=str(clip_folder), aesthetic_head=head)
    run_models(run[0], spec, videos=run[1], executor=ExecutorSpec(num_workers=2))
    path = table.stage_path(run[0], "models")
    before = path.read_bytes()
    assert run_models(run[0], spec, videos=run[1]).up_to_date
    path.unlink()
    assert not run_models(run[0], spec, videos=run[1]).up_to_date
    assert path.read_bytes() == before
    torch.save(head_of((WIDTH, 1024, 128, 64, 16, 1), seed=5), head.with_name("other.pth"))
    head.with_name("other.pth").replace(head)
    assert not run_models(run[0], spec, videos=run[1]).up_to_date  # other weights under the same name


def test_a_stopped_run_resumes_from_its_chunks(
    run: tuple[Path, Path], clip_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vidcurate.curation.model_scores import scorers
    from vidcurate.curation.model_scores import stage as model_scores_stage

    monkeypatch.setattr(model_scores_stage, "_CLIPS_A_CHUNK", 2)
    spec = ModelsSpec(clip=str(clip_folder), embeddings=True)
    run_models(run[0], spec, videos=run[1])
    path = table.stage_path(run[0], "models")
    whole, vectors = path.read_bytes(), (run[0] / "embeddings.parquet").read_bytes()
    path.unlink()
    seen: list[int] = []
    measure = scorers.columns_of

    def stopping(*given: Any) -> Any:
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(1)
        return measure(*given)

    monkeypatch.setattr(scorers, "columns_of", stopping)
    with pytest.raises(KeyboardInterrupt):
        run_models(run[0], spec, videos=run[1])
    assert not path.exists()
    monkeypatch.setattr(scorers, "columns_of", lambda *given: seen.append(2) or measure(*given))
    run_models(run[0], spec, videos=run[1])
    assert seen == [1, 1, 2]
    assert path.read_bytes() == whole
    assert (run[0] / "embeddings.parquet").read_bytes() == vectors
    assert not list(run[0].glob(".models-*"))


def scored_whole(
    run: tuple[Path, Path], clip_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ModelsSpec, dict[Path, bytes]]:
    """Score the run in one go, in chunks of two clips; remove its tables and return what was in them."""
    from vidcurate.curation.model_scores import stage as model_scores_stage

    monkeypatch.setattr(model_scores_stage, "_CLIPS_A_CHUNK", 2)
    spec = ModelsSpec(clip=str(clip_folder), embeddings=True)
    run_models(run[0], spec, videos=run[1])
    files = table.stage_path(run[0], "models"), run[0] / "embeddings.parquet"
    whole = {path: path.read_bytes() for path in files}
    for path in files:
        path.unlink()
    return spec, whole


@pytest.mark.parametrize("suffix", [".json", ".npy"])
@pytest.mark.parametrize("damage", ["cut", "empty", "pipe", "other", "gone"])
def test_a_damaged_chunk_is_scored_again(
    run: tuple[Path, Path], clip_folder: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, damage: str
) -> None:
    spec, whole = scored_whole(run, clip_folder, monkeypatch)
    for number in (1, 2, 3):
        run_models(run[0], spec, videos=run[1], executor=ExecutorSpec(part=Part(number=number, of=3)))
    (chunk,) = run[0].glob(f".models-*/000001{suffix}")
    data = chunk.read_bytes()
    chunk.unlink()
    if damage == "pipe":
        os.mkfifo(chunk)
    elif damage != "gone":
        other = b"[{}]" if suffix == ".json" else b"{}"
        chunk.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "other": other}[damage])
    with pytest.raises(StageError, match=r"2 of 6 clips"):
        run_models(run[0], spec, videos=run[1], executor=ExecutorSpec(merge=True))
    run_models(run[0], spec, videos=run[1])
    assert {path: path.read_bytes() for path in whole} == whole


def test_parts_give_the_tables_of_one_run_and_a_missing_one_is_named(
    run: tuple[Path, Path], clip_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, whole = scored_whole(run, clip_folder, monkeypatch)

    def part(number: int) -> Any:
        return run_models(run[0], spec, videos=run[1], executor=ExecutorSpec(part=Part(number=number, of=3)))

    first, third = part(1), part(3)
    assert (first.clips, third.clips, third.parts_missing) == (2, 2, ("2/3",))
    assert part(3).clips_done_before == 2
    with pytest.raises(StageError, match=r"part 2/3 is missing \(2 of 6 clips\)"):
        run_models(run[0], spec, videos=run[1], executor=ExecutorSpec(merge=True))
    assert not any(path.exists() for path in whole)
    part(2)
    run_models(run[0], spec, videos=run[1], executor=ExecutorSpec(merge=True))
    assert {path: path.read_bytes() for path in whole} == whole
    assert not list(run[0].glob(".models-*"))


def test_a_kill_leaves_no_table_and_the_same_command_ends_with_the_same_bytes(
    run: tuple[Path, Path], clip_folder: Path
) -> None:
    # Ended as the first file of its unfinished work is to get its name.
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from vidcurate.curation.model_scores.spec import ModelsSpec\n"
        "from vidcurate.curation.model_scores.stage import run_models\n"
        "def hook(event, words):\n"
        "    if event == 'os.rename' and '.models-' in str(words[0]):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.addaudithook(hook)\n"
        f"spec = ModelsSpec(clip={str(clip_folder)!r})\n"
        f"run_models(Path({str(run[0])!r}), spec, videos=Path({str(run[1])!r}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    path = table.stage_path(run[0], "models")
    assert not path.exists()
    spec = ModelsSpec(clip=str(clip_folder))
    run_models(run[0], spec, videos=run[1])
    first = path.read_bytes()
    path.unlink()
    run_models(run[0], spec, videos=run[1])
    assert path.read_bytes() == first


def test_clips_that_all_fail_for_one_reason_end_the_stage_and_are_scored_once_it_is_mended(
    run: tuple[Path, Path], clip_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vidcurate.curation.model_scores import stage as model_scores_stage

    monkeypatch.setattr(model_scores_stage, "_CLIPS_A_CHUNK", 4)
    folder, videos = run
    clips = pl.concat([table.scan(folder, "ingest").collect().head(3)] * 4).with_columns(
        pl.Series("clip_id", [f"{n}" for n in range(12)])
    )
    origin = Provenance(stage="ingest", settings={}, inputs={})
    table.write(clips, table.stage_path(folder, "ingest"), origin)
    good = {path: path.read_bytes() for path in videos.iterdir()}
    for path in good:
        path.write_bytes(b"no video")

    with pytest.raises(VidcurateError, match=r"^all 12 clips failed for one reason, so nothing was written"):
        scored(run, clip=str(clip_folder), embeddings=True)

    assert [path.name for path in folder.iterdir()] == ["ingest.parquet"]
    for path, data in good.items():
        path.write_bytes(data)
    assert scored(run, clip=str(clip_folder))["models_status"].to_list() == ["ok"] * 12
