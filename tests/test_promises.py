"""The promises of the design, each with a test of that name, on the pipeline; the rooms' tests go deeper.

9 (a refactor changes no number) is test_a_refactor_changes_no_number in
tests/trainer/training/test_kept_losses.py.
"""

import hashlib
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.forked_runs import Forks
from tests.own_resources import open_files, threads
from tests.trainer.shards_for_tests import events, make_shards, numbers, smoke
from trainer.data import open_stage
from trainer.report.preview import stages as preview_stages
from trainer.train import train
from trainer.training.state import Origin
from vidcurate.curation.clip_table import table
from vidcurate.curation.clip_table.schema import STAGES
from vidcurate.curation.demo_data import write as demo_data_write
from vidcurate.errors import CheckpointError, MediaError, RecipeError, StateError
from vidcurate.loader.loader import Loader
from vidcurate.loader.spec import LoaderSpec
from vidcurate.media import decode
from vidcurate.sampler import order
from vidcurate.sampler.buckets import BucketSpec
from vidcurate.sampler.build_plan import plan_from
from vidcurate.sampler.order_state import FLAGS
from vidcurate.shards.index import read_index

RECIPE = """
run: {run}
workers: {workers}
ingest: {{metadata: data/captions.csv, videos: data/videos}}
score: {{noun_engine: builtin}}
filter: {{limits: {{short_side: {{min: 32}}, num_frames: {{min: 8}}}}}}
split: {{levels: 2, validation_fraction: 0.1}}
shards: {{max_clips: 8}}
"""
BUCKETS = BucketSpec(sizes={"32px": {"1.00": (32, 32)}}, table={"32px": {"8": (1.0, 4)}})


@pytest.fixture(scope="module")
def timed(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A folder with demo data and one undisturbed curation of it, `calm`, and the seconds that it took."""
    folder = tmp_path_factory.mktemp("home")
    demo_data_write.write_demo_data(folder / "data", clips=40)
    began = time.monotonic()
    assert curate(forks, folder, "calm") == 0
    return folder, time.monotonic() - began


@pytest.fixture(scope="module")
def home(timed: tuple[Path, float]) -> Path:
    return timed[0]


def curate(
    forks: Forks,
    folder: Path,
    run: str,
    workers: int = 1,
    kill_after_seconds: float | None = None,
    more: str = "",
) -> int:
    """Return the exit code of a curation in a process of its own."""
    (folder / f"{run}.yaml").write_text(RECIPE.format(run=run, workers=workers) + more)
    started = forks.start(["vidcurate", "curate", f"{run}.yaml", "--json"], folder=folder)
    if kill_after_seconds is not None:
        time.sleep(kill_after_seconds)
        with suppress(ProcessLookupError):  # it has ended before
            os.kill(started.pids[0], signal.SIGKILL)
    return started.codes()[0]


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a run but the page, which names the run, and what it cost."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("report.html", "costs.jsonl")
    }


def losses(run: Path) -> list[tuple[float, str]]:
    return [(line["loss"], line["clips_hash"]) for line in numbers(run)]


def test_no_row_is_lost(forks: Forks, home: Path) -> None:
    assert curate(forks, home, "whole", workers=2, more="frames: {}\ndedup: {}\n") == 0
    ids = table.scan(home / "whole", "ingest").collect()["clip_id"]
    stages = [stage for stage in STAGES if table.stage_path(home / "whole", stage).exists()]
    # Networks need weights, captions a server, own scores a function.
    assert stages == [stage for stage in STAGES if stage not in ("models", "own_scores", "caption")]
    for stage in stages:
        assert table.scan(home / "whole", stage).collect()["clip_id"].equals(ids)
    last = table.scan(home / "whole", "split").collect()
    rejected = last.filter(~last["is_kept"])

    assert len(last.filter(last["is_kept"])) + len(rejected) == len(ids)
    assert rejected.select(
        "reject_stage", "reject_rule", "reject_value", "reject_threshold"
    ).null_count().row(0) == (
        0,
        0,
        0,
        0,
    )


def test_whole_or_absent(forks: Forks, timed: tuple[Path, float]) -> None:
    home, seconds = timed
    calm = digests(home / "calm")
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        curate(forks, home, "killed", kill_after_seconds=share * seconds)
        for stage in STAGES:  # whatever lies under its final name can be read
            if table.stage_path(home / "killed", stage).exists():
                table.scan(home / "killed", stage).collect()

    assert curate(forks, home, "killed") == 0
    assert digests(home / "killed") == calm


def test_the_same_input_gives_the_same_bytes_whatever_the_number_of_workers(forks: Forks, home: Path) -> None:
    assert curate(forks, home, "two", workers=2) == 0

    assert digests(home / "two") == digests(home / "calm")


def test_the_order_is_blind_to_the_world(home: Path) -> None:
    index = read_index(home / "calm" / "shards")
    plan = plan_from(index, BUCKETS, seed=3, micro_batches_per_step=4)
    for step in range(12):
        whole = [batch.position for batch in order.step_micro_batches(plan, step)]
        for world_size in (1, 2, 3, 192):
            shares = [order.rank_share(plan, step, rank, world_size) for rank in range(world_size)]
            assert sorted(batch.position for share in shares for batch in share) == whole
    seen = []
    for num_workers in (0, 2):
        with Loader(index, plan, LoaderSpec(num_workers=num_workers, max_failure_share=1.0)) as loader:
            batches = [batch for step in range(3) for batch in loader.step(step)]
            seen.append(
                [(batch.clip_ids, hashlib.sha256(batch.frames.tobytes()).hexdigest()) for batch in batches]
            )

    assert seen[0] == seen[1]
    for cell in plan.cells:  # each clip once in a pass
        assert len(set(cell.rows.tolist())) == len(cell.rows)


def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "shards")
    train(smoke(shards, tmp_path / "whole", "stages.0.steps=6", "sample=null"))
    train(smoke(shards, tmp_path / "parts", "stages.0.steps=3", "sample=null"))
    train(smoke(shards, tmp_path / "parts", "stages.0.steps=6", "sample=null"))

    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    for name in ("model", "ema", "optimizer"):
        for file in (".metadata", "__0_0.distcp"):
            paths = [tmp_path / run / "step-00000006" / name / file for run in ("parts", "whole")]
            assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_changed_dataset_is_never_read_with_an_old_position(tmp_path: Path) -> None:
    first, run = make_shards(tmp_path / "a"), tmp_path / "run"
    train(smoke(first, run, "stages.0.steps=2", "sample=null"))
    longer = ("stages.0.steps=16", "sample=null")

    # Refused, with what changed, its shard and the named way on; and nothing was read.
    changed = {
        "4 clips added in 2 shards .*clip-012.* --append": make_shards(tmp_path / "more", num_clips=16),
        "2 clips removed in 2 shards .*clip-010.* --tombstone": make_shards(tmp_path / "few", num_clips=10),
        "12 clips with another caption or video .* --accept-content": make_shards(tmp_path / "b", crf=40),
        "none of the 12 old clips is among the 12": make_shards(tmp_path / "c", name="other"),
    }
    for message, shards in changed.items():
        for flags in ((), tuple(flag for flag in FLAGS.values() if flag not in message)):
            with pytest.raises(StateError, match=message):
                train(smoke(shards, run, *longer), Origin(accept=flags))
    with pytest.raises(RecipeError, match=r"seed was 42 .* --start-from-scratch"):
        train(smoke(first, run, *longer, "seed=7"), Origin(accept=tuple(FLAGS.values())))
    assert len(losses(run)) == 2

    # Accepted: the past stays, and what is unseen, old or new, comes once before anything again.
    before = preview_stages.read_stages(run).stages[0]
    train(smoke(tmp_path / "more", run, *longer), Origin(accept=("--append",)))
    after = preview_stages.read_stages(run).stages[0]
    shown: dict[str, list[str]] = {}
    so_far = ""
    for step, line in enumerate(numbers(run)):
        clips = open_stage.clips(after, step)
        if step < 2:
            assert [clip.clip_id for clip in clips] == [
                clip.clip_id for clip in open_stage.clips(before, step)
            ]
        so_far = order.rolling_hash(so_far, [clip.clip_id for clip in clips])
        assert line["clips_hash"] == line["delivered_hash"] == so_far
        for clip in clips:
            shown.setdefault(clip.cell, []).append(clip.clip_id)
    for cell in after.plan.cells:
        ids = {after.index.word("clip_id", row) for row in cell.rows}
        reported = shown[cell.name]
        assert (
            set(reported[: len(ids)]) == ids
        )  # nothing was shown twice when the change came: one whole pass
    # Moved, it is the same data.
    assert train(smoke(shutil.copytree(tmp_path / "more", tmp_path / "moved"), run, *longer)).was_done


def test_nothing_silent(home: Path, tmp_path: Path) -> None:
    # A checkpoint that lost a tensor's file, and a clip that fails: an error and an event, each with a name.
    shards = make_shards(tmp_path / "shards")
    train(smoke(shards, tmp_path / "run", "stages.0.steps=2", "sample=null"))
    (tmp_path / "run" / "step-00000002" / "ema" / "__0_0.distcp").unlink()
    with pytest.raises(CheckpointError, match=r"ema/__0_0\.distcp"):
        train(smoke(shards, tmp_path / "run", "stages.0.steps=4", "sample=null"))
    assert events(tmp_path / "run", "save")

    copy = tmp_path / "calm"
    shutil.copytree(home / "calm" / "shards", copy)
    index = read_index(copy)
    plan = plan_from(index, BUCKETS, seed=3, micro_batches_per_step=4)
    row = int(plan.cells[0].rows[0])
    shard, clip_id = copy / index.word("shard", row), index.word("clip_id", row)
    data = bytearray(shard.read_bytes())
    start = int(index.video_offset[row])
    data[start : start + 64] = bytes(64)
    shard.write_bytes(data)
    reported: list[dict] = []  # type: ignore[type-arg]
    step = next(order.positions_of_row(plan, row)) // plan.micro_batches_per_step
    with Loader(index, plan, LoaderSpec(max_failure_share=1.0), on_event=reported.append) as loader:
        batches = loader.step(step)
    assert [(event["event"], event["clip_id"], event["kind"]) for event in reported] == [
        ("clip_substituted", clip_id, "crc_mismatch")
    ]
    assert all(clip_id not in batch.clip_ids for batch in batches)


def test_one_container_is_open_at_a_time_and_no_decoder_outlives_its_limit(home: Path) -> None:
    paths = [path for path in sorted((home / "data" / "videos").iterdir()) if path.suffix == ".mp4"]

    files, tasks = open_files(), threads()
    for path in paths:
        try:
            decode.read_frames(path, np.arange(4).tolist(), height=32, width=32)
        except MediaError:
            assert path.stat().st_size >= 0  # a broken clip closes its container too
        assert (open_files() - files, threads() - tasks) == (set(), set())
    good = next(path for path in paths if path.name.startswith("shapes-0001"))
    with pytest.raises(MediaError, match="longer than its limit"):
        decode.read_frames(good, [0, 1], height=32, width=32, time_limit_seconds=-1.0)
    assert (open_files() - files, threads() - tasks) == (set(), set())
