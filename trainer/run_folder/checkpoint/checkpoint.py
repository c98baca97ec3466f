"""Checkpoint folders: save atomically, find the newest, verify hashes, load.

    RUN/step-00000100/model/          the weights, by the model's names          (see parts.py)
                      ema/            their moving average, float32
                      optimizer/      exp_avg.<name>, exp_avg_sq.<name>
                      state.json      step, stage, data position, checksums, recipe, … (plain JSON)
                      manifest.json   size and SHA-256 of each of these files; written last
    RUN/LATEST                        the name of the newest checkpoint

All ranks save together, each its own shards. A save fills `RUN/.step-00000100.partial`, flushes it, renames
it, then moves LATEST. A load checks sizes, hashes, key names and shapes, and ignores files that the manifest
does not list. Any number of ranks can read what any other number wrote, and a reader of one part needs no
other: `rsync --exclude '*/optimizer'` leaves a checkpoint that can be sampled. A process beside each rank
writes background saves (save_process.py).
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from trainer.distributed import mesh
from trainer.distributed.mesh import ALONE, World
from trainer.run_folder import pointer
from trainer.run_folder.checkpoint import part_metadata, parts
from trainer.run_folder.layout import checkpoints, folder_name
from vidcurate import __version__
from vidcurate.errors import (
    CheckpointError,
    CheckpointFormatError,
    InputError,
    MissingError,
    StorageError,
    VidcurateError,
)
from vidcurate.storage import atomic_file, regular_file
from vidcurate.storage.checksum import sha256_file

FORMAT = 2
_OLD_FORMATS = (1,)
PARTS = ("model", "ema", "optimizer")
HASHING_THREADS = 4  # hashing releases the GIL


class ShardWriter(Protocol):
    """Writes a rank's shards elsewhere: `trainer.run_folder.checkpoint.save_process`."""

    def shard_writer(self, part: str, folder: Path) -> parts.WriteShards:
        """Return the function that writes the shards of a part into `folder`."""

    def digest(self, path: Path) -> str:
        """Return the SHA-256 of a file of the folder, in hex. Raises OSError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A verified checkpoint in memory. `parts` maps model, ema and optimizer to their tensors."""

    path: Path
    state: dict[str, Any]
    parts: dict[str, dict[str, Tensor]]


def _json(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def save(
    run: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    world: World = ALONE,
    writer: ShardWriter | None = None,
) -> Path:
    """Write RUN/step-…, then LATEST, and return the folder. `tensors` maps each of PARTS to its tensors.

    A collective, over one file system. `writer` writes copies of this rank's shards, so that the training can
    continue to change the tensors. Raises StorageError on every rank where the disk fails on one of them; RUN
    is then unchanged.
    """
    final = run / folder_name(step)
    partial = run / f".{final.name}.partial"

    def empty() -> None:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)

    def write() -> dict[str, Any]:
        if writer:
            written = [
                path
                for name in tensors
                for path in parts.write_part(
                    partial / name, tensors[name], world, writer.shard_writer(name, partial / name)
                )
            ]
            digests = {path: writer.digest(path) for path in written}
        else:
            with ThreadPoolExecutor(HASHING_THREADS) as pool:  # hash a part while the next is written
                hashing = {
                    path: pool.submit(sha256_file, path)
                    for name in tensors
                    for path in parts.write_part(partial / name, tensors[name], world)
                }
            digests = {path: one.result() for path, one in hashing.items()}
        return {str(path.relative_to(partial)): _facts(path, found) for path, found in digests.items()}

    def finish(everyone: list[dict[str, Any]]) -> None:
        atomic_file.put(partial / "state.json", _json(state))
        files = {"state.json": _facts(partial / "state.json", sha256_file(partial / "state.json"))}
        for rank, theirs in enumerate(everyone):
            for name in theirs:
                if not (partial / name).is_file():
                    raise OSError(f"{name} of rank {rank} is not here; the ranks need one common file system")
            files |= theirs
        versions = {"vidcurate": __version__, "torch": torch.__version__}
        manifest = {"format": FORMAT, "step": step, "files": files, "versions": versions}
        atomic_file.put(partial / "manifest.json", _json(manifest))
        for folder in (*(partial / name for name in tensors), partial):
            atomic_file.fsync_folder(folder)
        _put(partial, final)
        pointer.point(run, final.name)

    try:
        mesh.run_on_first_rank(empty, world)
        everyone = mesh.run_on_all_ranks(write, world)
        mesh.run_on_first_rank(lambda: finish(everyone), world)
    except (OSError, VidcurateError) as error:
        if world.is_first:
            shutil.rmtree(partial, ignore_errors=True)
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise StorageError(
            f"{final}: the checkpoint cannot be written ({why}); the ones before it are untouched."
        ) from error
    return final


def _facts(path: Path, digest: str) -> dict[str, Any]:
    """Return the manifest's entry of a file."""
    return {"size_bytes": path.stat().st_size, "sha256": digest}


def _put(partial: Path, final: Path) -> None:
    """Rename `partial` to `final`, replacing an older folder of that name (a step trained again)."""
    old = final.with_name(f".{final.name}.replaced")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    partial.rename(final)
    atomic_file.fsync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def find(path: Path) -> Path:
    """Return the checkpoint at `path`, or for a run folder the one that LATEST names.

    Raises MissingError where `path` does not exist, CheckpointError where it is no checkpoint.
    """
    if (path / "manifest.json").is_file():
        return path
    if pointer.is_there(path) or checkpoints(path):
        found = pointer.latest(path)
        assert found is not None
        return found
    if not path.exists():
        raise MissingError(f"{path}: no such checkpoint or run folder.")
    raise CheckpointError(
        f"{path}: neither a checkpoint (no manifest.json in it: half copied?) nor a run folder "
        f"(no {pointer.LATEST})."
    )


def find_named(path: Path) -> Path:
    """Return what `find` does, of a path that a command names. Raises InputError for any other folder."""
    try:
        return find(path)
    except CheckpointError as error:
        if pointer.is_there(path) or checkpoints(path):
            raise
        raise InputError(str(error)) from error


def _json_file(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(regular_file.read_bytes(path))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}).") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: is not a JSON object.")
    return value


def _check_format(path: Path, manifest: dict[str, Any]) -> None:
    found = manifest.get("format")
    if found == FORMAT:
        return
    versions = manifest.get("versions")
    version = versions.get("vidcurate", "?") if isinstance(versions, dict) else "?"
    if found not in _OLD_FORMATS and (type(found) is not int or found < FORMAT or version == __version__):
        raise CheckpointError(
            f"{path / 'manifest.json'}: is damaged: its format is {found!r}, and vidcurate {version} writes "
            f"{FORMAT}. Copy the checkpoint again."
        )
    by = f"format {found}, written by vidcurate {version}"
    if found in _OLD_FORMATS:
        raise CheckpointFormatError(
            f"{path}: has {by} before its first release; this is {__version__}, which reads format {FORMAT}. "
            "Train it again, or take its model.safetensors with --ckpt-path."
        )
    raise CheckpointFormatError(
        f"{path}: has {by}; this is {__version__}, which knows formats up to {FORMAT}. Upgrade vidcurate."
    )


def _is_entry(name: str, facts: object) -> bool:
    """Whether a name and its facts can be those of a checkpoint's file."""
    inside = not name.startswith("/") and ".." not in name.split("/") and name.isprintable()
    return (
        inside
        and isinstance(facts, dict)
        and isinstance(facts.get("size_bytes"), int)
        and isinstance(facts.get("sha256"), str)
    )


def listed_files(path: Path, only: Sequence[str] = PARTS) -> dict[str, dict[str, Any]]:
    """Return the manifest's entries of the parts `only` and of state.json: name → entry.

    Raises CheckpointError.
    """
    manifest = _json_file(path / "manifest.json")
    _check_format(path, manifest)
    listed = manifest.get("files", {})
    if not isinstance(listed, dict) or not all(_is_entry(*entry) for entry in listed.items()):
        raise CheckpointError(
            f"{path / 'manifest.json'}: an entry of `files` is not a name in the folder with size_bytes and "
            "sha256. Copy the checkpoint again."
        )
    for name in (*(f"{part}/{part_metadata.METADATA}" for part in only), "state.json"):
        if name not in listed:
            raise CheckpointError(
                f"{path / 'manifest.json'}: does not list {name}; the checkpoint is incomplete."
            )
    return {name: listed[name] for name in sorted(listed) if name.partition("/")[0] in (*only, "state.json")}


def verify(path: Path, only: Sequence[str] = PARTS, world: World = ALONE) -> dict[str, Any]:
    """Check size and SHA-256 of the files of the parts `only` and state.json; return the manifest.

    A collective: the ranks share the work. Raises CheckpointError on all ranks, naming the file.
    """

    def check() -> dict[str, Any]:
        needed = listed_files(path, only)
        mine = list(needed)[world.rank :: world.size]
        with ThreadPoolExecutor(HASHING_THREADS) as pool:
            list(pool.map(_check_file, [path / name for name in mine], [needed[name] for name in mine]))
        if world.is_first:
            _check_shards_are_listed(path, only, needed)
        return _json_file(path / "manifest.json")

    return mesh.run_on_all_ranks(check, world)[0]


def _check_shards_are_listed(path: Path, only: Sequence[str], listed: Mapping[str, object]) -> None:
    """Raise CheckpointError for a file with tensors that the manifest does not list: its hash is unknown."""
    for part in only:
        places = part_metadata.read_metadata(path / part).storage_data.values()
        for name in sorted({f"{part}/{one.relative_path}" for one in places}):
            if name not in listed:
                raise CheckpointError(
                    f"{path / 'manifest.json'}: does not list {name}, which holds tensors of the checkpoint. "
                    "Copy the checkpoint again."
                )


def check_sizes(path: Path, only: Sequence[str]) -> None:
    """Check that the files of the parts `only` and state.json exist with the manifest's sizes.

    Reads no tensor, so a caller that waits for a copy to end may poll. Raises CheckpointError.
    """
    for name, facts in listed_files(path, only).items():
        _check_size(path / name, facts)


def _check_size(file: Path, facts: dict[str, Any]) -> None:
    try:
        size = file.stat().st_size
    except OSError as error:
        raise CheckpointError(
            f"{file}: is missing; the manifest lists it. Copy the checkpoint again."
        ) from error
    if size != facts["size_bytes"]:
        raise CheckpointError(
            f"{file}: has {size} bytes; the manifest says {facts['size_bytes']}. Copy the checkpoint again."
        )


def _check_file(file: Path, facts: dict[str, Any]) -> None:
    _check_size(file, facts)
    try:
        found = sha256_file(file)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error}).") from error
    if found != facts["sha256"]:
        raise CheckpointError(f"{file}: its SHA-256 is not the manifest's; the file was altered or damaged.")


def read_state(path: Path) -> dict[str, Any]:
    """Return a checkpoint's state.json, without reading its tensors. Raises CheckpointError."""
    _check_file(path / "state.json", listed_files(path, ())["state.json"])
    return _json_file(path / "state.json")


def read_part(path: Path, part: str) -> dict[str, Tensor]:
    """Return one verified part of the checkpoint folder `path` as full tensors on the CPU.

    Needs no other part. Raises CheckpointError.
    """
    verify(path, (part,))
    return parts.read_part_tensors(path / part)


def load(path: Path) -> Checkpoint:
    """Return the verified checkpoint at `path` (see `find`), all full tensors on the CPU.

    Raises CheckpointError.
    """
    path = find(path)
    verify(path)
    return Checkpoint(
        path=path,
        state=read_state(path),
        parts={part: parts.read_part_tensors(path / part) for part in PARTS},
    )
