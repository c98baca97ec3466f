"""Checkpoints: a folder that is whole or absent, and says by itself whether it still is.

    RUN/step-00000100/model.safetensors      the weights, by the model's names
                      ema.safetensors        their moving average, float32
                      optimizer.safetensors  exp_avg.<name>, exp_avg_sq.<name>
                      state.json             step, stage, data position, recipe, … (plain JSON)
                      manifest.json          size and SHA-256 of each of these; written last
    RUN/LATEST                               the name of the newest one

A save fills `RUN/.step-00000100.partial`, flushes it, renames it, then moves LATEST. A load trusts nothing:
sizes, hashes, key names and shapes are checked, and files that the manifest does not name are not looked
at. The same tensors give the same bytes. `save` takes tensors that nobody changes any more: an
asynchronous save hands it copies.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vidcurate import __version__
from vidcurate.errors import CheckpointError, StorageError

FORMAT = 1
LATEST = "LATEST"
PARTS = ("model", "ema", "optimizer")
_NAME = re.compile(r"^step-(\d{8,})$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was read and verified. `parts` maps model, ema and optimizer to their tensors."""

    path: Path
    state: dict[str, Any]
    parts: dict[str, dict[str, Tensor]]


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of all names, shapes, dtypes and values, as hex; the order does not matter."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write a small file and flush it to disk."""
    path.write_text(text, encoding="utf-8")
    _flush(path)


def _json(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def save(run: Path, step: int, parts: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> Path:
    """Write RUN/step-…, then LATEST, and return the folder. `parts` maps each of PARTS to its tensors.

    Raises StorageError when the disk refuses; RUN then holds what it held before.
    """
    final = run / folder_name(step)
    partial = run / f".{final.name}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, tensors in parts.items():
            path = partial / f"{name}.safetensors"
            save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, path)
            _flush(path)
        write_text(partial / "state.json", _json(state))
        files = {
            path.name: {"size_bytes": path.stat().st_size, "sha256": _digest(path)}
            for path in sorted(partial.iterdir())
        }
        manifest = {"format": FORMAT, "step": step, "files": files, "versions": _versions()}
        write_text(partial / "manifest.json", _json(manifest))
        _flush(partial)
        _put(partial, final)
        _point(run, final.name)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise StorageError(
            f"{final}: the checkpoint cannot be written ({error}); the ones before it are untouched."
        ) from error
    return final


def _versions() -> dict[str, str]:
    return {"vidcurate": __version__, "torch": torch.__version__}


def _put(partial: Path, final: Path) -> None:
    """Rename `partial` to `final`. An older folder of that name (a step trained again) makes way."""
    old = final.with_name(f".{final.name}.replaced")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    partial.rename(final)
    _flush(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def _point(run: Path, name: str) -> None:
    partial = run / f".{LATEST}.partial"
    write_text(partial, name + "\n")
    partial.replace(run / LATEST)
    _flush(run)


def checkpoints(run: Path) -> list[Path]:
    """Return the complete checkpoints of a run, oldest first; anything else there is passed over."""
    found = []
    for path in run.iterdir() if run.is_dir() else ():
        match = _NAME.match(path.name)
        if match and (path / "manifest.json").is_file():
            found.append((int(match[1]), path))
    return [path for _, path in sorted(found)]


def clean(run: Path) -> None:
    """Remove what saves that were killed left behind; no reader has looked at it."""
    for pattern in (".step-*.partial", ".step-*.replaced"):
        for path in run.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def keep_last(run: Path, number: int) -> list[str]:
    """Delete all but the newest `number` checkpoints (LATEST's is always kept); return the names deleted."""
    newest = latest(run)
    gone = [path for path in checkpoints(run)[: -max(1, number)] if path != newest]
    for path in gone:
        # The manifest goes first: a kill here leaves a folder that no reader takes.
        (path / "manifest.json").unlink()
        shutil.rmtree(path)
    return [path.name for path in gone]


def latest(run: Path) -> Path | None:
    """Return the checkpoint that LATEST names; None for a run that has none.

    Raises CheckpointError when LATEST points at nothing, or is gone while checkpoints are there.
    """
    pointer = run / LATEST
    there = checkpoints(run)
    if not pointer.exists():
        if there:
            raise CheckpointError(
                f"{pointer}: is missing while {there[-1].name} is there. "
                f"To go on from it: echo {there[-1].name} > {pointer}"
            )
        return None
    name = pointer.read_text(encoding="utf-8").strip()
    if run / name in there and _NAME.match(name):
        return run / name
    instead = (
        f"To go on from {there[-1].name}: echo {there[-1].name} > {pointer}"
        if there
        else "There is none left."
    )
    raise CheckpointError(
        f"{pointer}: names {name!r}, which is not a complete checkpoint of this run. {instead}"
    )


def find(path: Path) -> Path:
    """Return the checkpoint meant by `path`: itself, or the one LATEST names when it is a run folder.

    Raises CheckpointError.
    """
    if (path / "manifest.json").is_file():
        return path
    if (path / LATEST).exists() or checkpoints(path):
        found = latest(path)
        assert found is not None
        return found
    if not path.exists():
        raise CheckpointError(f"{path}: no such checkpoint or run folder.")
    raise CheckpointError(
        f"{path}: neither a checkpoint (no manifest.json in it: half copied?) nor a run folder (no {LATEST})."
    )


def _json_file(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}).") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds no JSON object.")
    return value


def verify(path: Path) -> dict[str, Any]:
    """Check every file that the manifest of the checkpoint names, by size and SHA-256; return the manifest.

    Raises CheckpointError, naming the file.
    """
    manifest = _json_file(path / "manifest.json")
    if manifest.get("format", 0) > FORMAT:
        raise CheckpointError(
            f"{path}: has format {manifest['format']}, written by vidcurate "
            f"{manifest.get('versions', {}).get('vidcurate', '?')}; this is {__version__}, "
            f"which knows formats up to {FORMAT}. Upgrade vidcurate."
        )
    for name in (*(f"{part}.safetensors" for part in PARTS), "state.json"):
        if name not in manifest.get("files", {}):
            raise CheckpointError(
                f"{path / 'manifest.json'}: does not list {name}; the checkpoint is incomplete."
            )
    for name, facts in manifest["files"].items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"{file}: is missing; the manifest lists it. Copy the checkpoint again.")
        size = file.stat().st_size
        if size != facts["size_bytes"]:
            raise CheckpointError(
                f"{file}: has {size} bytes; the manifest says {facts['size_bytes']}. "
                "Copy the checkpoint again."
            )
        if _digest(file) != facts["sha256"]:
            raise CheckpointError(
                f"{file}: its SHA-256 is not the manifest's; the file was altered or damaged."
            )
    return manifest


def read_state(path: Path) -> dict[str, Any]:
    """Return a checkpoint's state.json, without reading its tensors. Raises CheckpointError."""
    return _json_file(path / "state.json")


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a .safetensors file, on the CPU. Raises CheckpointError."""
    try:
        return dict(load_file(file))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file}: is not a readable safetensors file ({error}).") from error


def load(path: Path) -> Checkpoint:
    """Return the checkpoint at `path` (see `find`), verified, its tensors on the CPU.

    Raises CheckpointError.
    """
    path = find(path)
    verify(path)
    parts = {part: read_tensors(path / f"{part}.safetensors") for part in PARTS}
    return Checkpoint(path=path, state=read_state(path), parts=parts)


def _few(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


@torch.no_grad()
def copy_into(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], where: str) -> None:
    """Copy `given` into the tensors of `wanted`, in place, whatever their device.

    Raises CheckpointError, before anything is copied, for a missing or unexpected key, another shape or
    another dtype.
    """
    missing = [name for name in wanted if name not in given]
    unexpected = [name for name in given if name not in wanted]
    if missing or unexpected:
        said = [
            f"{word} {_few(names)}"
            for word, names in (("lacks", missing), ("has unknown", unexpected))
            if names
        ]
        raise CheckpointError(f"{where}: {' and '.join(said)}; it belongs to another model.")
    for name, value in wanted.items():
        other = given[name]
        if other.shape != value.shape or other.dtype != value.dtype:
            raise CheckpointError(
                f"{where}: {name} is {_kind(other)}; the model has {_kind(value)}. "
                "It belongs to another model."
            )
    for name, value in wanted.items():
        value.copy_(given[name])


def _kind(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
