"""What the stages of a run tell a progress bar: never more than there is, of none, one or several."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vidcurate.curation.caption_scores.stage import ScoreSpec, run_score
from vidcurate.curation.dedup.spec import DedupSpec
from vidcurate.curation.dedup.stage import run_dedup
from vidcurate.curation.difficulty.spec import SplitSpec
from vidcurate.curation.difficulty.stage import run_split
from vidcurate.curation.export.clips import ExportSpec
from vidcurate.curation.export.stage import run_export
from vidcurate.curation.filter.spec import FilterSpec
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.frame_scores.spec import FramesSpec
from vidcurate.curation.frame_scores.stage import run_frames
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.curation.probe.stage import ProbeSpec, run_probe
from vidcurate.curation.report.build import run_report
from vidcurate.errors import InputError
from vidcurate.shards.build import run_build_shards
from vidcurate.shards.layout import ShardSpec
from vidcurate.shards.reader_indexes import export as reader_indexes_export
from vidcurate.shards.verify import verify

Report = tuple[int, int, str]


@dataclass
class Reports:
    """One function for each stage, and what it received."""

    reports: dict[str, list[Report]] = field(default_factory=dict)

    def __call__(self, stage: str) -> Callable[[int, int, str], None]:
        said = self.reports.setdefault(stage, [])
        return lambda done, total, unit: said.append((done, total, unit))

    def check(self) -> None:
        assert self.reports
        for stage, said in self.reports.items():
            for done, total, unit in said:
                assert 0 <= done <= total, f"{stage}: {done} of {total} {unit}"
            assert [done for done, _, _ in said] == sorted(done for done, _, _ in said), stage


@pytest.mark.parametrize("good", [0, 1, 9])
def test_no_stage_tells_more_than_there_is(
    make_video: Callable[..., Path], tmp_path: Path, good: int
) -> None:
    """Of `good` clips and one whose file is missing; with none, the stages behind the filter have no clip."""
    videos, run, tell = tmp_path / "videos", tmp_path / "run", Reports()
    videos.mkdir()
    lines = ["video,caption", *(f"{number}.mp4,a square moves right {number}" for number in range(good + 1))]
    for number in range(good):
        (videos / f"{number}.mp4").write_bytes(make_video("clip.mp4", 24 + number).read_bytes())
    (videos / "captions.csv").write_text("\n".join([*lines, ""]))

    run_ingest(run, IngestSpec(metadata=videos / "captions.csv", videos=videos), progress=tell("ingest"))
    run_probe(run, ProbeSpec(videos=videos), progress=tell("probe"))
    run_score(run, ScoreSpec(noun_engine="builtin"), progress=tell("score"))
    frames = FramesSpec(time_limit_seconds=None)
    run_frames(run, frames, videos=videos, progress=tell("score-frames"))
    run_dedup(run, DedupSpec(), videos=videos, num_workers=1, progress=tell("dedup"))
    run_filter(run, FilterSpec(), progress=tell("filter"))
    if good:
        one = SplitSpec(levels=1, validation_fraction=0)
        run_split(run, one, progress=tell("split"))
        run_build_shards(
            run, ShardSpec(), videos=videos, out=run / "shards", num_workers=1, progress=tell("build-shards")
        )
        verify(run / "shards", "decode", num_workers=1, progress=tell("verify"))
        reader_indexes_export.export(
            run / "shards", reader_indexes_export.READERS, num_workers=1, progress=tell("export-index")
        )
        run_export(run, tmp_path / "out", ["hf"], ExportSpec(), videos=videos, progress=tell("export"))
    else:
        with pytest.raises(InputError, match="no clip is kept"):
            run_split(run, SplitSpec(levels=1), progress=tell("split"))
    run_report(run, videos=videos, progress=tell("report"))

    tell.check()
    for stage in ("probe", "score-frames"):  # the last word is that all is done
        done, total, _ = tell.reports[stage][-1]
        assert done == total
        assert total >= good
