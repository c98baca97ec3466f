"""Convert weights: read PixArt and Open-Sora checkpoints, write safetensors.

A source is a .safetensors, .pt, .pth or .bin file, or a folder with one (sharded with its index, or not), or
a part of a checkpoint such as step-00000100/model. Folders are written atomically: `config.json` and
`model.safetensors`, or shards. `python -m trainer convert` is the command.
"""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from trainer.model.layers import rope_frequencies
from trainer.model.stdit import XL_2, ModelSpec, STDiT3Config
from trainer.model.weight_shards import listed_shards
from trainer.run_folder.checkpoint import checkpoint, part_metadata
from trainer.run_folder.checkpoint.pixart import state_shapes
from vidcurate.errors import CheckpointError, InputError, MissingError, StorageError, WeightsError
from vidcurate.recipe import removed_keys
from vidcurate.storage import atomic_file
from vidcurate.storage.stored_zip import require_stored_file

CONFIG = "config.json"
WHOLE = "model.safetensors"
# In a folder, the first of these that exists is read; ColossalAI keeps its shards in model/.
NAMES = (f"{WHOLE}.index.json", WHOLE, "pytorch_model.bin.index.json", "pytorch_model.bin", "ema.pt", "model")
# Prefixes of PixArt's names: in its own files, in the dictionary around them, in diffusers.
PIXART = ("blocks.", "state_dict", "transformer_blocks.")
# Keys of Hugging Face's config.json besides the model's fields.
FOREIGN = {"model_type", "architectures", "torch_dtype", "dtype", "transformers_version", "_name_or_path"}
FOREIGN |= {"auto_map", "input_size", "force_huggingface", "from_pretrained", "return_dict", "_commit_hash"}

# Of the original's configuration, the same in all published weights: another value is refused.
FIXED = {"patch_size": [1, 2, 2], "mlp_ratio": 4.0, "qk_norm": True}
# The fields of the original's configuration that are ours, in its order; `_fields` adds FIXED.
ORDER = (
    "hidden_size",
    "depth",
    "num_heads",
    "caption_channels",
    "model_max_length",
    "input_sq_size",
    "in_channels",
)
# Of the original's configuration, without effect here: read and dropped, and written with these values.
WITHOUT_EFFECT = {
    "class_dropout_prob": 0.1,
    "enable_flash_attn": False,
    "enable_layernorm_kernel": False,
    "enable_sequence_parallelism": False,
    "drop_path": 0.0,
}


def read_tensors(source: Path) -> dict[str, object]:
    """Return the content of `source` on the CPU, in its own dtypes; a .pth may have more than tensors.

    Searches a folder for NAMES. Shards must contain exactly what their index lists. Unpickles tensors only,
    never code. Raises MissingError for no such file, WeightsError for a damaged file.
    """
    if (source / part_metadata.METADATA).is_file():  # a part of a checkpoint of the trainer's
        return dict(checkpoint.read_part(source.parent, source.name))
    if source.is_dir():
        found = next((source / name for name in NAMES if (source / name).exists()), None)
        if found is None:
            raise InputError(f"{source}: has no weights; looked for {', '.join(NAMES)}.")
        return read_tensors(found)
    if not source.is_file():
        raise MissingError(f"{source}: there is no such file.")
    if source.name.endswith(".index.json"):
        return _read_shards(source)
    try:
        if source.suffix == ".safetensors":
            return dict(load_file(source))
        require_stored_file(source)
        loaded = torch.load(source, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{source}: cannot be read ({_first_line(error)}).") from error
    except Exception as error:  # of a damaged pickle, torch raises whatever its opcodes run into
        raise WeightsError(f"{source}: cannot be read as weights ({_first_line(error)}).") from error
    if not isinstance(loaded, dict):
        raise WeightsError(f"{source}: is a {type(loaded).__name__}, not named tensors.")
    return loaded


def _read_shards(index: Path) -> dict[str, object]:
    merged: dict[str, object] = {}
    for shard, names in listed_shards(index).items():
        held = read_tensors(index.parent / shard)
        if set(held) != names:
            wrong = sorted(set(held) ^ names)[0]
            raise WeightsError(f"{index.parent / shard}: does not hold what its index lists, see {wrong}.")
        merged |= held
    return merged


def read_open_sora(source: Path, config: STDiT3Config | None = None) -> dict[str, Tensor]:
    """Return the STDiT3 state dict stored at `source`, bit for bit and in its dtypes.

    `config` is the expected model; None means config.json beside `source`, or XL/2. Raises WeightsError,
    naming the key, where a key is missing or unexpected, a shape differs, or the RoPE is not this model's.
    """
    config = config or read_config(source) or XL_2
    held = read_tensors(source)
    if any(name.startswith(PIXART) for name in held):
        raise WeightsError(
            f"{source}: is a PixArt checkpoint; convert it first: "
            f"python -m trainer convert pixart {source} FOLDER"
        )
    shapes = state_shapes(config)
    for problem, names in (
        ("lacks", set(shapes) - set(held)),
        ("has the unexpected", set(held) - set(shapes)),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise WeightsError(f"{source}: {problem} {min(names)}{more}; it is not this STDiT3.")
    state: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        value = held[name]
        if not isinstance(value, Tensor) or tuple(value.shape) != shape:
            kind = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise WeightsError(f"{source}: {name} is {kind}; this model needs {list(shape)}.")
        state[name] = value
    expected = rope_frequencies(config.head_dim)
    if not torch.allclose(state["rope.freqs"].float(), expected, rtol=2**-8, atol=0):
        raise WeightsError(f"{source}: rope.freqs are not 10000^(-2i/{config.head_dim}); not this STDiT3.")
    return state


def read_config(source: Path) -> STDiT3Config | None:
    """Return the configuration of config.json in or beside `source`; None where there is none.

    A part of a checkpoint has that of its run. Ignores Hugging Face's own keys. Raises CheckpointError for
    unknown keys.
    """
    path = (source if source.is_dir() else source.parent) / CONFIG
    if (source / part_metadata.METADATA).is_file():
        recipe = checkpoint.read_state(source.parent).get("recipe")
        if not isinstance(recipe, dict) or not isinstance(recipe.get("model"), dict):
            raise CheckpointError(f"{source.parent}: its state.json has no recipe of a model.")
        model = removed_keys.upgrade(recipe["model"], ModelSpec)
        spec = ModelSpec.model_validate_json(json.dumps(model))
        return STDiT3Config.model_validate(spec.model_dump() | _widths(source))
    if not path.is_file():
        return None
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields.get("drop_path"):
            raise ValueError("drop_path must be 0, as in every published recipe; the model draws nothing")
        for name, value in FIXED.items():
            if fields.get(name, value) != value:
                raise ValueError(f"{name} must be {json.dumps(value)}, as in all published weights")
        dropped = FOREIGN | WITHOUT_EFFECT.keys() | FIXED.keys()
        kept = {name: value for name, value in fields.items() if name not in dropped}
        return STDiT3Config(**kept)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        text = error.errors()[0] if isinstance(error, ValidationError) else _first_line(error)
        if isinstance(text, dict):
            text = f"{'.'.join(map(str, text['loc'])) or 'config'}: {text['msg']}"
        raise CheckpointError(f"{path}: is not an STDiT3 configuration ({text}).") from error


def _widths(part: Path) -> dict[str, int]:
    """Return the widths of the encoders that a part's weights were trained with."""
    tensors: dict[str, Any] = part_metadata.read_metadata(part).state_dict_metadata
    try:
        length, channels = tensors["y_embedder.y_embedding"].size
        latent = tensors["x_embedder.proj.weight"].size[1]
    except (KeyError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{part}: holds no STDiT3 ({error}). Take another part.") from error
    return {"model_max_length": length, "caption_channels": channels, "in_channels": latent}


def write_open_sora(
    state: Mapping[str, Tensor], config: STDiT3Config, folder: Path, *, shard_bytes: int | None = None
) -> None:
    """Write `folder` atomically, with config.json and the tensors, bit for bit.

    `shard_bytes` splits the tensors into shards of at most that many bytes, with an index, in the order of
    their names. Raises InputError where `folder` exists, StorageError where the disk fails.
    """
    if folder.exists():
        raise InputError(f"{folder}: exists already; name a new folder.")
    try:
        with atomic_file.atomic_folder(folder) as partial:
            _write_tensors(state, partial, shard_bytes)
            document = _exchanged(config)
            (partial / CONFIG).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise StorageError(f"{folder}: cannot be written ({_first_line(error)}).") from error


def _exchanged(config: STDiT3Config) -> dict[str, Any]:
    """Return what config.json holds: the fields of the original's configuration in its order, and our own."""
    document: dict[str, Any] = {"architectures": ["STDiT3"], "model_type": "STDiT3"}
    for name, value in _fields(config).items():
        document[name] = value
        if name == "pred_sigma":
            document |= WITHOUT_EFFECT
    return document


def _fields(config: STDiT3Config) -> dict[str, Any]:
    """Return the fields of the configuration as JSON values, in the original's order, with FIXED."""
    fields: dict[str, Any] = {}
    plain = config.model_dump(mode="json")
    for name in (*ORDER, *(name for name in plain if name not in ORDER)):
        fields[name] = plain[name]
        if name == "in_channels":
            fields |= FIXED
    return fields


def _write_tensors(state: Mapping[str, Tensor], folder: Path, shard_bytes: int | None) -> None:
    groups: list[dict[str, Tensor]] = [{}]
    filled = 0
    for name in sorted(state):
        size = state[name].numel() * state[name].element_size()
        if shard_bytes is not None and groups[-1] and filled + size > shard_bytes:
            groups.append({})
            filled = 0
        groups[-1][name] = state[name].detach().cpu().contiguous()
        filled += size
    if shard_bytes is None:
        _write_file(groups[0], folder / WHOLE)
        return
    listed: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        shard = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        _write_file(group, folder / shard)
        listed |= dict.fromkeys(group, shard)
    total = sum(value.numel() * value.element_size() for value in state.values())
    index = {"metadata": {"total_size": total}, "weight_map": listed}
    (folder / f"{WHOLE}.index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _write_file(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file with the umask's permissions, where `save_file` has 0600."""
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(mode)


def part_of(source: Path, *, raw: bool) -> Path:
    """Return the part of a checkpoint or a run that an export reads. Raises CheckpointError."""
    if (source / part_metadata.METADATA).is_file():
        return source
    return checkpoint.find(source) / ("model" if raw else "ema")


def facts(state: Mapping[str, Tensor], config: STDiT3Config) -> dict[str, Any]:
    """Return the number of tensors and parameters, the dtypes and the configuration, as plain JSON."""
    return {
        "tensors": len(state),
        "parameters": sum(value.numel() for name, value in state.items() if name != "y_embedder.y_embedding"),
        "dtypes": sorted({str(value.dtype).removeprefix("torch.") for value in state.values()}),
        "config": _fields(config),
    }


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    if isinstance(error, pickle.UnpicklingError):  # torch's text advises to run the file's code
        text = text.partition("WeightsUnpickler error: ")[2].strip() or "not a pickle of tensors"
    return text.partition("\n")[0] or type(error).__name__
