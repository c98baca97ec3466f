"""What a run says of the memory and the kernels that it takes for shapes of micro-batches."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from tests.trainer.shards_for_tests import smoke
from tests.trainer.training.states import SHORT
from trainer.distributed import memory
from trainer.distributed.mesh import ALONE, World
from trainer.distributed.step_time import Work
from trainer.health.watch.stop_requests import Stop
from trainer.model import rectified_flow
from trainer.model.kernels.autotune import Choice
from trainer.run_folder import jsonl, process_table
from trainer.train import train
from trainer.training import log as training_log
from trainer.training import outcome
from vidcurate.errors import DeviceMemoryError, ShardError, VidcurateError


def _events(run: Path, name: str) -> list[dict[str, Any]]:
    lines = (run / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def test_what_fit_keeps_of_each_shape_is_reported_once_with_the_memory_predicted(
    shards: Path, tmp_path: Path
) -> None:
    recipe = smoke(shards, tmp_path / "run", *SHORT, "parallel.recompute_blocks=fit")
    train(recipe)
    reported = _events(recipe.output, "room")
    works = [Work(**{key: event[key] for key in Work.__dataclass_fields__}) for event in reported]
    assert works
    assert len(set(works)) == len(works)
    for event, work in zip(reported, works, strict=True):
        # A CPU has room for all of it.
        assert (event["lean_blocks"], event["recompute_blocks"]) == (0, 0)
        form = memory.form_of(recipe.blocks, recipe.precision)
        assert event["predicted_gib"] == round(memory.peak_bytes(recipe.model, work, form) / 2**30, 2)


def test_a_run_with_a_fixed_plan_logs_none(short_run: Path) -> None:
    assert not _events(short_run, "room")


def _tools(shards: Path, tmp_path: Path) -> Any:
    """Return what `log.record_kernels` reads of a run with fast blocks, whose folder exists."""
    recipe = smoke(shards, tmp_path / "run", *SHORT, "blocks=fast")
    recipe.output.mkdir()
    return SimpleNamespace(recipe=recipe, world=ALONE)


def test_the_kernel_that_attention_takes_for_new_lengths_is_reported_once(
    shards: Path, tmp_path: Path
) -> None:
    attention = pytest.importorskip(
        "trainer.model.kernels.attention", reason="triton is not installed on this platform"
    )
    context = _tools(shards, tmp_path)
    found = {"heads": 32, "queries": 405, "keys": 405, "kept_out": {"flash4": "wrong, of its norm: dq by 1"}}
    attention._unreported.append(Choice(**found, milliseconds={"own": 0.99, "cudnn": 0.98}))
    training_log.record_kernels(context, 3)
    training_log.record_kernels(context, 4)
    (event,) = _events(context.recipe.output, "attention_kernel")
    assert event["step"] == 3
    assert {key: event[key] for key in found} == found
    assert (event["kernel"], event["own_ms"], event["cudnn_ms"]) == ("cudnn", 0.99, 0.98)


@pytest.mark.parametrize(("gpu", "lines"), [("cuda:0", 1), ("cuda:1", 0)])
def test_a_kernel_that_is_installed_and_not_taken_is_said_once_on_each_host(
    shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    gpu: str,
    lines: int,
) -> None:
    attention = pytest.importorskip(
        "trainer.model.kernels.attention", reason="triton is not installed on this platform"
    )
    monkeypatch.setattr(attention, "_refused", set())
    context = _tools(shards, tmp_path)
    context.world = World(rank=9, size=16, device=torch.device(gpu))
    for step, length in ((3, 405), (4, 920)):
        broken = {"flash4": "ModuleNotFoundError: No module named 'cutlass.cute'"}
        attention._unreported.append(
            Choice(heads=32, queries=length, keys=length, milliseconds={"own": 0.99}, kept_out=broken)
        )
        training_log.record_kernels(context, step)
    said = capsys.readouterr().err.splitlines()
    wanted = (
        f"step 3: {process_table.host_name()}: attention cannot use flash4, which is installed: "
        "first at 405 queries and 405 keys: ModuleNotFoundError: No module named 'cutlass.cute'"
    )
    assert said == [wanted] * lines


def test_a_micro_batch_that_the_gpu_does_not_hold_ends_the_run_with_its_bucket_and_what_helps(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: Any, **__: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 494.00 MiB.\nSee documentation")

    monkeypatch.setattr(rectified_flow, "training_losses", short)
    recipe = smoke(shards, tmp_path / "run", *SHORT)
    with pytest.raises(
        DeviceMemoryError,
        match=r"rank 0: .* 32px-8f-.*, 2 clips \(0 blocks .*Tried .*blocks=fit, or put fewer",
    ) as raised:
        train(recipe)
    (event,) = _events(recipe.output, "failed")
    assert event["reason"] == str(raised.value)
    assert event["exit_code"] == raised.value.exit_code == 1  # a new process has its memory in one piece


def test_each_rank_records_the_memory_that_it_alone_is_short_of(tmp_path: Path) -> None:
    def end(rank: int, error: VidcurateError) -> None:
        world, stop = World(rank=rank, size=8, device=torch.device("cpu")), SimpleNamespace(at_once=None)
        with outcome.end_recorded(tmp_path, world, cast(Stop, stop)):
            jsonl.record_event(tmp_path, "resume", 5)
            raise error

    for rank, error in ((3, DeviceMemoryError("rank 3: too small")), (4, ShardError("the same on all"))):
        with pytest.raises(type(error)):
            end(rank, error)
    (event,) = _events(tmp_path, "failed")
    assert (event["rank"], event["reason"]) == (3, "rank 3: too small")
