"""Checkpoint part (weights, EMA or moments): tensors in a folder, by torch's DCP.

    PART/__0_0.distcp, __1_0.distcp, …   the shards that each rank wrote
         .metadata                       names, shapes, dtypes, and the file of each shard

Tensors keep the model's names, so a part can be read alone, on any number of ranks, and with torch's tools
(`torch.distributed.checkpoint.format_utils`). Each rank writes its shards of sharded tensors; one rank writes
a tensor that is not sharded. The same tensors over the same ranks give the same bytes.
"""

import io
import pickle
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from trainer.distributed import mesh
from trainer.distributed.mesh import World
from trainer.run_folder.checkpoint.part_metadata import METADATA, read_metadata
from trainer.run_folder.checkpoint.tensor_slice import require_tensor
from vidcurate.errors import CheckpointError
from vidcurate.storage import stored_zip

# torch warns of this at every save in a world of one process, which is expected here.
warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)


# Writes the shards that a DCP plan lists, in this process or another.
WriteShards = Callable[[SavePlan], list[WriteResult]]


class _Writer(FileSystemWriter):
    """torch's writer without what differs between saves: the folder's path and a random number.

    With `write_shards`, that function writes the data.
    """

    def __init__(self, folder: Path, write_shards: WriteShards | None = None) -> None:
        super().__init__(folder)
        self.write_shards = write_shards

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id="", save_id="")

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        if self.write_shards is None:
            try:
                return super().write_data(plan, planner)
            except RuntimeError as error:
                raise _disk_error(error) from error
        done: Future[list[WriteResult]] = Future()
        done.set_result(self.write_shards(plan))
        return done


class _Planner(DefaultSavePlanner):
    """torch's planner, which writes the given `shards` instead of those that it planned with.

    Empty where a `WriteShards` function has the shards.
    """

    def __init__(self, shards: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.shards = shards

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        return self.shards[write_item.index.fqn].detach()


class _Reader(FileSystemReader):
    """torch's reader, which unpickles `.metadata` without running code, and tensors alone from slices."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata = read_metadata(Path(self.path))
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata

    def _slice_file(self, file: Any, sinfo: _StorageInfo) -> Any:
        require_tensor(stored_zip.Slice(file, sinfo.offset, sinfo.length), sinfo.length)
        return super()._slice_file(file, sinfo)


def local_shards(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return this rank's shard of each tensor, sharing its memory."""
    return {name: mesh.local_shard(value) for name, value in tensors.items()}


def write_part(
    folder: Path,
    tensors: Mapping[str, Tensor],
    world: World,
    write_shards: WriteShards | None = None,
) -> list[Path]:
    """Write this rank's shards of `tensors` into `folder`; return the written files. A collective.

    `write_shards` has copies of `local_shards(tensors)`; then this function reads only the names, shapes and
    shard locations of `tensors`. Raises OSError on every rank where one of them cannot write.
    """
    try:
        dcp_save(
            dict(sorted(tensors.items())),
            storage_writer=_Writer(folder, write_shards),
            planner=_Planner({} if write_shards else local_shards(tensors)),
            process_group=world.group,
            no_dist=world.size == 1,
        )
    except CheckpointException as error:
        raise OSError(_cause(error)) from error
    mine = sorted(folder.glob(f"__{world.rank}_*.distcp"))
    return [*mine, folder / METADATA] if world.is_first else mine


def write_planned(folder: Path, plan: SavePlan, shards: Mapping[str, Tensor]) -> list[WriteResult]:
    """Write those of `shards` that a plan of `write_part` lists, and return torch's results."""
    results: list[WriteResult] = _Writer(folder).write_data(plan, _Planner(shards)).wait()
    return results


def _disk_error(error: BaseException) -> BaseException:
    """Return the OSError behind an error of torch's zip writer, which hides a full disk; else the error."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__cause__ or found.__context__
    return found or error


def _cause(error: CheckpointException) -> str:
    """Return the first rank's failure in one line."""
    rank, (cause, _) = min(error.failures.items())
    reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    text = reason.strip().partition("\n")[0] or type(cause).__name__
    return text if len(error.failures) == 1 and rank == 0 else f"rank {rank}: {text}"


def _kind(dtype: torch.dtype, shape: Iterable[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


def _few(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


Kinds = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


def kinds(tensors: Mapping[str, Tensor]) -> Kinds:
    """Return the dtype and full shape of each tensor."""
    return {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}


def stored_kinds(folder: Path) -> Kinds:
    """Return the dtype and full shape of each tensor of a part. Raises CheckpointError."""
    found = {}
    for name, facts in read_metadata(folder).state_dict_metadata.items():
        if not isinstance(facts, TensorStorageMetadata):
            raise CheckpointError(f"{folder}: {name} is not a tensor.")
        found[name] = (facts.properties.dtype, tuple(facts.size))
    return found


def check_kinds(wanted: Kinds, given: Kinds, where: str) -> None:
    """Raise CheckpointError for a missing or unexpected key, a different shape or dtype."""
    missing = [name for name in wanted if name not in given]
    unexpected = [name for name in given if name not in wanted]
    if missing or unexpected:
        problems = [
            f"{word} {_few(names)}"
            for word, names in (("lacks", missing), ("has unknown", unexpected))
            if names
        ]
        raise CheckpointError(f"{where}: {' and '.join(problems)}; it belongs to another model.")
    for name, kind in wanted.items():
        if given[name] != kind:
            raise CheckpointError(
                f"{where}: {name} is {_kind(*given[name])}; the model has {_kind(*kind)}. "
                "It belongs to another model."
            )


def fill(wanted: Mapping[str, Tensor], folder: Path) -> None:
    """Read a part into the tensors of `wanted`, in place: full tensors and this rank's shards.

    Each rank reads independently. Raises CheckpointError before reading where names, shapes or dtypes differ.
    """
    check_kinds(kinds(wanted), stored_kinds(folder), str(folder))
    try:
        dcp_load(dict(wanted), storage_reader=_Reader(folder), no_dist=True)
    except (CheckpointException, OSError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        text = _cause(error) if isinstance(error, CheckpointException) else str(error).partition("\n")[0]
        raise CheckpointError(f"{folder}: cannot be read ({text}).") from error


def read_part_tensors(folder: Path) -> dict[str, Tensor]:
    """Return all full tensors of a part, on the CPU. Raises CheckpointError."""
    tensors = {name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in stored_kinds(folder).items()}
    fill(tensors, folder)
    return tensors


def copy_into(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], where: str) -> None:
    """Copy the full tensors `given`, which every rank holds, into those of `wanted`, in place.

    Raises CheckpointError before copying where names, shapes or dtypes differ.
    """
    check_kinds(kinds(wanted), kinds(given), where)
    for name, value in wanted.items():
        mesh.copy_to_shards(value, given[name])
