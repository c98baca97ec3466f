"""Encoders at full width: frames and captions a second, power, memory, beside a named peer.

    python benchmarks/encoders.py [--parts vae,t5] [--sizes 480x848,240x424] [--small]

Weights and inputs are random (none zero), arithmetic is bfloat16. Parts: `vae`, the whole encode by the
kernels that a GPU takes (trainer.model.encoders.fast_vae) against the readable encoders by the published
settings (4 frames, 1 chunk at a time); `decode`, readable, larger batches against the published settings;
`t5`, an encoder of T5-XXL's shape over captions of 10 to 300 tokens, in batches of like length, against the
published way, all padded to 300. Medians; peers take turns.

Of `vae`, at each size: the rate kept up for seconds with its power and clock, the FLOPs by torch's
FlopCounterMode (of the readable form: the kernels leave out steps that read zeros alone), joules a frame, and
the latents' distance from float32 beside the readable form's.

Needs torch, numpy and pydantic; vae and decode also diffusers, t5 also transformers (the extra
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
from power import Meter
from rows import Row, as_table, card, cpu, keep, row
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.model.encoders.precision import DTYPES
from trainer.model.encoders.t5 import T5, T5Spec
from trainer.model.encoders.vae import VaeSpec, VideoVae, build

NEEDS = {
    "vae": "diffusers",
    "decode": "diffusers",
    "t5": "transformers",
}
SMALL: dict[str, Any] = {
    "vae_2d": {"config": {"block_out_channels": [32, 32, 32, 32], "layers_per_block": 1}},
    "vae_temporal": {"filters": 32, "num_res_blocks": 1},
}
DTYPE = "bfloat16"
KEPT_UP_SECONDS = 4.0  # of encoding, the second half of which counts: the clock has fallen by then


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
        self.sizes = [tuple(int(side) for side in size.split("x")) for size in given.sizes.split(",")]
        self.height, self.width = self.sizes[0]
        self.batch, self.chunks = given.batch, given.chunks
        self.config = SMALL if given.small else {}

    def rows(self, what: str, unit: str, amount: float, peer: str, ours: Any, other: Any) -> list[Row]:
        """Return the rate of `ours` against that of `other`, and their memory."""
        seconds, peer_seconds = take_turns(ours, other, self.repeats)
        found = [
            row(
                what,
                amount / seconds,
                unit,
                peer=peer,
                peer_value=amount / peer_seconds,
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

    def vae(self, batch: int, chunks: int, weights: Any, *, is_fast: bool = False) -> VideoVae:
        spec = spec_of(VaeSpec, micro_batch_size=batch, chunk_batch_size=chunks)(dtype=DTYPE)
        encoder = VideoVae(spec, is_fast=is_fast)
        encoder._vae = weights
        return encoder

    def kept_up(self, function: Callable[[], object], amount: float) -> tuple[float, Meter]:
        """Return amounts a second after seconds of `function`, and the meter of that time."""
        rate = 0.0
        for _ in range(2):
            count, start = 0, perf_counter()
            with Meter() as meter:
                while perf_counter() - start < KEPT_UP_SECONDS / 2:
                    function()
                    synchronize()
                    count += 1
            rate = amount * count / (perf_counter() - start)
        return rate, meter


def vae(bench: Bench) -> list[Row]:
    found = []
    for size in bench.sizes:
        bench.height, bench.width = size
        found += encode_size(bench)
        print(as_table(found), flush=True)
        gc.collect()
    return found


def encode_size(bench: Bench) -> list[Row]:
    """Return the rows of encoding one clip of the bench's size."""
    # Twice the same: the fast one lays its convolutions' weights out its own way.
    ours = bench.vae(bench.batch, bench.chunks, filled(build(bench.config), bench.device), is_fast=True)
    published = bench.vae(4, 1, filled(build(bench.config), bench.device))
    video, metric = bench.video(), f"VAE v1.2 encode, {bench.label}"
    peer = "the readable encoders, published settings: 4 frames, 1 chunk at a time"
    found = bench.rows(
        metric,
        "frames/s",
        bench.frames,
        peer,
        lambda: ours.posterior(video),
        lambda: published.posterior(video),
    )
    with FlopCounterMode(display=False) as counter:
        published.posterior(video)
    flops = counter.get_total_flops()

    def one(what: str, value: float, unit: str, peer: str, peer_value: float, *, more: bool = False) -> None:
        found.append(
            row(
                f"{metric}: {what}",
                value,
                unit,
                peer=peer,
                peer_value=peer_value,
                higher_is_better=more,
                hardware=bench.hardware,
            )
        )

    per_pixel = flops / video[0, 0].numel() / 1e6
    one(
        "FLOPs, torch's counter",
        per_pixel,
        "MFLOP a pixel",
        "4.13 for a frame and 105/64 over time, once assumed",
        5.77,
    )
    if bench.device.type == "cuda":
        rate, meter = bench.kept_up(lambda: ours.posterior(video), bench.frames)
        slow, other = bench.kept_up(lambda: published.posterior(video), bench.frames)
        one("kept up", rate, "frames/s", f"{peer}, kept up", slow, more=True)
        found[-1]["goal"] = ">= 200" if (bench.height, bench.width) == (480, 848) else ""
        tflops = flops / bench.frames / 1e12
        one("kept up, FLOPs", tflops * rate, "TFLOP/s", f"{peer}, kept up", tflops * slow, more=True)
        one("kept up, clock", meter.sm_mhz, "MHz", f"{peer}, kept up", other.sm_mhz, more=True)
        one("kept up, power", meter.watts, "W", f"{peer}, kept up", other.watts)
        one("kept up, energy", meter.watts / rate, "J a frame", f"{peer}, kept up", other.watts / slow)
    short = video[:, :, :17]
    exact = VideoVae(VaeSpec(dtype="float32"))
    results = [encoder.posterior(short) for encoder in (ours, published)]
    exact._vae = published.vae(bench.device).float()
    torch.backends.cudnn.allow_tf32 = False
    true = exact.posterior(short)
    for number, name in enumerate(("latents", "variance")):
        far = [float((one[number] - true[number]).norm() / true[number].norm()) for one in results]
        one(f"distance of the {name} from float32", far[0], "of the norm", "the readable encoders", far[1])
    return found


def decode(bench: Bench) -> list[Row]:
    weights = filled(build(bench.config), bench.device)
    ours, published = bench.vae(bench.batch, bench.chunks, weights), bench.vae(4, 1, weights)
    shape = ours.latent_shape(bench.frames, bench.height, bench.width)
    latent = torch.randn((1, *shape), device=bench.device)
    return bench.rows(
        f"VAE v1.2 decode, {bench.label}",
        "frames/s",
        bench.frames,
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


PARTS = {"vae": vae, "decode": decode, "t5": t5}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--sizes", default="480x848", help="height x width, px, of vae; decode has the first")
    parser.add_argument("--frames", type=int, default=51, help="frames of the clip")
    parser.add_argument("--batch", type=int, default=16, help="frames of decode, or captions, at once")
    parser.add_argument("--chunks", type=int, default=6, help="chunks of decode at once")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls of each")
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
    if given.small:
        print(as_table(found))
    else:
        keep(f"encoders_{card(torch.cuda.get_device_name())}", found)


if __name__ == "__main__":
    main()
