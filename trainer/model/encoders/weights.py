"""Weights of encoders: from a local folder or file, or from the Hugging Face hub.

Weights are loaded by name: a missing or unknown key, or a wrong shape, is an error that names the key.
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.model.weight_shards import listed_shards
from vidcurate.errors import CheckpointError, InputError, MissingError, StorageError
from vidcurate.storage.stored_zip import require_stored_file

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
WEIGHTS = (
    "model.safetensors",
    "diffusion_pytorch_model.safetensors",
    "model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)

# What is fetched of a name on the hub: the top folder's weights alone.
WEIGHT_FILES = ("config.json", "model*.safetensors*", "diffusion_pytorch_model*.safetensors*")


def locate(source: str, *, key: str, patterns: Sequence[str], offline: bool = False) -> Path:
    """Return the folder or file that `source` names; of a hub name, the files `patterns` in the hub's cache.

    `key` is the recipe's key, for the message. `offline`: what is not in the cache yet is not fetched. Raises
    MissingError for what is neither, StorageError where the hub has it not or cannot be reached.
    """
    path = Path(source).expanduser()
    if path.exists():
        return path
    if not HUB_NAME.fullmatch(source):
        raise MissingError(
            f"{key} is {source}: no such folder or file, and no name on the hub either (owner/name); "
            f"give the folder that holds the weights."
        )
    hub = need("huggingface_hub", key)
    try:
        return Path(hub.snapshot_download(source, allow_patterns=list(patterns), local_files_only=offline))
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
        raise StorageError(
            f"{key} is {source}: no such folder here, and the hub did not give it "
            f"({type(error).__name__}); run `hf download {source}` where there is a network, and set {key} "
            f"to the folder it prints."
        ) from error


def need(package: str, key: str) -> Any:
    """Import and return an optional package. Raises InputError, with what to install, if it is not there."""
    try:
        module = __import__(package)
    except ImportError as error:
        raise InputError(
            f"{key} needs {package}, which is not installed: pip install 'vidcurate[encode]'."
        ) from error
    return module


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in the file at `path`. Raises CheckpointError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error}).") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__}; a JSON object is needed.")
    return value


def tensors_of(path: Path, *, key: str, shapes_alone: bool = False) -> dict[str, Tensor]:
    """Return the tensors of a file, or of the weights file in a folder, by name, on the CPU.

    Reads safetensors, also in parts beside their index, and PyTorch's own files (weights only, no code).
    `shapes_alone`: the tensors are on the meta device, and of a file only its list of them is read. Raises
    InputError for a folder without weights, CheckpointError for a file or an index that cannot be read.
    """
    if path.is_dir():
        found = [path / name for name in WEIGHTS if (path / name).is_file()]
        if not found:
            raise InputError(f"{key}: {path} holds no weights; one of {', '.join(WEIGHTS)} is needed there.")
        path = found[0]
    if path.suffix == ".json":
        return {
            name: value
            for part in listed_shards(path)
            for name, value in tensors_of(path.parent / part, key=key, shapes_alone=shapes_alone).items()
        }
    try:
        if path.suffix == ".safetensors":
            from safetensors import safe_open
            from safetensors.torch import load_file

            if not shapes_alone:
                return dict(load_file(path))
            with safe_open(path, framework="pt") as file:
                shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
            return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        device = "meta" if shapes_alone else "cpu"
        require_stored_file(path)
        state = torch.load(path, map_location=device, weights_only=True, mmap=shapes_alone)
    except Exception as error:  # safetensors and pickle raise classes of their own
        raise CheckpointError(f"{path}: cannot be read ({' '.join(str(error).split())[:200]}).") from error
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def load_exactly(module: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """Put `state` into `module` (which may be on the meta device), name by name; tensors are taken over.

    Raises CheckpointError that names the first key that is missing, unknown or of another shape.
    """
    wanted = module.state_dict()
    missing = [name for name in wanted if name not in state]
    unknown = [name for name in state if name not in wanted]
    if missing or unknown:
        parts = []
        if missing:
            near = difflib.get_close_matches(missing[0], unknown, n=1, cutoff=0.8)
            parts.append(f"{missing[0]} is missing" + (f" (there is {near[0]})" if near else ""))
        if unknown:
            parts.append(f"{unknown[0]} is not a key of this encoder")
        raise CheckpointError(
            f"{where}: {' and '.join(parts)}; in all {len(missing)} of {len(wanted)} missing, "
            f"{len(unknown)} unknown. Weights of this encoder, by its own names, are needed."
        )
    for name, value in wanted.items():
        if state[name].shape != value.shape:
            raise CheckpointError(
                f"{where}: {name} is {list(state[name].shape)}; this encoder needs {list(value.shape)}."
            )
    module.load_state_dict(dict(state), assign=True)
