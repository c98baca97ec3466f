"""VAE of Open-Sora 1.2: SDXL's AutoencoderKL per frame, temporal VAE per chunk.

A latent pixel represents 8 x 8 pixels of 4 frames. Chunks are 17 frames, 5 latent frames; a shorter last
chunk has one latent frame for each 4 frames begun, an image has one. Per-frame latents are multiplied by
0.18215, which is Stable Diffusion's constant and not SDXL's: the released weights were trained so
(hpcaitech/Open-Sora#493). Chunk latents are shifted and divided per channel, by constants in the checkpoint.

diffusers and the weights are loaded at first use; sizes are known without either.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from trainer.model.encoders.precision import DTYPES, Dtype, own_precision
from trainer.model.encoders.temporal_vae import TemporalConfig, TemporalVAE, temporal_length
from trainer.model.encoders.weights import WEIGHT_FILES, load_exactly, locate, need, read_json, tensors_of
from trainer.model.kernels import requirements
from vidcurate.errors import InputError, VidcurateError
from vidcurate.recipe.recipe import Recipe

CHANNELS = 4
SPATIAL_FACTOR = 8
CHUNK = 17  # frames
CHUNK_LATENTS = temporal_length(CHUNK, CHUNK)
SPATIAL_SCALE = 0.18215
SHIFT = (-0.10, 0.34, 0.27, 0.98)
SCALE = (3.85, 2.32, 2.33, 3.06)
CONSTANTS = ("scale", "shift")
# diffusers' settings of SDXL's VAE, which OpenSora-VAE-v1.2 takes from
# PixArt-alpha/pixart_sigma_sdxlvae_T5_diffusers.
SDXL_VAE: dict[str, Any] = {
    "in_channels": 3,
    "out_channels": 3,
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
    "act_fn": "silu",
    "latent_channels": CHANNELS,
    "norm_num_groups": 32,
}
# Names of the attention in the middle, in files written before diffusers 0.18.
OLD_NAMES = {".query.": ".to_q.", ".key.": ".to_k.", ".value.": ".to_v.", ".proj_attn.": ".to_out.0."}
FILES = (*WEIGHT_FILES, "vae/config.json", "vae/diffusion_pytorch_model.safetensors")  # of the hub


class VaeSpec(Recipe):
    """`vae`: Open-Sora's VAE v1.2, 4 x 8 x 8 pixels to one latent pixel of 4 channels (docs/encoders.md)."""

    kind: Literal["vae"] = "vae"
    """the encoder: vae"""
    source: str = "hpcai-tech/OpenSora-VAE-v1.2"
    """folder or file with the weights, or a name on the Hugging Face hub"""
    spatial_source: str | None = None
    """a diffusers AutoencoderKL (folder or hub name) instead of the frame VAE in `source`"""
    dtype: Dtype = "bfloat16"
    """of weights and arithmetic; latents are float32 in any case"""
    posterior: Literal["mean", "sample"] = "mean"
    """train on the posterior's mean, or on a draw from it that belongs to (seed, step, clip)"""
    micro_batch_size: ClassVar[int] = 4
    """frames that the readable frame VAE takes at once; bounds the memory"""
    chunk_batch_size: ClassVar[int] = 1
    """chunks of 17 frames that the readable temporal VAE takes at once; bounds the memory"""


class Vae(nn.Module):
    """Both halves and the constants, by the original's state-dict names."""

    def __init__(self, spatial: nn.Module, temporal: TemporalConfig) -> None:
        super().__init__()
        self.spatial_vae = nn.ModuleDict({"module": spatial})
        self.temporal_vae = TemporalVAE(temporal)
        self.register_buffer("scale", torch.tensor(SCALE).view(1, -1, 1, 1, 1))
        self.register_buffer("shift", torch.tensor(SHIFT).view(1, -1, 1, 1, 1))

    @property
    def frames(self) -> Any:
        """The diffusers AutoencoderKL."""
        return self.spatial_vae["module"]

    @property
    def affine(self) -> tuple[Tensor, Tensor]:
        """Scale and shift, float32 [1, C, 1, 1, 1]."""
        return cast(Tensor, self.scale).float(), cast(Tensor, self.shift).float()


def build(config: Mapping[str, Any]) -> Vae:
    """Return a VAE on the meta device. `config` is that of its folder: the published one may be empty.

    `vae_2d.config` holds diffusers' settings of the frame VAE, `vae_temporal` TemporalConfig's fields; what
    is not given is as published. Raises InputError for settings that do not compress 4 x 8 x 8 pixels.
    """
    key = "video_encoder"
    diffusers = need("diffusers", key)
    spatial = {**SDXL_VAE, **((config.get("vae_2d") or {}).get("config") or {})}
    spatial = {name: value for name, value in spatial.items() if not name.startswith("_")}
    given = config.get("vae_temporal") or {}
    fields = {name: given[name] for name in TemporalConfig.__slots__ if name in given}
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    if (
        spatial["latent_channels"] != CHANNELS
        or 2 ** (len(spatial["block_out_channels"]) - 1) != SPATIAL_FACTOR
    ):
        raise InputError(
            f"{key}: the frame VAE has {spatial['latent_channels']} channels and "
            f"{len(spatial['block_out_channels'])} levels; {CHANNELS} channels and 4 levels are needed."
        )
    try:
        with torch.device("meta"):
            return Vae(diffusers.AutoencoderKL.from_config(spatial), TemporalConfig(**fields))
    except (TypeError, ValueError) as error:
        raise InputError(f"{key}: its configuration cannot be used ({error}).") from error


def _diffusers_folder(path: Path) -> Path:
    """Return the folder of the VAE itself: a whole pipeline has it in `vae`."""
    return path / "vae" if (path / "vae" / "config.json").is_file() else path


def _read(spec: VaeSpec, *, shapes_alone: bool = False) -> tuple[Path, dict[str, Any], dict[str, Tensor]]:
    """Return where the VAE lies, its configuration and its tensors.

    `shapes_alone`: without their numbers, and nothing is fetched.
    """
    key = "video_encoder.source"
    path = locate(spec.source, key=key, patterns=FILES, offline=shapes_alone)
    config_file = (path if path.is_dir() else path.parent) / "config.json"
    config = read_json(config_file) if config_file.is_file() else {}
    state = tensors_of(path, key=key, shapes_alone=shapes_alone)
    if spec.spatial_source is not None:
        key = "video_encoder.spatial_source"
        folder = locate(spec.spatial_source, key=key, patterns=FILES, offline=shapes_alone)
        folder = _diffusers_folder(folder)
        config = {**config, "vae_2d": {"config": read_json(folder / "config.json")}}
        state = {name: value for name, value in state.items() if not name.startswith("spatial_vae.")}
        for name, value in tensors_of(folder, key=key, shapes_alone=shapes_alone).items():
            for old, new in OLD_NAMES.items():
                name = name.replace(old, new)
            state[f"spatial_vae.module.{name}"] = value
    return path, config, state


def predicted_bytes(spec: VaeSpec) -> int | None:
    """Return the bytes of the weights in the spec's dtype; None where its files cannot be read here."""
    try:
        _, _, state = _read(spec, shapes_alone=True)
    except (VidcurateError, OSError):
        return None
    count = sum(value.numel() for name, value in state.items() if name not in CONSTANTS)
    return count * DTYPES[spec.dtype].itemsize


def load(spec: VaeSpec) -> Vae:
    """Return the VAE with its weights, on the CPU, in the spec's dtype. Constants stay in float32.

    Raises InputError, CheckpointError or StorageError: see `trainer.model.encoders.weights`.
    """
    path, config, state = _read(spec)
    vae = build(config)
    load_exactly(vae, state, str(path))
    dtype = DTYPES[spec.dtype]
    scale, shift = vae.affine
    vae = vae.to(dtype).eval().requires_grad_(False)
    vae.scale, vae.shift = scale, shift  # stay exact
    return vae


def by_chunk(function: Callable[[Tensor], Tensor], x: Tensor, size: int, batch_size: int) -> Tensor:
    """Return `function` of each `size` steps of time of `x` [B, C, T, H, W], put together along time.

    It is called with `batch_size` whole chunks [n, C, size, H, W] at most, of any clips and times; then with
    what is left of T.
    """
    whole = x.shape[2] // size
    parts = []
    if whole:
        chunks = torch.unflatten(x[:, :, : whole * size], 2, (whole, size)).transpose(1, 2).flatten(0, 1)
        done = torch.cat([function(part) for part in torch.split(chunks, batch_size)])
        parts.append(torch.unflatten(done, 0, (-1, whole)).transpose(1, 2).flatten(2, 3))
    if x.shape[2] % size:
        parts.append(torch.cat([function(part) for part in torch.split(x[:, :, whole * size :], batch_size)]))
    return torch.cat(parts, dim=2)


def _prepare(vae: Vae) -> bool:
    """Lay the weights out for the fast encoders; return False for a VAE that those do not compute."""
    from trainer.model.encoders import fast_vae  # it needs Triton

    if not fast_vae.supports(vae):
        return False
    fast_vae.prepare(vae)
    return True


class VideoVae:
    """The VideoEncoder of a VaeSpec. It computes where its input lies and loads the weights on first use.

    On a GPU and in half precision it encodes through `trainer.model.encoders.fast_vae`, where Triton can
    compile its kernels there; `is_fast` False keeps the readable encoders.
    """

    def __init__(self, spec: VaeSpec, *, is_fast: bool = True) -> None:
        self.spec, self.is_fast = spec, is_fast
        self._vae: Vae | None = None
        self._is_prepared: bool | None = None  # for the fast encoders; None before the first clip on a GPU

    @property
    def latent_channels(self) -> int:
        """4."""
        return CHANNELS

    @property
    def device_bytes(self) -> int:
        """Bytes of its weights, once they are loaded."""
        return sum(weight.nbytes for weight in self._vae.parameters()) if self._vae else 0

    def predicted_bytes(self) -> int | None:
        """Bytes that its weights will take; None where its source cannot be read here."""
        return predicted_bytes(self.spec)

    def latent_shape(self, num_frames: int, height: int, width: int) -> tuple[int, int, int, int]:
        """Return (C, T, H, W): 5 for each 17 frames and ceil(rest / 4) for the rest; H and W are floored."""
        time = temporal_length(num_frames, CHUNK)
        return CHANNELS, time, height // SPATIAL_FACTOR, width // SPATIAL_FACTOR

    def vae(self, device: torch.device) -> Vae:
        """Return the VAE on `device`, loaded if it was not yet."""
        if self._vae is None:
            self._vae = load(self.spec)
        self._vae = self._vae.to(device)
        return self._vae

    def encode(self, video: Tensor) -> Tensor:
        """Return the posterior's mean, float32 [B, 4, T', H/8, W/8], of `video` [B, 3, T, H, W]."""
        return self.posterior(video)[0]

    def posterior(self, video: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance, float32 [B, 4, T', H/8, W/8], of `video`: uint8, or float in [-1, 1].

        The mean of a frame's own posterior, which is narrow, goes to the temporal VAE, where the original
        draws from it. Raises InputError for fewer than 8 pixels, VidcurateError for values out of float16.
        """
        batch, _, frames, height, width = video.shape
        if min(height, width) < SPATIAL_FACTOR:
            raise InputError(
                f"a video of {height} x {width} pixels: the VAE needs {SPATIAL_FACTOR} on each side."
            )
        with own_precision(video.device):
            vae = self.vae(video.device)
            is_fast = self._takes_kernels(vae, video.device)
            encode_frames = self._encode_frames_fast if is_fast else self._encode_frames
            latents = encode_frames(vae, video.transpose(1, 2).flatten(0, 1))
            latents = torch.unflatten(latents, 0, (batch, frames)).transpose(1, 2)
            encode_chunks = self._encode_chunks_fast if is_fast else self._encode_chunks
            mean, logvar = encode_chunks(vae, latents).chunk(2, dim=1)
            scale, shift = vae.affine
            mean, variance = (mean - shift) / scale, logvar.exp() / scale**2
        if self.spec.dtype == "float16" and not bool(torch.isfinite(mean).all()):
            raise VidcurateError(
                "a latent is not finite: float16 is too narrow for this video in this VAE; "
                "set video_encoder.dtype to bfloat16."
            )
        return mean, variance

    def decode(self, latent: Tensor, *, num_frames: int) -> Tensor:
        """Return float32 video [B, 3, num_frames, 8 H', 8 W'] of `latent` [B, 4, T', H', W']; not clipped.

        Raises ValueError for a number of latent frames that is not that of `num_frames`.
        """
        needed = temporal_length(num_frames, CHUNK)
        if latent.shape[2] != needed:
            raise ValueError(f"{latent.shape[2]} latent frames; {num_frames} frames have {needed}")
        batch = latent.shape[0]
        with own_precision(latent.device):
            vae = self.vae(latent.device)
            scale, shift = vae.affine
            dtype = DTYPES[self.spec.dtype]
            z = (latent.float() * scale + shift).to(dtype)
            frames = by_chunk(
                lambda part: vae.temporal_vae.decode(
                    part, num_frames=CHUNK if part.shape[2] == CHUNK_LATENTS else num_frames % CHUNK
                ),
                z,
                CHUNK_LATENTS,
                self.spec.chunk_batch_size,
            )
            frames = frames.transpose(1, 2).flatten(0, 1) / SPATIAL_SCALE
            parts = torch.split(frames, self.spec.micro_batch_size)
            video = torch.cat([vae.frames.decode(part).sample.float() for part in parts])
        return torch.unflatten(video, 0, (batch, num_frames)).transpose(1, 2).contiguous()

    def _encode_frames(self, vae: Vae, frames: Tensor) -> Tensor:
        """Return [N, 4, H/8, W/8] of frames [N, 3, H, W]."""
        latents = []
        for part in torch.split(frames, self.spec.micro_batch_size):
            pixels = part / 127.5 - 1.0 if part.dtype == torch.uint8 else part
            moments = vae.frames.encode(pixels.to(DTYPES[self.spec.dtype])).latent_dist
            latents.append(moments.mode() * SPATIAL_SCALE)
        return torch.cat(latents)

    def _encode_chunks(self, vae: Vae, latents: Tensor) -> Tensor:
        """Return means and log variances [B, 2C, T', H, W] of latents [B, C, T, H, W], by chunk."""
        return by_chunk(
            lambda part: torch.cat(vae.temporal_vae.encode(part), dim=1),
            latents,
            CHUNK,
            self.spec.chunk_batch_size,
        )

    def _takes_kernels(self, vae: Vae, device: torch.device) -> bool:
        """Return whether the fast encoders compute: they are there, and faster than the readable ones."""
        if not self.is_fast or device.type != "cuda" or self.spec.dtype == "float32":
            return False
        if self._is_prepared is None:
            self._is_prepared = not requirements.missing(on_gpu=True) and _prepare(vae)
        return self._is_prepared

    def _encode_frames_fast(self, vae: Vae, frames: Tensor) -> Tensor:
        """Return what `_encode_frames` returns, in batches by the size of a frame."""
        from trainer.model.encoders import fast_vae

        count = fast_vae.at_once(frames.shape[2] * frames.shape[3], fast_vae.PIXELS)
        moments = [fast_vae.encode_frames(vae.frames, part) for part in fast_vae.even_parts(frames, count)]
        return torch.cat(moments)[:, :CHANNELS] * SPATIAL_SCALE

    def _encode_chunks_fast(self, vae: Vae, latents: Tensor) -> Tensor:
        """Return what `_encode_chunks` returns, in batches by the size of a chunk."""
        from trainer.model.encoders import fast_vae

        pixels = CHUNK * SPATIAL_FACTOR**2 * latents.shape[3] * latents.shape[4]
        count = fast_vae.at_once(pixels, fast_vae.CHUNK_PIXELS)
        return by_chunk(lambda part: fast_vae.encode_chunks(vae.temporal_vae, part), latents, CHUNK, count)
