"""Costs of a run are those of its own tables and shards."""

from pathlib import Path

import pytest

from tests.shard_runs import make_run, rows
from vidcurate.cli.main import main
from vidcurate.curation.clip_table.costs import COSTS


def test_shards_that_lie_elsewhere_are_no_cost_of_the_run(tmp_path: Path) -> None:
    run, videos = make_run(tmp_path, rows()), str(tmp_path / "videos")
    (run / COSTS).mkdir()  # as on a disk that is read alone: no line can be added

    for out, code in ((tmp_path / "elsewhere", 0), (run / "shards", 1)):
        with pytest.raises(SystemExit) as ended:
            main(["build-shards", str(run), "--videos", videos, "--out", str(out), "--workers", "1"])
        assert ended.value.code == code
        assert (out / "manifest.json").exists()
