"""Small twins of the published encoders: architecture, names and files are theirs, the weights random."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from trainer.model import rng
from trainer.model.encoders.vae import SCALE, SHIFT, Vae, build

TINY = {
    "model_type": "VideoAutoencoderPipeline",
    "vae_2d": {"config": {"block_out_channels": [8, 8, 8, 8], "layers_per_block": 1, "norm_num_groups": 4}},
    "vae_temporal": {"type": "VAE_Temporal_SD", "filters": 8, "num_groups": 4, "num_res_blocks": 1},
}


def fill(module: nn.Module) -> None:
    """Give every parameter numbers of its own, by its name, under which nothing explodes or dies."""
    module.to_empty(device="cpu")
    with torch.no_grad():
        for name, value in module.named_parameters():
            draws = rng.generator(0, "init", 0, name).standard_normal(tuple(value.shape), dtype="float32")
            is_norm = value.ndim == 1 and "norm" in name and name.endswith("weight")
            value.copy_(1 + 0.1 * torch.from_numpy(draws) if is_norm else torch.from_numpy(draws))
            if not is_norm:
                value.mul_(0.15 if value.ndim > 1 else 0.1)


def tiny_vae() -> Vae:
    """Return a VAE of the published architecture with few channels."""
    vae = build(TINY)
    fill(vae)
    vae.scale.copy_(torch.tensor(SCALE).view(1, -1, 1, 1, 1))
    vae.shift.copy_(torch.tensor(SHIFT).view(1, -1, 1, 1, 1))
    return vae


def pixels(frames: int, height: int = 16, width: int = 24, batch: int = 1, seed: int = 0) -> Tensor:
    """Return uint8 [B, 3, T, H, W]."""
    shape = (batch, 3, frames, height, width)
    return torch.from_numpy(rng.generator(seed, "noise").integers(0, 256, shape, dtype="uint8"))


def make_vae(folder: Path) -> Path:
    """Write `tiny_vae` to `folder` as hpcai-tech/OpenSora-VAE-v1.2 is written, and return the folder."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(TINY))
    save_file(tiny_vae().state_dict(), folder / "model.safetensors")
    return folder


WIDTH = 32
"""caption_channels of `make_t5`"""


def make_t5(folder: Path, lines: Sequence[str]) -> Path:
    """Write a T5 v1.1 of two layers to `folder`, with a SentencePiece tokenizer trained on `lines`."""
    from transformers import T5Config, T5EncoderModel

    from tests.sentencepiece_model import train_sentencepiece

    folder.mkdir(parents=True)
    train_sentencepiece(folder, lines, vocab_size=80)
    settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 100, "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = T5Config(
        vocab_size=200,
        d_model=WIDTH,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    )
    model = T5EncoderModel(config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            draws = rng.generator(0, "init", 0, name).standard_normal(tuple(value.shape), dtype="float32")
            value.copy_(torch.from_numpy(draws) * 0.3 + (1.0 if "layer_norm" in name else 0.0))
    model.save_pretrained(folder)
    return folder
