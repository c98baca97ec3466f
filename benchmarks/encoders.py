"""Encoders at full width: pixels and captions a second, memory, beside a named peer.

    python benchmarks/encoders.py [--parts frames,temporal,vae,decode,t5] [--size 480x848] [--small]

Weights and inputs are random (none zero), arithmetic is bfloat16. Parts: `frames`, SDXL's VAE alone, against
diffusers' AutoencoderKL called one frame at a time; `temporal`, our temporal VAE in batches of chunks,
against one chunk of 17 frames at a time; `vae`, the whole encode, and `decode`, both against the published
settings (4 frames, 1 chunk at a time); `t5`, an encoder of T5-XXL's shape over captions of 10 to 300 tokens,
in batches of like length, against the published way, all padded to 300. Medians; peers take turns.

Needs torch, numpy and pydantic; frames, vae and decode also diffusers, t5 also transformers (the extra
`encode`, with all they ask for). A part whose library is missing is named and left out. Rows are kept as
results/encoders_<hardware>.json; `--small` measures toys on any machine and keeps nothing.
"""

import argparse
import gc
import importlib.util
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rows import Row, as_table, cpu, keep, row
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.model.encoders.precision import DTYPES
from trainer.model.encoders.t5 import T5, T5Spec
from trainer.model.encoders.temporal_vae import TemporalConfig, TemporalVAE
from trainer.model.encoders.vae import CHUNK, VaeSpec, VideoVae, build, by_chunk

NEEDS = {
    "frames": "diffusers",
    "temporal": "",
    "vae": "diffusers",
    "decode": "diffusers",
    "t5": "transformers",
}
SMALL: dict[str, Any] = {
    "vae_2d": {"config": {"block_out_channels": [32, 32, 32, 32], "layers_per_block": 1}},
    "vae_temporal": {"filters": 32, "num_res_blocks": 1},
}
DTYPE = "bfloat16"


def spec_of(spec: Any, **constants: int) -> Any:
    """Return a subclass of an encoder's settings with other constants."""
    return type(spec.__name__, (spec,), {"__module__": __name__, **constants})


def filled(module: nn.Module, device: torch.device) -> Any:
    """Return a module of the meta device on `device`, with random weights under which values stay finite."""
    module = module.to(DTYPES[DTYPE]).to_empty(device=device).eval().requires_grad_(False)
    generator = torch.Generator(device).manual_seed(0)
    for name, weight in [*module.named_parameters(), *module.named_buffers()]:
        is_norm = weight.ndim == 1 and "norm" in name and name.endswith("weight")
        if is_norm or name in ("scale", "shift"):
            weight.fill_(1.0)
        else:
            weight.normal_(0, 0.02, generator=generator)
    return module


def take_turns(ours: Callable[[], object], peer: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return median seconds of both, called in turn after one call of each to warm up."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(repeats + 1):
        for function, kept in zip((ours, peer), times, strict=True):
            synchronize()
            start = perf_counter()
            function()
            synchronize()
            if number:
                kept.append(perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_gib(function: Callable[[], object]) -> float:
    """Return the most GPU memory that `function` holds, its weights among it; 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0.0
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    function()
    return torch.cuda.max_memory_allocated() / 2**30


class Bench:
    """What is measured on, and how large."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else cpu()
        self.small, self.repeats, self.frames = given.small, given.repeats, given.frames
        self.height, self.width = (int(side) for side in given.size.split("x"))
        self.batch, self.chunks = given.batch, given.chunks
        self.config = SMALL if given.small else {}

    def rows(self, what: str, unit: str, amount: float, peer: str, ours: Any, other: Any) -> list[Row]:
        """Return the rate of `ours` against that of `other`, and their memory."""
        seconds, peer_seconds = take_turns(ours, other, self.repeats)
        found = [
            row(
                what,
                amount / seconds / 1e6 if unit == "Mpx/s" else amount / seconds,
                unit,
                peer=peer,
                peer_value=amount / peer_seconds / 1e6 if unit == "Mpx/s" else amount / peer_seconds,
                hardware=self.hardware,
            )
        ]
        if self.device.type == "cuda":
            memory, peer_memory = peak_gib(ours), peak_gib(other)
            found.append(
                row(
                    f"{what}: memory",
                    memory,
                    "GiB",
                    peer=peer,
                    peer_value=peer_memory,
                    higher_is_better=False,
                    hardware=self.hardware,
                )
            )
        return found

    @property
    def label(self) -> str:
        return f"{self.frames} x {self.height} x {self.width}"

    def video(self) -> Tensor:
        shape = (1, 3, self.frames, self.height, self.width)
        return torch.randint(0, 256, shape, dtype=torch.uint8, device=self.device)

    def vae(self, batch: int, chunks: int, weights: Any) -> VideoVae:
        encoder = VideoVae(spec_of(VaeSpec, micro_batch_size=batch, chunk_batch_size=chunks)(dtype=DTYPE))
        encoder._vae = weights
        return encoder


def frames(bench: Bench) -> list[Row]:
    weights = filled(build(bench.config), bench.device)
    video = bench.video()
    encoder = bench.vae(bench.batch, 1, weights)
    stack = video[0].transpose(0, 1)
    autoencoder = weights.frames

    def one_at_a_time() -> Tensor:
        rows = [
            autoencoder.encode((frame[None] / 127.5 - 1).to(DTYPES[DTYPE])).latent_dist.mode()
            for frame in stack
        ]
        return torch.cat(rows)

    with torch.no_grad():
        return bench.rows(
            f"frame VAE encode, {bench.label}, {bench.batch} at once",
            "Mpx/s",
            video[0, 0].numel(),
            "diffusers AutoencoderKL, a frame at a time",
            lambda: encoder._encode_frames(weights, stack),
            one_at_a_time,
        )


def temporal(bench: Bench) -> list[Row]:
    given = {name: value for name, value in bench.config.get("vae_temporal", {}).items()}
    with torch.device("meta"):
        module = TemporalVAE(TemporalConfig(**given))
    vae = filled(module, bench.device)
    shape = (1, 4, bench.frames, bench.height // 8, bench.width // 8)
    latents = torch.randn(shape, device=bench.device, dtype=DTYPES[DTYPE])

    def encode(chunks: int) -> Tensor:
        return by_chunk(lambda part: torch.cat(vae.encode(part), 1), latents, CHUNK, chunks)

    with torch.no_grad():
        return bench.rows(
            f"temporal VAE encode, {bench.label} px, {bench.chunks} chunks at once",
            "Mpx/s",
            bench.frames * bench.height * bench.width,
            "a chunk of 17 frames at a time",
            lambda: encode(bench.chunks),
            lambda: encode(1),
        )


def vae(bench: Bench) -> list[Row]:
    weights = filled(build(bench.config), bench.device)
    video = bench.video()
    ours, published = bench.vae(bench.batch, bench.chunks, weights), bench.vae(4, 1, weights)
    return bench.rows(
        f"VAE v1.2 encode, {bench.label}",
        "Mpx/s",
        video[0, 0].numel(),
        "published settings: 4 frames, 1 chunk at a time",
        lambda: ours.posterior(video),
        lambda: published.posterior(video),
    )


def decode(bench: Bench) -> list[Row]:
    weights = filled(build(bench.config), bench.device)
    ours, published = bench.vae(bench.batch, bench.chunks, weights), bench.vae(4, 1, weights)
    shape = ours.latent_shape(bench.frames, bench.height, bench.width)
    latent = torch.randn((1, *shape), device=bench.device)
    return bench.rows(
        f"VAE v1.2 decode, {bench.label}",
        "Mpx/s",
        bench.frames * bench.height * bench.width,
        "published settings: 4 frames, 1 chunk at a time",
        lambda: ours.decode(latent, num_frames=bench.frames),
        lambda: published.decode(latent, num_frames=bench.frames),
    )


def t5(bench: Bench) -> list[Row]:
    from transformers import T5Config, T5EncoderModel

    width, layers = (64, 2) if bench.small else (4096, 24)
    config = T5Config(
        vocab_size=32128,
        d_model=width,
        d_kv=64,
        d_ff=width * 5 // 2,
        num_layers=layers,
        num_heads=width // 64,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        module = T5EncoderModel(config)
    model = filled(module, bench.device)
    model.encoder.embed_tokens.weight = model.shared.weight
    source = torch.Generator().manual_seed(0)
    lengths = (torch.randn(32 if bench.small else 256, generator=source) * 60 + 120).clamp(10, 300).long()

    def tokenizer(text: str, **_: object) -> dict[str, list[int]]:
        """Tokens are random; a caption says how many it has. What tokenizing costs is not in the figure."""
        return {"input_ids": [*torch.randint(2, 32000, (int(text) - 1,), generator=source).tolist(), 1]}

    captions = [str(int(length)) for length in lengths]
    spec = spec_of(T5Spec, micro_batch_size=bench.batch)(caption_channels=width, dtype=DTYPE)
    encoder = T5(spec, bench.device)
    encoder._loaded = (tokenizer, model)
    ids = torch.randint(2, 32000, (len(captions), 300), generator=source).to(bench.device)
    real = (torch.arange(300)[None] < lengths[:, None]).long().to(bench.device)

    def padded() -> list[Tensor]:
        parts = zip(ids.split(bench.batch), real.split(bench.batch), strict=True)
        with torch.no_grad():
            return [model(input_ids=part, attention_mask=mask).last_hidden_state for part, mask in parts]

    return bench.rows(
        f"T5 v1.1 {'toy' if bench.small else 'XXL'} encode, {bench.batch} captions at once",
        "captions/s",
        len(captions),
        "transformers, every caption padded to 300",
        lambda: encoder.encode(captions),
        padded,
    )


PARTS = {"frames": frames, "temporal": temporal, "vae": vae, "decode": decode, "t5": t5}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--size", default="480x848", help="height x width, px")
    parser.add_argument("--frames", type=int, default=102, help="frames of the clip")
    parser.add_argument("--batch", type=int, default=16, help="frames, or captions, at once")
    parser.add_argument("--chunks", type=int, default=6, help="chunks at once")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls of each")
    parser.add_argument("--hardware", default="h200", help="word in the name of the kept file")
    parser.add_argument("--small", action="store_true", help="toys, on any machine; nothing is kept")
    given = parser.parse_args()
    bench, found = Bench(given), []
    for part in given.parts.split(","):
        needs = NEEDS[part]
        if needs and importlib.util.find_spec(needs) is None:
            print(f"{part}: left out, {needs} is not installed")
            continue
        found += PARTS[part](bench)
        gc.collect()
        print(as_table(found[-1:]), flush=True)
    if given.small:
        print(as_table(found))
    else:
        keep(f"encoders_{given.hardware}", found)


if __name__ == "__main__":
    main()
