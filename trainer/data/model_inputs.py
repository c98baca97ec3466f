"""Model inputs of a micro-batch: latents, text features and their mask.

Inputs are encoded online or read from precomputed latents. A clip is encoded alone, whatever its micro-batch,
and rounded to the dtypes of the recipe's `encoded`. Precomputed latents therefore equal the numbers of online
training.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import vidcurate.loader.torch
from trainer.data.latents.read import LatentBatch
from trainer.distributed import mesh
from trainer.model import tensors
from trainer.model.encoders.caption_projection import PREFIX, CaptionProjection, projection_of
from trainer.model.encoders.precision import DTYPES, EncodedSpec
from trainer.model.encoders.registry import TextEncoder, VideoEncoder, draw
from vidcurate.loader.loader import MicroBatch

Batch = MicroBatch | LatentBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoders:
    """The encoders that turn clips into model inputs. Weights are loaded at the first encoded clip.

    `samples`: the model trains on samples of the posterior, not on its mean. `projection`: the model's frozen
    caption projection, for a model that skips its own.
    """

    video: VideoEncoder
    text: TextEncoder
    kept: EncodedSpec = field(default_factory=EncodedSpec)
    samples: bool = False
    projection: CaptionProjection | None = None

    @torch.no_grad()
    def latent(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return latent and variance [1, C, T', H', W'], rounded, of one clip's `pixels` [1, 3, T, H, W].

        The variance is None unless the model trains on posterior samples.
        """
        dtype = DTYPES[self.kept.latent_dtype]
        if not self.samples:
            return self.video.encode(pixels).to(dtype), None
        mean, variance = self.video.posterior(pixels)
        return mean.to(dtype), variance.to(dtype)

    @torch.no_grad()
    def features(self, caption: str) -> Tensor:
        """Return the rounded features [L, C] of a caption's own tokens, without padding."""
        features, mask = self.text.encode([caption])
        own = features[0, 0, : int(mask[0].sum())]
        if self.projection is not None:
            own = self.projection(own.to(self.projection.fc1.weight.device))
        return own.to(DTYPES[self.kept.text_dtype])


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """`latents` float32 [B, C, T', H', W']; `y` [B, 1, L, C], 0 beyond a caption's end; bool `mask` [B, L].

    All on the device; L is the text encoder's model_max_length. `lengths` are the captions' own, on the host.
    """

    latents: Tensor
    y: Tensor
    mask: Tensor
    lengths: tuple[int, ...]


def _padded(texts: Sequence[Tensor], length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    y = torch.zeros((len(texts), 1, length, texts[0].shape[1]), dtype=texts[0].dtype, device=device)
    counts = tensors.send(torch.tensor([len(text) for text in texts]), device)
    for row, text in enumerate(texts):
        y[row, 0, : len(text)].copy_(text, non_blocking=True)
    return y, torch.arange(length, device=device)[None] < counts[:, None]


@torch.no_grad()
def of(batch: Batch, encoders: Encoders, *, seed: int, step: int, device: torch.device) -> Inputs:
    """Return the model inputs of a micro-batch's clips in update number `step`."""
    if isinstance(batch, LatentBatch):
        latents, texts = tensors.send(batch.latents, device), batch.texts
        variance = tensors.send(batch.variance, device) if batch.variance is not None else None
    else:
        pixels = vidcurate.loader.torch.pixels(batch, device)
        parts = [encoders.latent(pixels[row : row + 1]) for row in range(len(pixels))]
        latents = torch.cat([mean for mean, _ in parts])
        variances = [variance for _, variance in parts if variance is not None]
        variance = torch.cat(variances) if variances else None
        texts = tuple(encoders.features(caption) for caption in batch.captions)
    if encoders.samples and variance is not None:
        latents = draw(latents, variance, seed=seed, step=step, clip_ids=batch.clip_ids)
    y, mask = _padded(texts, encoders.text.model_max_length, device)
    return Inputs(latents=latents.float(), y=y, mask=mask, lengths=tuple(map(len, texts)))


def frozen_projection(model: nn.Module, device: torch.device) -> CaptionProjection:
    """Return a copy of a model's caption projection, float32 on `device`; all ranks call it together."""
    own = {
        name: mesh.full_tensor(value).detach().float().cpu().clone()
        for name, value in model.state_dict().items()
        if name.startswith(PREFIX)
    }
    return projection_of(own, "the model").to(device)


def weights_digest(module: nn.Module) -> str:
    """Return the SHA-256 of a module's tensors by name, stored in a latent folder's manifest."""
    total = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        total.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
