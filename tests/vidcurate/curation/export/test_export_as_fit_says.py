"""Clips are written as `fit` says: generated of many rates and sizes, and real."""

import shutil
from fractions import Fraction
from pathlib import Path

import pytest

from tests import shard_runs
from tests.vidcurate.curation.export import clip_runs, readers
from tests.vidcurate.curation.export.exported import exported, written
from vidcurate.curation.export import stage
from vidcurate.curation.export.clips import ExportSpec, plan
from vidcurate.curation.model_fit.fit_clip import fit_clip
from vidcurate.curation.model_fit.models import MODELS


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
