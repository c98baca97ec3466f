"""Open-Sora's VAE v1.2: names, sizes, chunks, and numbers that the original's own code gave."""

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

from tests.trainer.encoders_for_tests import fill, make_vae, pixels, tiny_vae
from trainer.model import rng
from trainer.model.encoders.registry import VideoEncoder, draw, video_encoder
from trainer.model.encoders.temporal_vae import CausalConv, TemporalConfig, TemporalVAE
from trainer.model.encoders.vae import (
    CHUNK,
    SCALE,
    SHIFT,
    SPATIAL_SCALE,
    Vae,
    VaeSpec,
    VideoVae,
    build,
    by_chunk,
)
from vidcurate.errors import InputError

FEW = TemporalConfig(filters=8, num_groups=4, num_res_blocks=1)


@pytest.fixture(scope="module")
def tiny() -> Vae:
    return tiny_vae()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vae(tmp_path_factory.mktemp("vae") / "OpenSora-VAE-v1.2")


@pytest.fixture(scope="module")
def encoder(folder: Path) -> VideoVae:
    return VideoVae(VaeSpec(source=str(folder), dtype="float32"))


# ── names and sizes ─────────────────────────────────────────────────────────────────────────────────────────


def published_temporal() -> dict[str, tuple[int, ...]]:
    """Return name → shape of the temporal VAE of hpcai-tech/OpenSora-VAE-v1.2, from its list of layers."""
    shapes: dict[str, tuple[int, ...]] = {}

    def conv(name: str, channels: int, out: int, kernel: int, bias: bool) -> None:
        shapes[f"{name}.conv.weight"] = (out, channels, kernel, kernel, kernel)
        if bias:
            shapes[f"{name}.conv.bias"] = (out,)

    def norm(name: str, channels: int) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (channels,)

    def blocks(name: str, channels: int, out: int) -> None:
        for number in range(4):
            before = channels if number == 0 else out
            norm(f"{name}.{number}.norm1", before)
            conv(f"{name}.{number}.conv1", before, out, 3, bias=False)
            norm(f"{name}.{number}.norm2", out)
            conv(f"{name}.{number}.conv2", out, out, 3, bias=False)
            if before != out:
                conv(f"{name}.{number}.conv3", before, out, 1, bias=False)

    conv("encoder.conv_in", 4, 128, 3, bias=False)
    for level, (channels, out) in enumerate([(128, 128), (128, 256), (256, 256), (256, 512)]):
        blocks(f"encoder.block_res_blocks.{level}", channels, out)
    conv("encoder.conv_blocks.1", 256, 256, 3, bias=True)
    conv("encoder.conv_blocks.2", 256, 256, 3, bias=True)
    blocks("encoder.res_blocks", 512, 512)
    norm("encoder.norm1", 512)
    conv("encoder.conv2", 512, 8, 1, bias=True)
    conv("quant_conv", 8, 8, 1, bias=True)
    conv("post_quant_conv", 4, 4, 1, bias=True)
    conv("decoder.conv1", 4, 512, 3, bias=True)
    blocks("decoder.res_blocks", 512, 512)
    for level, (channels, out) in enumerate([(256, 128), (256, 256), (512, 256), (512, 512)]):
        blocks(f"decoder.block_res_blocks.{level}", channels, out)
    conv("decoder.conv_blocks.1", 256, 512, 3, bias=True)
    conv("decoder.conv_blocks.2", 512, 1024, 3, bias=True)
    norm("decoder.norm1", 128)
    conv("decoder.conv_out", 128, 4, 3, bias=True)
    return shapes


def test_the_full_vae_has_the_published_names_shapes_and_parameters() -> None:
    shapes = {name: tuple(value.shape) for name, value in build({}).state_dict().items()}
    temporal = {f"temporal_vae.{name}": shape for name, shape in published_temporal().items()}
    spatial = {name: shape for name, shape in shapes.items() if name.startswith("spatial_vae.module.")}

    assert {name: shape for name, shape in shapes.items() if name.startswith("temporal_vae.")} == temporal
    assert len(temporal) == 267
    assert sum(torch.Size(shape).numel() for shape in temporal.values()) == 309_687_144
    assert len(spatial) == 248
    assert sum(torch.Size(shape).numel() for shape in spatial.values()) == 83_653_863
    assert spatial["spatial_vae.module.encoder.mid_block.attentions.0.to_q.weight"] == (512, 512)
    assert spatial["spatial_vae.module.quant_conv.weight"] == (8, 8, 1, 1)
    assert set(shapes) == {*temporal, *spatial, "scale", "shift"}
    assert shapes["scale"] == shapes["shift"] == (1, 4, 1, 1, 1)


PUBLISHED_LENGTHS = {1: 1, 16: 4, 17: 5, 32: 9, 34: 10, 51: 15, 64: 19, 68: 20, 102: 30, 204: 60, 408: 120}


@pytest.mark.parametrize(("frames", "latents"), [*PUBLISHED_LENGTHS.items(), (2, 1), (5, 2), (18, 6)])
def test_latent_frames_are_the_published_ones(frames: int, latents: int) -> None:
    encoder: VideoEncoder = video_encoder(VaeSpec())
    assert encoder.latent_channels == 4
    assert encoder.latent_shape(frames, 240, 426) == (4, latents, 30, 53)


def test_sizes_are_known_without_weights_and_without_the_libraries(run_python: Callable[[str], str]) -> None:
    code = """
import sys
from trainer.recipe import recipe
from trainer.model.encoders.registry import text_encoder, video_encoder
from trainer.model.encoders.t5 import T5Spec
from trainer.model.encoders.vae import VaeSpec
print(video_encoder(VaeSpec()).latent_shape(51, 144, 256), text_encoder(T5Spec()).caption_channels)
print([name for name in ("diffusers", "transformers", "huggingface_hub") if name in sys.modules])
"""
    assert run_python(code).splitlines() == ["(4, 15, 18, 32) 4096", "[]"]


@pytest.mark.parametrize("frames", [1, 3, 17, 34, 51, 102])
def test_a_video_of_any_length_becomes_latents_and_a_video_again(encoder: VideoVae, frames: int) -> None:
    video = pixels(frames, 8, 16)
    latent = encoder.encode(video)
    assert latent.dtype == torch.float32
    assert tuple(latent.shape[1:]) == encoder.latent_shape(frames, 8, 16)
    decoded = encoder.decode(latent, num_frames=frames)
    assert decoded.shape == video.shape
    assert decoded.dtype == torch.float32
    assert bool(torch.isfinite(decoded).all())
    assert float(decoded.std()) > 0.01


def test_odd_heights_and_widths_are_floored(encoder: VideoVae) -> None:
    latent = encoder.encode(pixels(5, 30, 53))
    assert latent.shape == (1, 4, 2, 3, 6)
    assert encoder.decode(latent, num_frames=5).shape == (1, 3, 5, 24, 48)


def test_what_cannot_be_encoded_or_decoded_is_refused(encoder: VideoVae) -> None:
    with pytest.raises(InputError, match=r"4 x 24 pixels: the VAE needs 8"):
        encoder.encode(pixels(1, 4, 24))
    with pytest.raises(ValueError, match=r"3 latent frames; 17 frames have 5"):
        encoder.decode(torch.zeros(1, 4, 3, 2, 3), num_frames=17)


# ── numbers ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_temporal_vae_gives_the_originals_numbers() -> None:
    # Computed by Open-Sora v1.2's own VAE_Temporal and its chunked encode and decode (commit 0860b06), from
    # the same weights and latents; there the two agree to the last bit, also at the published widths.
    with torch.device("meta"):
        vae = TemporalVAE(FEW)
    fill(vae)
    draws = rng.generator(0, "noise", 0, "latents").standard_normal((1, 4, 23, 3, 2), dtype="float32")
    scale, shift = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in (SCALE, SHIFT))
    with torch.no_grad():
        moments = by_chunk(lambda part: torch.cat(vae.encode(part), 1), torch.from_numpy(draws), CHUNK, 1)
        mean, logvar = moments.chunk(2, dim=1)
        z = (mean - shift) / scale
        parts = [
            vae.decode(part, num_frames=length)
            for part, length in zip((z * scale + shift).split(5, dim=2), (17, 6), strict=True)
        ]
        frames = torch.cat(parts, dim=2)

    assert z[0, :, 3, 1, 1].tolist() == pytest.approx([-0.066814, -0.229148, 0.137464, -0.638018], abs=1e-5)
    assert z[0, 1, :, 2, 0].tolist() == pytest.approx(
        [-0.173879, -0.161973, -0.254313, -0.126919, -0.163153, -0.160599, -0.150112], abs=1e-5
    )
    assert logvar[0, :, 6, 0, 1].tolist() == pytest.approx(
        [-0.288817, -0.02017, 0.078766, 0.095803], abs=1e-5
    )
    assert frames[0, 2, [0, 4, 16, 17, 22], 1, 0].tolist() == pytest.approx(
        [-0.02193, -0.327034, 0.414095, 0.275728, -1.10869], abs=1e-5
    )


def test_the_two_halves_and_the_constants_are_put_together_as_published(tiny: Vae, encoder: VideoVae) -> None:
    video = pixels(20)
    mean, variance = encoder.posterior(video)
    with torch.no_grad():
        latents = torch.stack(
            [tiny.frames.encode(frame[None] / 127.5 - 1).latent_dist.mean[0] for frame in video[0].unbind(1)],
            1,
        )
        whole, rest = (tiny.temporal_vae.encode(part[None] * 0.18215) for part in latents.split(17, dim=1))
    for channel in range(4):
        expected = torch.cat([whole[0], rest[0]], dim=2)[:, channel]
        torch.testing.assert_close(
            mean[:, channel], (expected - SHIFT[channel]) / SCALE[channel], atol=1e-5, rtol=1e-5
        )
        expected = torch.cat([whole[1], rest[1]], dim=2)[:, channel].exp() / SCALE[channel] ** 2
        torch.testing.assert_close(variance[:, channel], expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(encoder.encode(video), mean)
    assert SPATIAL_SCALE == 0.18215


def test_decoding_takes_every_step_back(tiny: Vae, encoder: VideoVae) -> None:
    z = torch.from_numpy(rng.generator(1, "noise").standard_normal((1, 4, 6, 2, 3), dtype="float32"))
    video = encoder.decode(z, num_frames=20)
    with torch.no_grad():
        raw = z * torch.tensor(SCALE).view(1, -1, 1, 1, 1) + torch.tensor(SHIFT).view(1, -1, 1, 1, 1)
        latents = torch.cat(
            [
                tiny.temporal_vae.decode(raw[:, :, :5], num_frames=17),
                tiny.temporal_vae.decode(raw[:, :, 5:], num_frames=3),
            ],
            dim=2,
        )
        frames = [tiny.frames.decode(frame / 0.18215).sample for frame in latents.unbind(2)]
    torch.testing.assert_close(video, torch.stack(frames, dim=2), atol=1e-4, rtol=1e-4)


def test_chunks_of_17_frames_are_encoded_and_decoded_each_by_itself(encoder: VideoVae) -> None:
    video = pixels(51)
    latent = encoder.encode(video)
    alone = [encoder.encode(chunk) for chunk in video.split(17, dim=2)]
    torch.testing.assert_close(latent, torch.cat(alone, dim=2), atol=1e-6, rtol=1e-5)
    decoded = [encoder.decode(chunk, num_frames=17) for chunk in latent.split(5, dim=2)]
    torch.testing.assert_close(
        encoder.decode(latent, num_frames=51), torch.cat(decoded, dim=2), atol=1e-4, rtol=1e-4
    )


def test_a_later_frame_never_changes_the_latent_of_an_earlier_chunk(encoder: VideoVae) -> None:
    video = pixels(40)
    changed = video.clone()
    changed[:, :, 17:] = 255 - changed[:, :, 17:]
    before, after = encoder.encode(video), encoder.encode(changed)
    torch.testing.assert_close(before[:, :, :5], after[:, :, :5], atol=1e-6, rtol=0)
    assert float((before[:, :, 5:] - after[:, :, 5:]).abs().amax(dim=(0, 1, 3, 4)).min()) > 1e-4


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_looks_back_only_and_sees_zeros_before_the_first_frame(stride: int) -> None:
    conv = CausalConv(2, 3, time_stride=stride)
    x = torch.from_numpy(rng.generator(2, "noise").standard_normal((1, 2, 8, 4, 4), dtype="float32"))
    later = x.clone()
    later[:, :, 5:] += 1
    with torch.no_grad():
        out, other = conv(x), conv(later)
        padded = torch.cat([torch.zeros(1, 2, 3 - stride, 4, 4), x], dim=2)
        first = nn.functional.conv3d(padded[:, :, :3], conv.conv.weight, conv.conv.bias, padding=(0, 1, 1))
    assert out.shape[2] == 8 // stride
    seen = [number for number in range(out.shape[2]) if (number + 1) * stride - 1 < 5]
    assert torch.equal(out[:, :, seen], other[:, :, seen])
    assert not torch.equal(out[:, :, -1], other[:, :, -1])
    torch.testing.assert_close(out[:, :, :1], first)


class WideSpec(VaeSpec):
    micro_batch_size: ClassVar[int] = 64
    chunk_batch_size: ClassVar[int] = 8


def test_latents_are_the_same_whatever_is_computed_at_once(folder: Path, encoder: VideoVae) -> None:
    video = pixels(40, batch=2)
    wide = VideoVae(WideSpec(source=str(folder), dtype="float32"))
    latent = encoder.encode(video)
    assert torch.equal(latent, encoder.encode(video))
    torch.testing.assert_close(wide.encode(video), latent, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(encoder.encode(video[1:]), latent[1:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        wide.decode(latent, num_frames=40), encoder.decode(latent, num_frames=40), atol=1e-4, rtol=1e-4
    )


def test_bytes_and_floats_are_the_same_video_and_autocast_changes_nothing(encoder: VideoVae) -> None:
    video = pixels(6)
    latent = encoder.encode(video)
    torch.testing.assert_close(encoder.encode(video / 127.5 - 1), latent, atol=1e-6, rtol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoder.encode(video), latent)
    assert not latent.requires_grad


def test_bfloat16_is_near_float32_and_keeps_the_constants_exact(folder: Path, encoder: VideoVae) -> None:
    half = VideoVae(VaeSpec(source=str(folder)))
    video = pixels(20, 32, 32)
    (mean, variance), (exact, _) = half.posterior(video), encoder.posterior(video)
    assert mean.dtype == variance.dtype == torch.float32
    assert float((mean - exact).norm() / exact.norm()) < 0.02
    vae = half.vae(torch.device("cpu"))
    assert vae.scale.flatten().tolist() == pytest.approx(SCALE, abs=1e-6)
    assert next(vae.parameters()).dtype == torch.bfloat16
    decoded = half.decode(exact, num_frames=20)
    full = encoder.decode(exact, num_frames=20)
    assert float((decoded - full).norm() / full.norm()) < 0.1


def test_a_draw_from_the_posterior_belongs_to_seed_step_and_clip(encoder: VideoVae) -> None:
    video = pixels(5, batch=2)
    mean, variance = encoder.posterior(video)
    assert bool((variance > 0).all())
    torch.manual_seed(0)
    both = draw(mean, variance, seed=3, step=4, clip_ids=["a", "b"])
    torch.manual_seed(1)
    alone = draw(*encoder.posterior(video[1:]), seed=3, step=4, clip_ids=["b"])
    torch.testing.assert_close(alone, both[1:], atol=1e-5, rtol=1e-5)
    noises = (both - mean) / variance.sqrt()
    assert float(noises.mean()) == pytest.approx(0, abs=0.3)
    assert float(noises.std()) == pytest.approx(1, abs=0.2)
