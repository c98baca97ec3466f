"""One part of a checkpoint (weights, average, moments): named tensors in a folder, by torch's own DCP.

    PART/__0_0.distcp, __1_0.distcp, …   what each rank wrote of them
         .metadata                       names, shapes, dtypes, and where each piece lies

Tensors keep the model's names, so a part can be read alone, on any number of ranks, and by torch's own tools
(`torch.distributed.checkpoint.format_utils`). A tensor that lies over ranks is written in pieces, a whole one
by one of the ranks. The same tensors over the same ranks give the same bytes.
"""

import io
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from trainer.distributed import mesh
from trainer.distributed.mesh import World
from trainer.run_folder.checkpoint.part_metadata import METADATA, read_metadata
from vidcurate.errors import CheckpointError

# torch says this of every save by a process that is alone, which here is as it should be.
warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)


# Writes the pieces of a part that a plan names, in this process or another.
Hand = Callable[[SavePlan], list[WriteResult]]


class _Writer(FileSystemWriter):
    """torch's writer without what differs from save to save: the folder's path and a random number.

    With a `hand`, that writes the data.
    """

    def __init__(self, folder: Path, hand: Hand | None = None) -> None:
        super().__init__(folder)
        self.hand = hand

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id="", save_id="")

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        if self.hand is None:
            return super().write_data(plan, planner)
        done: Future[list[WriteResult]] = Future()
        done.set_result(self.hand(plan))
        return done


class _Planner(DefaultSavePlanner):
    """torch's planner, told which pieces to write instead of those of the tensors that it planned with.

    Where a hand writes, it has them.
    """

    def __init__(self, pieces: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.pieces = pieces

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        return self.pieces[write_item.index.fqn].detach()


class _Reader(FileSystemReader):
    """torch's reader with a `.metadata` that is read as data."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata = read_metadata(Path(self.path))
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata


def pieces_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return this rank's piece of each tensor, not copied."""
    return {name: mesh.local_shard(value) for name, value in tensors.items()}


def write_part(
    folder: Path, tensors: Mapping[str, Tensor], world: World, hand: Hand | None = None
) -> list[Path]:
    """Write this rank's share of `tensors` into `folder`; return the files it wrote. All ranks call it.

    `hand` has copies of `pieces_of(tensors)`, made while nobody changed them; then only the names, shapes
    and places of `tensors` are read. Raises OSError, on every rank, when one of them cannot write.
    """
    try:
        dcp_save(
            dict(sorted(tensors.items())),
            storage_writer=_Writer(folder, hand),
            planner=_Planner({} if hand else pieces_of(tensors)),
            process_group=world.group,
            no_dist=world.size == 1,
        )
    except CheckpointException as error:
        raise OSError(_cause(error)) from error
    mine = sorted(folder.glob(f"__{world.rank}_*.distcp"))
    return [*mine, folder / METADATA] if world.is_first else mine


def write_planned(folder: Path, plan: SavePlan, pieces: Mapping[str, Tensor]) -> list[WriteResult]:
    """Write those of `pieces` that a plan of `write` names, and return what became of them."""
    results: list[WriteResult] = _Writer(folder).write_data(plan, _Planner(pieces)).wait()
    return results


def _cause(error: CheckpointException) -> str:
    """Return the first rank's failure in one line."""
    rank, (cause, _) = min(error.failures.items())
    text = str(cause).strip().partition("\n")[0] or type(cause).__name__
    return text if len(error.failures) == 1 and rank == 0 else f"rank {rank}: {text}"


def _kind(dtype: torch.dtype, shape: Iterable[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


def _few(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


Kinds = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


def kinds(tensors: Mapping[str, Tensor]) -> Kinds:
    """Return the dtype and whole shape of each tensor."""
    return {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}


def stored_kinds(folder: Path) -> Kinds:
    """Return the dtype and whole shape of each tensor of a part. Raises CheckpointError."""
    found = {}
    for name, facts in read_metadata(folder).state_dict_metadata.items():
        if not isinstance(facts, TensorStorageMetadata):
            raise CheckpointError(f"{folder}: {name} is not a tensor.")
        found[name] = (facts.properties.dtype, tuple(facts.size))
    return found


def check_kinds(wanted: Kinds, given: Kinds, where: str) -> None:
    """Raise CheckpointError for a missing or unexpected key, another shape or another dtype."""
    missing = [name for name in wanted if name not in given]
    unexpected = [name for name in given if name not in wanted]
    if missing or unexpected:
        said = [
            f"{word} {_few(names)}"
            for word, names in (("lacks", missing), ("has unknown", unexpected))
            if names
        ]
        raise CheckpointError(f"{where}: {' and '.join(said)}; it belongs to another model.")
    for name, kind in wanted.items():
        if given[name] != kind:
            raise CheckpointError(
                f"{where}: {name} is {_kind(*given[name])}; the model has {_kind(*kind)}. "
                "It belongs to another model."
            )


def fill(wanted: Mapping[str, Tensor], folder: Path) -> None:
    """Read a part into the tensors of `wanted`, in place: whole ones and this rank's pieces of others.

    Each rank reads for itself. Raises CheckpointError, before anything is read, where names, shapes or
    dtypes differ.
    """
    check_kinds(kinds(wanted), stored_kinds(folder), str(folder))
    try:
        dcp_load(dict(wanted), storage_reader=_Reader(folder), no_dist=True)
    except (CheckpointException, OSError, RuntimeError, ValueError) as error:
        text = _cause(error) if isinstance(error, CheckpointException) else str(error).partition("\n")[0]
        raise CheckpointError(f"{folder}: cannot be read ({text}).") from error


def read_part_tensors(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a part, whole, on the CPU. Raises CheckpointError."""
    tensors = {name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in stored_kinds(folder).items()}
    fill(tensors, folder)
    return tensors


def copy_into(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], where: str) -> None:
    """Copy the whole tensors `given`, which every rank holds, into those of `wanted`, in place.

    Raises CheckpointError, before anything is copied, where names, shapes or dtypes differ.
    """
    check_kinds(kinds(wanted), kinds(given), where)
    for name, value in wanted.items():
        mesh.copy_to_shards(value, given[name])
