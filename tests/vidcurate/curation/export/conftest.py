"""Exports with every trainer's manifest, and of a run with own columns and several captions."""

import csv
from pathlib import Path

import pytest

from tests.vidcurate.curation.export import clip_runs
from tests.vidcurate.curation.export.captioned_clips import FIELDS, ROWS
from tests.vidcurate.curation.export.fitted_clips import HOSTILE
from vidcurate.curation.export.clips import ExportSpec
from vidcurate.curation.export.stage import run_export
from vidcurate.curation.export.trainers.registry import TRAINERS
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.curation.probe.stage import ProbeSpec, run_probe
from vidcurate.media import encode


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export with every trainer's manifest, fitted to Wan 2.1."""
    folder = tmp_path_factory.mktemp("for all") / HOSTILE
    run = clip_runs.make_run(folder)
    run_export(run, folder / "out", sorted(TRAINERS), ExportSpec(model="wan2.1"), videos=folder / "videos")
    return folder / "out"


@pytest.fixture(scope="session")
def as_they_are(fitted: Path) -> Path:
    """Export of the same clips without a model."""
    folder = fitted.parent
    run_export(folder / "run", folder / "raw", sorted(TRAINERS), ExportSpec(), videos=folder / "videos")
    return folder / "raw"


@pytest.fixture(scope="session")
def captioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of clips with own columns and several captions, and their videos."""
    folder = tmp_path_factory.mktemp("columns")
    (folder / "videos").mkdir()
    for number, row in enumerate(ROWS):
        encode.write_video(folder / "videos" / row[0], clip_runs.frames_of(number, 17, 64, 96), fps=16.0)
    with (folder / "captions.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([FIELDS, *ROWS])
    run_ingest(folder / "run", IngestSpec(metadata=folder / "captions.csv", videos=folder / "videos"))
    run_probe(folder / "run", ProbeSpec(videos=folder / "videos"))
    return folder
