"""A slice of a `.distcp` file that is not one tensor as torch writes it is refused before torch reads it."""

import io
import pickle
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from trainer.run_folder.checkpoint import part_metadata, parts
from trainer.run_folder.checkpoint.tensor_slice import require_tensor
from vidcurate.errors import CheckpointError
from vidcurate.storage.stored_zip import Slice

BYTEARRAY = b"\x80\x02cbuiltins\nbytearray\n\x8a\x05" + (3 << 30).to_bytes(5, "little") + b"\x85R."
UNFOLDS = b"\x80\x02}K\x01q\x00" + 45 * b"h\x00\x86q\x00" + b"K\x01s."
CALLS = b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R."
MANY = b"\x80\x02" + b"K\x01" * 20_000 + b"."


def saved(tensor: object) -> bytes:
    made = io.BytesIO()
    torch.save(tensor, made)
    return made.getvalue()


def with_entries(data: bytes, changed: Mapping[str, bytes], *, but: str = "") -> bytes:
    """Return a saved tensor with other or more entries, and without `but`."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        for name in {**dict.fromkeys(old.namelist()), **changed}:
            if name != but:
                new.writestr(name, changed[name] if name in changed else old.read(name))
    return made.getvalue()


def larger_storage(data: bytes) -> bytes:
    """Return a saved tensor of 3 numbers whose pickle names a storage of 200."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        old = archive.read("archive/data.pkl")
    assert old.count(b"K\x03") == 2
    return with_entries(data, {"archive/data.pkl": old.replace(b"K\x03", b"K\xc8")})


TENSOR = saved(torch.arange(3.0))
FORGED = {
    "memory": (with_entries(TENSOR, {"archive/data.pkl": BYTEARRAY}), "names builtins.bytearray"),
    "time": (with_entries(TENSOR, {"archive/data.pkl": UNFOLDS}), "uses the memo's value"),
    "a call": (with_entries(TENSOR, {"archive/data.pkl": CALLS}), "names posix.system"),
    "a long pickle": (with_entries(TENSOR, {"archive/data.pkl": MANY}), "bytes of data.pkl"),
    "no tensor": (with_entries(TENSOR, {"archive/data.pkl": b"\x80\x02K\x01."}), "holds no tensor"),
    "memory behind the file": (larger_storage(TENSOR), "names 800 bytes of data, and has 12"),
    "no data": (with_entries(TENSOR, {}, but="archive/data/0"), "names 12 bytes of data, and has 0"),
    "a second pickle": (with_entries(TENSOR, {"archive/DATA.PKL": BYTEARRAY}), "have one name"),
    "a comment at its end": (TENSOR[:-2] + b"\x03\x00 is", "not where its end says"),
    "another folder": (with_entries(TENSOR, {"b/data.pkl": BYTEARRAY}), "in 2 folders"),
    "an old form": (b"\x80\x02" + BYTEARRAY[2:], "no archive of a tensor"),
    "a dictionary": (saved({"a": torch.zeros(1)}), "holds no tensor"),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_slice_is_refused_in_one_line(run: Path, forgery: str) -> None:
    folder = run / "step-00000100/model"
    data, reason = FORGED[forgery]
    metadata = part_metadata.read_metadata(folder)
    name = "__0_7.distcp"
    (folder / name).write_bytes(data + bytes(1000))
    places = {
        index: replace(info, relative_path=name, offset=0, length=len(data))
        for index, info in metadata.storage_data.items()
    }
    (folder / part_metadata.METADATA).write_bytes(pickle.dumps(replace(metadata, storage_data=places)))

    with pytest.raises(CheckpointError, match=f"model: cannot be read .*{reason}") as caught:
        parts.read_part_tensors(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "tensor",
    [
        *(torch.ones(2, 3).to(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)),
        *(torch.ones(2, 3).to(dtype) for dtype in (torch.float64, torch.int64, torch.uint8, torch.bool)),
        torch.zeros(0, 4),
        torch.tensor(1.5),
        torch.arange(12.0).reshape(3, 4).T[1:],
        torch.zeros(*[1] * 64),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)[:3]}",
)
def test_every_tensor_that_torch_writes_passes_and_is_read_from_its_start(tensor: torch.Tensor) -> None:
    data = saved(tensor)
    file = Slice(io.BytesIO(b"before" + data + b"behind"), 6, len(data))
    require_tensor(file, len(data))
    assert file.tell() == 0
    assert torch.equal(torch.load(file, weights_only=True), tensor)


def test_a_list_of_entries_that_only_torchs_reader_would_find_is_refused() -> None:
    hidden = with_entries(TENSOR, {"archive/data.pkl": BYTEARRAY})
    both = bytearray(hidden + TENSOR)  # zipfile takes the list before the end; the end names another place
    (start,) = struct.unpack_from("<I", both, len(both) - 6)
    with zipfile.ZipFile(io.BytesIO(bytes(both))) as archive:
        assert archive.start_dir != start

    with pytest.raises(ValueError, match="its list of entries is not where its end says"):
        require_tensor(Slice(io.BytesIO(bytes(both)), 0, len(both)), len(both))
