"""A pickle of a few bytes that asks for gigabytes is refused before it is loaded."""

import pickle
import pickletools
import resource
import struct
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from trainer.run_folder.checkpoint import checkpoint, part_metadata
from trainer.run_folder.checkpoint.pickle_scan import require_bounded
from vidcurate.errors import CheckpointError

# Name → pickle, all of them short.
BOMBS = {
    "memo index": b"\x80\x04Nr\xff\xff\xff\x1f.",
    "largest memo index": b"\x80\x04Nr\xff\xff\xff\xff.",
    "memo index in digits": b"Np536870911\n.",
    "memo index of 19 digits": b"Np1000000000000000000\n.",
    "memo index of no digits": b"Np-1\n.",
    "memo index one behind": b"\x80\x04Nq\x04.",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 33) + b"N.",
    "endless frame": b"\x80\x04\x95" + b"\xff" * 8 + b"N.",
    "byte array": b"\x80\x05\x96" + struct.pack("<Q", 1 << 33) + b".",
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 33) + b".",
    "bytes of 4 GB": b"\x80\x04B\xff\xff\xff\xff.",
    "text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 33) + b".",
    "long": b"\x80\x04\x8b\xff\xff\xff\x7f.",
    "negative long": b"\x80\x04\x8b\xff\xff\xff\xff.",
    "long number": b"\x80\x04\x8b" + struct.pack("<I", 4096) + b"\x7f" * 4096 + b".",
    "long number in digits": b"L" + b"9" * 4000 + b"L\n.",
    "buffer": b"\x80\x05\x97.",
    "extension": b"\x80\x04\x84\xff\xff\xff\x7f.",
    "doubled tuple": b"\x80\x04)" + b"2\x86" * 40 + b".",
    "no opcode": b"\x80\x04\xfa.",
    "no end": b"\x80\x04N",
    "nothing": b"",
    "line without an end": b"Vtext",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_short_pickle_that_asks_for_much_is_refused_by_the_scan(name: str) -> None:
    with pytest.raises(pickle.UnpicklingError):
        require_bounded(BOMBS[name])


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_pickle_writes_passes(protocol: int) -> None:
    value = {
        "a": [1, -2, 1 << 62, 0.5, None, True],
        "b": ("text" * 100, b"bytes", torch.Size([2, 3])),
        3: set(),
    }
    data = pickle.dumps(value, protocol)

    require_bounded(data)

    for end in range(len(data)):
        with pytest.raises(pickle.UnpicklingError):
            require_bounded(data[:end])


def test_the_scan_knows_every_opcode() -> None:
    arguments = {one.arg.n for one in pickletools.opcodes if one.arg}
    assert {number for number in arguments if number < 0} == {-1, -2, -3, -4, -5}
    for one in pickletools.opcodes:  # each with an argument of zeros: refused or passed, never another error
        with suppress(pickle.UnpicklingError):
            require_bounded(one.code.encode("latin-1") + b"0\n" * 8 + bytes(16) + b"N.")


def test_a_checkpoint_with_a_bomb_costs_no_memory(tmp_path: Path) -> None:
    weights = {"weight": torch.ones(2, 3)}
    state = {"step": 1, "recipe": {"model": {}}}
    checkpoint.save(tmp_path / "run", 1, {"model": weights, "ema": weights, "optimizer": {}}, state)
    part = tmp_path / "run/step-00000001/model"
    part_metadata.read_metadata(part)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in ("memo index", "byte array", "endless frame"):
        (part / ".metadata").write_bytes(BOMBS[name])
        with pytest.raises(CheckpointError, match=r"\.metadata: cannot be read"):
            part_metadata.read_metadata(part)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kb < 100_000
