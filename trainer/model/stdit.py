"""STDiT3 model: latent video, timestep and caption to velocity (and unused sigma).

Names and shapes of the state dict are those of Open-Sora 1.2. The model knows no parallelism, no files
and no random numbers except its initialisation. Its particularities:

- Modulation is selected on the small table [B, T, 6, D]: a frame that `x_mask` marks as given takes the
  row made for t = 0. The original computes both branches on the activations and selects there; the
  numbers are the same.
- Nothing in `forward` waits for the device: no `.item()`, no lengths as Python numbers.
- What the original computes in bfloat16 by accident (timesteps, size and fps, RoPE, position) is
  computed in float32 here. `STDiT3Config.reproduce` restores each of these by name; docs/model.md says why.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, cast, get_args

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from trainer.model import rng
from trainer.model.layers import (
    Block,
    CaptionEmbedder,
    FinalLayer,
    PatchEmbed,
    PositionEmbedding,
    Rope,
    WaveEmbedder,
    apply,
    rope_frequencies,
)
from trainer.model.routing import Route, Router
from vidcurate.recipe.recipe import Recipe

Fault = Literal[
    "double_modulation", "bf16_timesteps", "bf16_metadata", "bf16_rope", "bf16_position", "cut_null_caption"
]

PUBLISHED_FAULTS: tuple[Fault, ...] = get_args(Fault)
"""All faults that the published weights were trained with."""


class ModelSpec(Recipe):
    """The model's settings in a recipe; the encoders say the rest. The defaults are STDiT3-XL/2.

    `reproduce` names the faults of the original to keep. "double_modulation" is the one that is on: it
    changes only the output on given frames, which neither the loss nor the sampler reads, and with it the
    output equals the original's everywhere.
    """

    hidden_size: int = Field(default=1152, gt=0, le=65_536)
    """width of a token; a multiple of 4 and of num_heads"""
    depth: int = Field(default=28, gt=0, le=1000)
    """pairs of a spatial and a temporal block"""
    num_heads: int = Field(default=16, gt=0, le=1000)
    """attention heads"""
    input_sq_size: int = Field(default=512, gt=0, le=65_536)
    """side in pixels at which the position embedding is itself"""
    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    """frames, rows and columns of latents in one token; the first is 1"""
    mlp_ratio: ClassVar[float] = 4.0
    """hidden width of an MLP over hidden_size"""
    pred_sigma: bool = True
    """a second half of output channels, which nothing trains"""
    freeze_y_embedder: bool = False
    """do not train the projection of the captions"""
    skip_y_embedder: bool = False
    """captions come projected already"""
    only_train_temporal: bool = False
    """train the temporal blocks alone"""
    reproduce: tuple[Fault, ...] = ("double_modulation",)
    """faults of the original to bring back, by name (docs/model.md)"""

    @field_validator("reproduce", mode="before")
    @classmethod
    def _tuple(cls, value: object) -> object:
        if isinstance(value, (set, frozenset)):
            return tuple(sorted(value))
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _fits(self) -> "ModelSpec":
        if self.hidden_size % 4:
            raise ValueError(
                f"hidden_size {self.hidden_size} must be a multiple of 4 (two sines, two cosines)"
            )
        if self.hidden_size % self.num_heads or (self.hidden_size // self.num_heads) % 2:
            raise ValueError(
                f"hidden_size {self.hidden_size} needs an even width in each of num_heads {self.num_heads}"
            )
        return self

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads


class STDiT3Config(ModelSpec):
    """The fields of the original's configuration, and `reproduce`: a model with its encoders' widths."""

    caption_channels: int = Field(default=4096, gt=0, le=65_536)
    """width of the text encoder's features"""
    model_max_length: int = Field(default=300, gt=0, le=65_536)
    """most text tokens"""
    in_channels: int = Field(default=4, gt=0, le=65_536)
    """channels of a latent"""

    @property
    def out_channels(self) -> int:
        """Channels of the output: the velocity, and as many again with `pred_sigma`."""
        return self.in_channels * (2 if self.pred_sigma else 1)


def lengths_read(
    config: STDiT3Config, lengths: Sequence[int], drops: Sequence[bool] | None = None
) -> tuple[int, ...]:
    """Return how many text tokens each row reads: its caption's `lengths`, 1 at least, or the null caption's.

    `drops`: whose caption is dropped; None: nobody's.
    """
    whole = None if "cut_null_caption" in config.reproduce else config.model_max_length
    dropped = drops or [False] * len(lengths)
    return tuple(
        whole if drop and whole else max(1, length) for length, drop in zip(lengths, dropped, strict=True)
    )


XL_2 = STDiT3Config()
GIANT_3B_2 = STDiT3Config(hidden_size=1872, num_heads=26)


def _tile(rows: Tensor, batch: int, name: str) -> Tensor:
    """Repeat [b, ...] to [batch, ...], as guidance needs where two rows share one prompt's facts."""
    if rows.shape[0] == batch:
        return rows
    if rows.shape[0] == 0 or batch % rows.shape[0]:
        raise ValueError(f"{name} has {rows.shape[0]} rows, which do not divide the batch of {batch}.")
    return rows.repeat(batch // rows.shape[0], *[1] * (rows.dim() - 1))


class STDiT3(nn.Module):
    """The model. Built under `torch.device("meta")` it is filled by `to_empty` and `initialise`."""

    def __init__(self, config: STDiT3Config, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        width, heads, hidden = (
            config.hidden_size,
            config.num_heads,
            int(config.hidden_size * config.mlp_ratio),
        )
        faults, patch = config.reproduce, config.patch_size[1:]
        self.rope = Rope(config.head_dim, rounded="bf16_rope" in faults)
        self.pos_embed = PositionEmbedding(width, config.input_sq_size, rounded="bf16_position" in faults)
        self.x_embedder = PatchEmbed(config.in_channels, width, patch)
        self.t_embedder = WaveEmbedder(width)
        self.fps_embedder = WaveEmbedder(width)
        self.t_block = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        self.y_embedder = CaptionEmbedder(config.model_max_length, config.caption_channels, width)
        self.spatial_blocks, self.temporal_blocks = (
            nn.ModuleList(Block(width, heads, hidden, temporal=temporal) for _ in range(config.depth))
            for temporal in (False, True)
        )
        self.final_layer = FinalLayer(
            width, math.prod(patch) * config.out_channels, modulates_twice="double_modulation" in faults
        )
        if config.only_train_temporal:
            self.requires_grad_(False)
            self.temporal_blocks.requires_grad_(True)
        if config.freeze_y_embedder:
            self.y_embedder.requires_grad_(False)
        if not self.rope.freqs.is_meta:
            initialise(self, seed)

    def forward(
        self,
        x: Tensor,
        timestep: Tensor,
        y: Tensor,
        mask: Tensor | None = None,
        x_mask: Tensor | None = None,
        *,
        fps: Tensor,
        height: Tensor,
        width: Tensor,
        drop_caption: Tensor | None = None,
        text_lengths: Sequence[int] | None = None,
        route: Route | None = None,
        route_order: Tensor | None = None,
        num_frames: Tensor | None = None,
        ar: Tensor | None = None,
    ) -> Tensor:
        """Return float32 [B, out_channels, T, H, W]; the first in_channels are the velocity, data - noise.

        x         [B, C, T, H, W] latent; H and W that the patch does not divide are padded with zeros and
                  cropped again.
        timestep  [B], 0 (data) to 1000 (noise), fractional as it comes.
        y         [B, 1, L, caption_channels], L at most model_max_length; with `skip_y_embedder` already
                  projected, [B, 1, L, hidden_size].
        mask      [b, L], true where there is a token; None: all L. Its rows repeat where b divides B. A row
                  without a token reads its first one, as there is no attention to nothing.
        x_mask    [b, T] bool: False marks a given, clean frame, which is modulated for timestep 0.
        fps, height, width   [b]; height and width in pixels, of which the first row speaks for the batch.
        drop_caption  [B] bool: True reads the null caption instead. It is read whole, or, reproducing
                  `cut_null_caption`, under the dropped caption's mask.
        text_lengths  [B], on the host: what `lengths_read` gives where `mask` and `drop_caption` came from.
                  Not read here; with it fast blocks compute no padding (`trainer.model.kernels.apply`).
        route, route_order  what `trainer.model.routing` gives: which tubes [B, S] skip which pairs of blocks;
                  None: none does.
        num_frames, ar   taken and not read, so that the original's keyword arguments can be passed on.

        Raises ValueError for rows that do not divide the batch.
        """
        del num_frames, ar
        b, _, t, rows, columns = x.shape
        patch_rows, patch_columns = self.config.patch_size[1:]
        dtype = self.x_embedder.proj.weight.dtype
        if "bf16_timesteps" in self.config.reproduce:
            timestep = timestep.bfloat16()
        if "bf16_metadata" in self.config.reproduce:
            fps, height, width = fps.bfloat16(), height.bfloat16(), width.bfloat16()

        rate = _tile(apply(self.fps_embedder, fps), b, "fps")
        clock = apply(self.t_embedder, timestep.float()) + rate
        modulation = apply(self.t_block, clock)[:, None]  # [B, 1, 6D]
        given = None
        if x_mask is not None:
            noisy = _tile(x_mask, b, "x_mask").bool()[:, :, None]
            still = apply(self.t_embedder, torch.zeros_like(timestep, dtype=torch.float32)) + rate
            modulation = torch.where(noisy, modulation, apply(self.t_block, still)[:, None])
            given = (noisy, still)
        modulation = torch.unflatten(modulation, -1, (6, -1))

        y, text_mask = self._caption(y.to(dtype), mask, drop_caption, text_lengths)

        x = F.pad(x.to(dtype), (0, -columns % patch_columns, 0, -rows % patch_rows))
        grid = (x.shape[3] // patch_rows, x.shape[4] // patch_columns)
        area = height[0].float() * width[0].float()
        tokens = apply(self.x_embedder, x)
        place = cast(Tensor, self.pos_embed(tokens, *grid, area))
        tokens = (torch.unflatten(tokens, 1, (t, -1)) + place[:, None]).flatten(1, 2)
        wave = cast(tuple[Tensor, Tensor], self.rope(t))
        router = None if route is None or route_order is None else Router(route_order, route, t)
        for number, pair in enumerate(zip(self.spatial_blocks, self.temporal_blocks, strict=True)):
            if router and number == router.first:
                tokens = router.split(tokens)
            for block, turn in zip(pair, (None, wave), strict=True):
                tokens = cast(Tensor, block(tokens, y, modulation, text_mask, t, turn))
            if router and number == router.last:
                tokens = router.join(tokens)
        out = cast(Tensor, self.final_layer(tokens, clock, given, t))

        out = out.reshape(b, t, *grid, patch_rows, patch_columns, self.config.out_channels)
        out = out.permute(0, 6, 1, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)
        return out[:, :, :, :rows, :columns].float()

    def _caption(
        self, y: Tensor, mask: Tensor | None, drop: Tensor | None, lengths: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return projected text [B, L, D] and its bool mask [B, 1, 1, L] (None: every token is real)."""
        del lengths  # the mask says it
        b, length = y.shape[0], y.shape[2]
        valid = None if mask is None else _tile(mask, b, "mask").bool()
        if drop is not None and "cut_null_caption" not in self.config.reproduce:
            # The null caption is read whole, so there must be room for it beside shorter captions.
            room = self.config.model_max_length - length
            if valid is None:
                valid = torch.ones(b, length, dtype=torch.bool, device=y.device)
            y, valid = F.pad(y, (0, 0, 0, room)), F.pad(valid, (0, room))
            valid = valid | drop[:, None]
        if not self.config.skip_y_embedder:
            y = cast(Tensor, self.y_embedder(y, drop))
        elif drop is not None:
            null = apply(self.y_embedder.y_proj, self.y_embedder.y_embedding[: y.shape[2]].to(y.dtype))
            y = torch.where(drop[:, None, None, None], null, y)
        if valid is None:
            return y.squeeze(1), None
        first = F.pad(~valid.any(1, keepdim=True), (0, valid.shape[1] - 1))
        return y.squeeze(1), (valid | first)[:, None, None]


@torch.no_grad()
def initialise(model: STDiT3, seed: int = 0) -> None:
    """Fill every parameter and buffer as Open-Sora 1.2 does from scratch; each from its own (seed, name)."""
    for name, tensor in (dict(model.named_parameters()) | dict(model.named_buffers())).items():
        tensor.copy_(initial_value(name, tuple(tensor.shape), model.config, seed))


def initial_value(name: str, shape: tuple[int, ...], config: STDiT3Config, seed: int) -> Tensor:
    """Return the float32 value that the tensor `name` begins with; it depends on no other tensor.

    Linears: Xavier-uniform, no bias. Tables: normal / sqrt(D). The fps embedder ends in zeros (no effect at
    the start) and so do the three outputs of a temporal block (identity at the start). The patch embedder is
    uniform in 1 / sqrt(fan-in), the null caption normal / sqrt(C). The final linear is not zero.
    """
    layer = name.rpartition(".")[0]
    temporal_end = name.startswith("temporal_blocks.") and layer.endswith(("attn.proj", "mlp.fc2"))
    if name == "rope.freqs":
        return rope_frequencies(2 * shape[0])
    if name.endswith("_norm.weight"):
        return torch.ones(shape)
    if layer != "x_embedder.proj" and (
        name.endswith(".bias") or temporal_end or layer == "fps_embedder.mlp.2"
    ):
        return torch.zeros(shape)

    source = rng.generator(seed, "init", clip_id=name)
    if layer == "x_embedder.proj":
        bound = 1 / math.sqrt(config.in_channels * math.prod(config.patch_size))
    elif name == "y_embedder.y_embedding":
        return torch.from_numpy(source.standard_normal(shape, np.float32)) / math.sqrt(
            config.caption_channels
        )
    elif name.endswith("scale_shift_table"):
        return torch.from_numpy(source.standard_normal(shape, np.float32)) / math.sqrt(config.hidden_size)
    elif layer == "fps_embedder.mlp.0":
        return torch.from_numpy(source.standard_normal(shape, np.float32)) * 0.02
    else:
        bound = math.sqrt(6 / (shape[0] + shape[1]))
    return torch.from_numpy(source.random(shape, np.float32)) * (2 * bound) - bound
