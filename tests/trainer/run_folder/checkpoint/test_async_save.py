"""Background saves whose copies run while the training continues."""

import gc
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Timer

import pytest
import torch

from tests.trainer.late_copies_for_tests import late
from trainer.distributed.mesh import ALONE
from trainer.run_folder.checkpoint import checkpoint, checksum, device_copy, parts
from trainer.run_folder.checkpoint.async_save import AsyncSaver
from trainer.run_folder.checkpoint.save_process import SaveProcess

STATE = {"step": 100}
SECONDS = 0.2
Parts = dict[str, dict[str, torch.Tensor]]


def tensors() -> Parts:
    return {part: {"w": torch.ones(2, 3), "b": torch.arange(3.0)} for part in checkpoint.PARTS}


def change(there: Parts) -> None:
    for values in there.values():
        for value in values.values():
            value.add_(1)


def assert_is_of_before(path: Path) -> None:
    for part, values in checkpoint.load(path).parts.items():
        assert checksum.checksum(values) == checksum.checksum(tensors()[part])


@pytest.fixture(scope="module")
def process() -> Iterator[SaveProcess]:
    """One for all savers here: it takes two seconds to begin."""
    process = SaveProcess({part: parts.kinds(values) for part, values in tensors().items()}, pinned=False)
    yield process
    process.close()


@pytest.fixture
def one(tmp_path: Path, process: SaveProcess) -> AsyncSaver:
    one = AsyncSaver(tmp_path, ALONE)
    one._process = process
    return one


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Copies are made once this is set."""
    go = Event()
    monkeypatch.setattr(device_copy, "begin_copy", late(go, 60.0))
    return go


def test_tensors_that_change_when_the_copies_are_over_are_saved_as_they_were(
    one: AsyncSaver, go: Event, tmp_path: Path
) -> None:
    there = tensors()
    for step in (100, 200):
        go.clear()
        one.save(step, there, lambda: STATE, keep_last=9, in_background=True)
        assert not go.is_set()  # it returns while they travel
        assert one.take() is None  # and nothing is written
        Timer(SECONDS, go.set).start()
        began = time.perf_counter()
        one.wait_for_copies()
        waited = time.perf_counter() - began
        assert go.is_set()
        change(there)
        saved = one.wait()
        assert saved is not None
        assert 0.9 * waited < saved.stall_seconds < saved.seconds  # the wait counts as stall
        one.wait_for_copies()  # no copy in progress

    assert_is_of_before(tmp_path / "step-00000100")
    second = checkpoint.load(tmp_path).parts["ema"]
    assert torch.equal(second["w"], torch.full((2, 3), 2.0))


def test_what_is_copied_lives_until_it_is_whatever_the_training_has_instead(
    one: AsyncSaver, go: Event, tmp_path: Path
) -> None:
    there = tensors()
    one.save(100, there, lambda: STATE, keep_last=9, in_background=True)
    replaced = weakref.ref(there["ema"]["w"])
    del there  # as a stage does that carries over weights alone
    gc.collect()
    assert replaced() is not None
    go.set()
    one.wait()
    assert_is_of_before(tmp_path)


def test_copies_that_fail_are_raised_and_write_nothing(
    one: AsyncSaver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkpoint.save(tmp_path, 100, tensors(), STATE)

    class Lost:
        def query(self) -> bool:
            return False

        def synchronize(self) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(device_copy, "begin_copy", lambda *_: device_copy.Copies(Lost()))  # type: ignore[arg-type]
    one.save(200, tensors(), lambda: STATE, keep_last=9, in_background=True)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        one.wait_for_copies()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        one.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["LATEST", "step-00000100"]


def test_a_state_that_cannot_be_reported_begins_no_save(one: AsyncSaver, go: Event, tmp_path: Path) -> None:
    def lost() -> dict[str, int]:
        raise RuntimeError("a rank is gone")

    with pytest.raises(RuntimeError, match="a rank is gone"):
        one.save(100, tensors(), lost, keep_last=9, in_background=True)
    assert one.wait() is None
    go.set()
    one.save(100, tensors(), lambda: STATE, keep_last=9, in_background=True)
    one.wait()
    assert_is_of_before(tmp_path)


def test_a_saver_closed_while_copies_travel_lets_the_save_end(
    one: AsyncSaver, go: Event, tmp_path: Path
) -> None:
    one.save(100, tensors(), lambda: STATE, keep_last=9, in_background=True)
    Timer(SECONDS, go.set).start()
    one.close()
    assert_is_of_before(tmp_path)
