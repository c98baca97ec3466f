"""A run over the demo data, reported once for each file of tests."""

from pathlib import Path

import pytest

from vidcurate.curation.caption_scores.stage import ScoreSpec, run_score
from vidcurate.curation.demo_data import write as demo_data_write
from vidcurate.curation.difficulty.spec import SplitSpec
from vidcurate.curation.difficulty.stage import run_split
from vidcurate.curation.filter.spec import FilterSpec, Limit
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.curation.model_fit.models import models_named
from vidcurate.curation.model_fit.summary import run_fit
from vidcurate.curation.probe.stage import ProbeSpec, run_probe
from vidcurate.curation.report.build import run_report
from vidcurate.shards.build import run_build_shards
from vidcurate.shards.layout import ShardSpec


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "data"
    demo_data_write.write_demo_data(out, clips=60, seed=2)
    return out


@pytest.fixture(scope="module")
def run(demo: Path) -> Path:
    """A whole curation of demo data, with its report."""
    run = demo.parent / "run"
    videos = demo / "videos"
    run_ingest(run, IngestSpec(metadata=demo / "captions.csv", videos=videos))
    run_probe(run, ProbeSpec(videos=videos))
    run_score(run, ScoreSpec(noun_engine="builtin"))
    run_filter(
        run,
        FilterSpec(
            limits={
                "short_side": Limit(min=32),
                "num_frames": Limit(min=8),
                "aspect_ratio": Limit(max=2, min=0.5),
            }
        ),
    )
    run_split(run, SplitSpec(levels=2, validation_fraction=0.1))
    run_build_shards(run, ShardSpec(), videos=videos, out=run / "shards", num_workers=1)
    run_fit(run, models_named("wan2.1,mochi"), size=None, frames=None)
    run_report(run, videos=videos)
    return run
