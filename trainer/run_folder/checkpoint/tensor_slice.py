"""Slice of a `.distcp` file: check that it is one bounded tensor before reading.

torch's reader of weights runs no code of a pickle, but sets no bounds: `bytearray(3_000_000_000)` takes ten
bytes, a tuple of 45 levels that each hold the one before twice takes 2^45 steps as the key of a dict, and of
a storage that is larger than its entry in the archive torch reads the memory behind. A checkpoint may come
from anybody, so the pickle may hold one tensor as torch writes it, and nothing else. torch's reader (miniz)
finds the archive's entries by the offset at its end, zipfile by their size, and miniz takes no account of
letter case: an archive of which the two would read other entries is refused. Sources: torch's
`serialization.py` and `_utils.py`; PKWARE's APPNOTE 6.3, 4.3.14 to 4.3.16.
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from typing import Any

import torch

from trainer.run_folder.checkpoint.pickle_scan import require_bounded_tensor
from vidcurate.storage import stored_zip

_MOST_BYTES = 1 << 14  # of a tensor's pickle; one of 64 dimensions has 2 kB
_PICKLE = "data.pkl"
_END, _LOCATOR = b"PK\5\6", b"PK\6\7"  # how the last two records of an archive begin
_END_BYTES, _LOCATOR_BYTES, _ZIP64_BYTES = 22, 20, 56


class _Unpickler(pickle.Unpickler):
    """Unpickler of a tensor's description: the arguments of its constructor, no tensor."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _arguments
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name.endswith("Storage") and "." not in name:
            dtype = getattr(getattr(torch, name, None), "_dtype", None)  # `dtype` warns
            if isinstance(dtype, torch.dtype):
                return dtype
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no tensor needs")

    def persistent_load(self, pid: Any) -> Any:
        return pid


def _arguments(*arguments: object) -> tuple[object, ...]:
    return arguments


def require_tensor(file: stored_zip.Slice, size: int) -> None:
    """Raise ValueError, UnpicklingError where a slice of `size` bytes is not one bounded tensor.

    Leaves the file at its start.
    """
    stored_zip.require_stored(file, size)
    try:
        archive = zipfile.ZipFile(file)
    except stored_zip.ZIP_ERRORS as error:
        raise ValueError(f"it is no archive of a tensor ({error})") from error
    if archive.start_dir != _directory_start(file, size):
        raise ValueError("its list of entries is not where its end says")
    if len({name.lower() for name in archive.namelist()}) < len(archive.namelist()):
        raise ValueError("two of its entries have one name")
    sizes = {entry.filename.partition("/")[2]: entry.file_size for entry in archive.infolist()}
    folders = {entry.filename.partition("/")[0] for entry in archive.infolist()}
    if len(folders) != 1 or not 0 < sizes.get(_PICKLE, 0) <= _MOST_BYTES:
        raise ValueError(f"it has {sizes.get(_PICKLE, 0):,} bytes of {_PICKLE}, in {len(folders)} folders")
    data = archive.read(f"{folders.pop()}/{_PICKLE}")
    require_bounded_tensor(data)
    _require_storage(_Unpickler(io.BytesIO(data)).load(), sizes)
    file.seek(0)


def _directory_start(file: stored_zip.Slice, size: int) -> int:
    """Return where an archive's end says that its list of entries starts; -1 for an end of another form."""
    file.seek(max(0, size - _END_BYTES - _LOCATOR_BYTES - _ZIP64_BYTES))
    tail = file.read()
    end, locator = tail[-_END_BYTES:], tail[-_END_BYTES - _LOCATOR_BYTES : -_END_BYTES]
    if not end.startswith(_END):
        return -1
    if not locator.startswith(_LOCATOR):
        return int.from_bytes(end[16:20], "little")
    is_before = int.from_bytes(locator[8:16], "little") == size - len(tail)
    return int.from_bytes(tail[48:56], "little") if is_before else -1


def _require_storage(found: object, sizes: dict[str, int]) -> None:
    """Raise ValueError unless a tensor's storage has the bytes that its entry of the archive has."""
    storage = found[0] if type(found) is tuple and found else None
    if type(storage) is not tuple or len(storage) != 5 or storage[0] != "storage":
        raise ValueError("its pickle holds no tensor")
    _, dtype, key, _, count = storage
    if type(dtype) is not torch.dtype or type(key) is not str or type(count) is not int:
        raise ValueError("its pickle holds no tensor's storage")
    if sizes.get(f"data/{key}", -1) != count * dtype.itemsize:
        raise ValueError(
            f"it names {count * dtype.itemsize:,} bytes of data, and has {sizes.get(f'data/{key}', 0):,}"
        )
