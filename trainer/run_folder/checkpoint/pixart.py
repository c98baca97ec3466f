"""PixArt-Σ and PixArt-α checkpoints to STDiT3: names, shapes, report of every key.

PixArt is an image model with the same blocks; its blocks become the spatial blocks. `initial_value`
initialises what PixArt lacks (the temporal blocks, the fps embedder, the norms of queries and keys). With
those norms at 1 the attention differs much from PixArt's, so the loss starts high, as in the published code.
The published code does not rename PixArt-α's blocks and so silently initialises them at random; here they
load.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.model.stdit import STDiT3, STDiT3Config, initial_value
from vidcurate.errors import CheckpointError

# Keys of PixArt that STDiT3 does not use: a fixed position table, α-1024's embedding of size and ratio.
UNUSED = re.compile(
    r"pos_embed|pos_embed\.pos_embed|csize_embedder\..*|ar_embedder\..*"
    r"|adaln_single\.emb\.(resolution|aspect_ratio)_embedder\..*"
)
# Keys of STDiT3 that PixArt lacks.
NEW = re.compile(
    r"temporal_blocks\..*|fps_embedder\..*|rope\.freqs|spatial_blocks\.\d+\.attn\.[qk]_norm\.weight"
)

# diffusers' names; blocks are below.
DIFFUSERS = {
    "pos_embed.proj": "x_embedder.proj",
    "adaln_single.emb.timestep_embedder.linear_1": "t_embedder.mlp.0",
    "adaln_single.emb.timestep_embedder.linear_2": "t_embedder.mlp.2",
    "adaln_single.linear": "t_block.1",
    "caption_projection.linear_1": "y_embedder.y_proj.fc1",
    "caption_projection.linear_2": "y_embedder.y_proj.fc2",
    "proj_out": "final_layer.linear",
}
DIFFUSERS_BLOCK = {
    "attn1.to_out.0": "attn.proj",
    "attn2.to_q": "cross_attn.q_linear",
    "attn2.to_out.0": "cross_attn.proj",
    "ff.net.0.proj": "mlp.fc1",
    "ff.net.2": "mlp.fc2",
}
# Tensors of diffusers whose rows, concatenated, are one tensor of STDiT3.
DIFFUSERS_JOINED = {
    "attn.qkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
    "cross_attn.kv_linear": ("attn2.to_k", "attn2.to_v"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report of every key. `loaded` and `initialised` are the model's names and cover the model exactly.

    `reshaped`: name in `loaded` → the change of shape; `unused` and `allowed` are the source's names.
    """

    loaded: tuple[str, ...]
    reshaped: dict[str, str]
    initialised: tuple[str, ...]
    unused: tuple[str, ...]
    allowed: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        temporal = [name for name in self.initialised if name.startswith("temporal_blocks.")]
        others = [name for name in self.initialised if not name.startswith("temporal_blocks.")]
        norms = [name for name in others if name.endswith("_norm.weight")]
        rest = [name for name in others if name not in norms]
        return [
            f"{len(self.loaded)} loaded",
            f"{len(self.reshaped)} of them reshaped",
            *(f"  {name}: {how}" for name, how in self.reshaped.items()),
            f"{len(self.initialised)} initialised",
            f"  {len(temporal)} temporal_blocks.*",
            f"  {len(norms)} spatial_blocks.*.attn.{{q,k}}_norm.weight",
            *(f"  {name}" for name in rest),
            f"{len(self.unused)} not used: {', '.join(self.unused) or 'none'}",
            f"{len(self.allowed)} unexpected and allowed: {', '.join(self.allowed) or 'none'}",
        ]


def convert_pixart(
    source: Mapping[str, object],
    config: STDiT3Config | None = None,
    *,
    seed: int = 0,
    allow: Collection[str] = (),
    where: str = "PixArt checkpoint",
) -> tuple[dict[str, Tensor], Report]:
    """Convert a PixArt state dict to a complete STDiT3 state dict in float32; return it and the report.

    `source` is the state dict, or the published file's dictionary around it, with PixArt's or diffusers'
    names. `config` defaults to XL/2. `seed` is for the weights that PixArt lacks. `allow` names unexpected
    keys to ignore. Raises CheckpointError, naming the key, for an unexpected or missing key or a wrong shape.
    Tensors on the meta device are checked too, and give a state without values.
    """
    config = config or STDiT3Config()
    given = _tensors(source, where)
    shapes = state_shapes(config)
    unused = tuple(sorted(name for name in given if UNUSED.fullmatch(name)))
    allowed = tuple(sorted(name for name in given if name in allow and name not in unused))
    given = {name: value for name, value in given.items() if name not in unused and name not in allowed}
    reshaped: dict[str, str] = {}
    if any(name.startswith("transformer_blocks.") for name in given):
        given = _from_diffusers(given, reshaped, where)
        optional = {"y_embedder.y_embedding"}
    else:
        given = {
            f"spatial_{name}" if name.startswith("blocks.") else name: value for name, value in given.items()
        }
        optional = set()

    unexpected = sorted(name for name in given if name not in shapes or NEW.fullmatch(name))
    if unexpected:
        raise CheckpointError(
            f"{where}: unexpected {_few(unexpected)}. To leave a key out, name it with --allow."
        )
    expected = {name for name in shapes if not NEW.fullmatch(name)}
    missing = sorted(expected - set(given) - optional)
    if missing:
        raise CheckpointError(
            f"{where}: lacks {_few(missing)}; is it a PixArt model of depth {config.depth}?"
        )

    blank = all(value.is_meta for value in given.values())
    state: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        if name in given:
            state[name] = _fit(name, given[name], shape, reshaped, where)
        elif blank:
            state[name] = torch.empty(shape, device="meta")
        else:
            state[name] = initial_value(name, shape, config, seed)
    report = Report(
        loaded=tuple(name for name in shapes if name in given),
        reshaped=reshaped,
        initialised=tuple(name for name in shapes if name not in given),
        unused=unused,
        allowed=allowed,
    )
    return state, report


def state_shapes(config: STDiT3Config) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor in the model's state dict, without allocating memory."""
    with torch.device("meta"):
        return {name: tuple(value.shape) for name, value in STDiT3(config).state_dict().items()}


def _tensors(source: Mapping[str, object], where: str) -> dict[str, Tensor]:
    inner = source.get("state_dict", source)
    if not isinstance(inner, Mapping) or not inner:
        raise CheckpointError(f"{where}: has no state dict.")
    found: dict[str, Tensor] = {}
    for name, value in inner.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(f"{where}: {name} is a {type(value).__name__}; expected a tensor.")
        found[str(name)] = value
    return found


def _from_diffusers(given: Mapping[str, Tensor], reshaped: dict[str, str], where: str) -> dict[str, Tensor]:
    """Return the tensors with the model's names; names that are not diffusers' stay as they are."""
    found: dict[str, Tensor] = {}
    parts: dict[str, dict[str, Tensor]] = {}
    joined = {theirs: ours for ours, several in DIFFUSERS_JOINED.items() for theirs in several}
    for name, value in given.items():
        layer, _, kind = name.rpartition(".")
        block = re.fullmatch(r"transformer_blocks\.(\d+)\.(.+)", layer)
        if name == "scale_shift_table":
            found["final_layer.scale_shift_table"] = value
        elif layer in DIFFUSERS:
            found[f"{DIFFUSERS[layer]}.{kind}"] = value
        elif block and block[2] in DIFFUSERS_BLOCK:
            found[f"spatial_blocks.{block[1]}.{DIFFUSERS_BLOCK[block[2]]}.{kind}"] = value
        elif block and block[2] in joined:
            parts.setdefault(f"spatial_blocks.{block[1]}.{joined[block[2]]}.{kind}", {})[block[2]] = value
        else:
            found[re.sub(r"^transformer_blocks\.(\d+\.scale_shift_table)$", r"spatial_blocks.\1", name)] = (
                value
            )
    for name, several in parts.items():
        wanted = DIFFUSERS_JOINED[re.sub(r"^spatial_blocks\.\d+\.|\.(weight|bias)$", "", name)]
        missing = [theirs for theirs in wanted if theirs not in several]
        if missing:
            raise CheckpointError(f"{where}: {name} needs {', '.join(wanted)}; {_few(missing)} is missing.")
        found[name] = torch.cat([several[theirs] for theirs in wanted])
        reshaped[name] = f"joined from {', '.join(wanted)}"
    return found


def _fit(name: str, value: Tensor, shape: tuple[int, ...], reshaped: dict[str, str], where: str) -> Tensor:
    """Return `value` in float32 and the model's shape, or raise CheckpointError."""
    before = tuple(value.shape)
    if name == "x_embedder.proj.weight" and len(before) == 4:
        value = value[:, :, None]
        reshaped[name] = f"{list(before)} -> {list(value.shape)}, one frame deep"
    elif name == "y_embedder.y_embedding" and before[1:] == shape[1:] and before[0] != shape[0]:
        rows = shape[0]
        value = (
            value[:rows] if before[0] > rows else torch.cat([value, value[-1:].expand(rows - before[0], -1)])
        )
        how = "cut off" if before[0] > rows else "last row repeated"
        reshaped[name] = f"{before[0]} -> {rows} tokens, {how}"
    if tuple(value.shape) != shape:
        raise CheckpointError(
            f"{where}: {name} has shape {list(before)}; this model needs {list(shape)}: another size?"
        )
    return value.float().contiguous()


def _few(names: Collection[str]) -> str:
    shown = list(names)[:3]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
