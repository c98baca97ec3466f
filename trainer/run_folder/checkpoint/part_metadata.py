"""Metadata of a checkpoint part: unpickle torch's `.metadata` without code.

A pickle names the functions that it calls, and a checkpoint may come from anybody, with a matching manifest.
So the reader allows a literal list of (module, name) pairs, all of them plain containers of torch's
distributed checkpoint (DCP), and no name with a dot, which Python would resolve attribute by attribute
(`torch.distributed.checkpoint.filesystem` imports `os`: "os.system" is reachable from there). A pickle can
also set attributes of the classes that it names, for the whole process: the reader sets them back and
refuses. Before all that, `pickle_scan` refuses a pickle that asks for more memory or time than its bytes
account for.
Then the reader checks that file names are plain and inside the part, and that the files are large
enough for the sizes.
"""

import enum
import io
import math
import pickle
import re
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, BinaryIO

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from trainer.run_folder.checkpoint.pickle_scan import require_bounded
from vidcurate.errors import CheckpointError
from vidcurate.storage import regular_file

METADATA = ".metadata"
MOST_DIMENSIONS = 64  # of a tensor; torch's own limit
MOST_BYTES = 1 << 30  # of a .metadata file; one of 1.2 billion weights over 1,024 ranks has 60 MB

_DCP = "torch.distributed.checkpoint"
_ALLOWED = {
    (f"{_DCP}.metadata", "BytesStorageMetadata"),
    (f"{_DCP}.metadata", "ChunkStorageMetadata"),
    (f"{_DCP}.metadata", "Metadata"),
    (f"{_DCP}.metadata", "MetadataIndex"),
    (f"{_DCP}.metadata", "StorageMeta"),
    (f"{_DCP}.metadata", "TensorProperties"),
    (f"{_DCP}.metadata", "TensorStorageMetadata"),
    (f"{_DCP}.metadata", "_MEM_FORMAT_ENCODING"),
    (f"{_DCP}.filesystem", "_StorageInfo"),
    ("pathlib", "PosixPath"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),  # a lookup in a dict of layouts
}
# Python 3.13 has PosixPath in a module of its own; a checkpoint may be of another Python.
_MOVED = {("pathlib._local", "PosixPath"): "pathlib"}
_MOST_CHARACTERS = 200  # of a forged value in an error
_FILE = re.compile(r"__\d{1,9}_\d{1,9}\.distcp")


def _member(owner: Any, name: Any) -> Any:
    """Return a member of DCP's enum: Python 3.11.0 to 3.11.3 pickle one as getattr of the enum and a name."""
    if owner is not _MEM_FORMAT_ENCODING or type(name) is not str or name not in owner.__members__:
        raise pickle.UnpicklingError("it names builtins.getattr, which no checkpoint of tensors needs")
    return owner[name]


class _Unpickler(pickle.Unpickler):
    """Unpickler of the allowed names. `restore` undoes what the pickle did to their classes."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._attributes: dict[Any, dict[str, Any]] = {}  # of each class and enum member that was named

    def find_class(self, module: str, name: str) -> Any:
        if module in ("builtins", "__builtin__") and name == "getattr":
            return partial(_member)
        module = _MOVED.get((module, name), module)
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if "." in name or not (is_dtype or (module, name) in _ALLOWED):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint of tensors needs")
        found = super().find_class(module, name)
        if isinstance(found, FunctionType):
            return partial(found)  # a new object each time, so the function keeps its attributes
        for one in (found, *(found if isinstance(found, enum.EnumMeta) else ())):
            if hasattr(one, "__dict__"):
                self._attributes.setdefault(one, dict(vars(one)))
        return found

    def restore(self) -> None:
        """Set the named classes back. Raises UnpicklingError where the pickle had changed one."""
        changed = ""
        for one, before in self._attributes.items():
            now = dict(vars(one))
            for name in now.keys() | before.keys():
                if name not in before:
                    type.__delattr__(one, name) if isinstance(one, type) else one.__dict__.pop(name)
                elif now.get(name, now) is not before[name]:
                    if isinstance(one, type):
                        type.__setattr__(one, name, before[name])
                    else:
                        one.__dict__[name] = before[name]
                else:
                    continue
                changed = f"{one}.{name}"
        if changed:
            raise pickle.UnpicklingError(f"it changes {changed}")


def read_metadata(folder: Path) -> Metadata:
    """Return a part's metadata, checked against the files beside it. Raises CheckpointError."""
    path = folder / METADATA
    try:
        if path.stat().st_size > MOST_BYTES:
            raise pickle.UnpicklingError(f"it has {path.stat().st_size:,} bytes")
        data = regular_file.read_bytes(path)
        require_bounded(data)
        unpickler = _Unpickler(io.BytesIO(data))
        try:
            metadata = unpickler.load()
        finally:
            unpickler.restore()
        problem = _problem(metadata, folder)
    except MemoryError as error:
        raise CheckpointError(f"{path}: cannot be read (it asks for too much memory).") from error
    except Exception as error:
        raise CheckpointError(f"{path}: cannot be read ({_short(error)}).") from error
    if problem:
        raise CheckpointError(f"{path}: {problem}. Take another checkpoint of the run.")
    assert isinstance(metadata, Metadata)
    return metadata


def _problem(metadata: object, folder: Path) -> str:
    """Return what is wrong with the metadata; empty where nothing is."""
    if type(metadata) is not Metadata or type(metadata.state_dict_metadata) is not dict:
        return "holds no metadata of tensors"
    sizes = {file.name: file.stat().st_size for file in folder.glob("__*.distcp")}
    num_bytes = 0
    for name, facts in metadata.state_dict_metadata.items():
        if type(name) is not str or type(facts) is not TensorStorageMetadata:
            return f"{_short(name)!r} is not a tensor"
        shape = tuple(facts.size)
        if len(shape) > MOST_DIMENSIONS or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
            return f"{_short(name)} has the shape {_short(shape)}"
        dtype = facts.properties.dtype
        if type(dtype) is not torch.dtype:
            return f"{_short(name)} has no dtype"
        num_bytes += math.prod(shape) * dtype.itemsize
    if num_bytes > sum(sizes.values()):
        return f"names {num_bytes:,} bytes of tensors, and its files hold {sum(sizes.values()):,}"
    if type(metadata.storage_data) is not dict:
        return "says of no tensor where it lies"
    for index, info in metadata.storage_data.items():
        if type(index) is not MetadataIndex or type(info) is not _StorageInfo:
            return "says of a tensor in another form where it lies"
        place = info.relative_path
        if (
            type(place) is not str
            or not _FILE.fullmatch(place)
            or getattr(info, "transform_descriptors", None)
        ):
            return f"places {_short(index.fqn)} in {_short(place)!r}, which is no file of a part"
        offset, length = info.offset, info.length
        if not (type(offset) is type(length) is int and offset >= 0 and length >= 0):
            return f"places {_short(index.fqn)} at byte {_short(offset)}, length {_short(length)}"
        if offset + length > sizes.get(place, 0):
            return f"places {_short(index.fqn)} behind the end of {place}"
    return ""


def _short(value: object) -> str:
    return str(value)[:_MOST_CHARACTERS]
