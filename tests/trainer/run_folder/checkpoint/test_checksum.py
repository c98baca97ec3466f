"""A checksum is the same number however the tensors are taken together; checkpoints keep it."""

import pytest
import torch
from torch import Tensor

from trainer.run_folder.checkpoint import checksum

# Of checkpoints that were written when each tensor was summed alone.
KEPT = "0ef5644faa3728d7583078beb3fecabe2b38cdefbae3d90f916ee92c118688ff"


def many() -> dict[str, Tensor]:
    """Tensors of all sizes of element, of one shape and of several, one cut out of another, one empty."""
    ramp = torch.arange(-60, 60).reshape(4, 30)
    return {
        **{f"alike.{number}": (ramp * number).float() / 7 for number in range(5)},
        "turned": ramp.t().double(),
        "half": ramp.to(torch.bfloat16),
        "bytes": (ramp % 5).to(torch.uint8),
        "flags": ramp > 3,
        "words": ramp,
        "one": torch.tensor(2.5),
        "none": torch.zeros(0, 3),
    }


@pytest.mark.parametrize("chunk", [7, 120, 300, checksum._CHUNKS["cpu"]])
def test_the_checksum_is_that_of_checkpoints_kept(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setitem(checksum._CHUNKS, "cpu", chunk)  # cut a tensor, hold one, hold several
    assert checksum.checksum(many()) == KEPT


def test_tensors_that_are_alike_are_reported_apart() -> None:
    there = many()
    swapped = there | {"alike.1": there["alike.2"], "alike.2": there["alike.1"]}
    assert checksum.checksum(swapped) != checksum.checksum(there)
