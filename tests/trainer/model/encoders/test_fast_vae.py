"""The VAE's fast encoders give what the readable ones give; in Triton's interpreter, and on a GPU."""

from importlib.util import find_spec
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("triton", reason="triton is not installed on this platform")

from tests.trainer.encoders_for_tests import fill, pixels
from tests.trainer.interpreter_for_tests import patch_once_a_launch
from trainer.model.encoders import fast_vae
from trainer.model.encoders.temporal_vae import CausalConv
from trainer.model.encoders.vae import SCALE, SHIFT, Vae, VaeSpec, VideoVae, build
from trainer.model.kernels import group_norm, residual_sum, vae_layers

pytestmark = pytest.mark.skipif(
    find_spec("diffusers") is None, reason="the frame VAE is diffusers'"
)  # asked without the import, which takes each test process three seconds
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="half precision needs a GPU")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = 2e-5  # relative 2-norm: float32, other order of sums
# A level that changes the width, and a width that is no power of two.
WIDTHS = {
    "vae_2d": {
        "config": {"block_out_channels": [8, 12, 16, 16], "layers_per_block": 1, "norm_num_groups": 4}
    },
    "vae_temporal": {"filters": 8, "num_groups": 4, "num_res_blocks": 1},
}


@pytest.fixture(autouse=True)
def _exact_and_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tiles in the interpreter, which is slow; no TF32."""
    if DEVICE.type == "cpu":
        patch_once_a_launch(monkeypatch)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture(scope="module")
def vae() -> Vae:
    vae = build(WIDTHS)
    fill(vae)
    vae.scale, vae.shift = (torch.tensor(each).view(1, -1, 1, 1, 1) for each in (SCALE, SHIFT))
    vae = vae.eval().requires_grad_(False).to(DEVICE)
    fast_vae.prepare(vae)
    return vae


def _apart(found: Tensor, exact: Tensor) -> float:
    assert found.shape == exact.shape
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def _norm(channels: int, groups: int) -> nn.GroupNorm:
    norm = nn.GroupNorm(groups, channels, eps=1e-6).to(DEVICE).requires_grad_(False)
    norm.weight.normal_(1, 0.2)
    norm.bias.normal_(0, 0.2)
    return norm


def _random(*shape: int, mean: float = 0.0) -> Tensor:
    return (torch.randn(*shape) + mean).to(DEVICE)


@pytest.mark.parametrize("mean", [0.0, 300.0], ids=["centred", "far from zero"])
@pytest.mark.parametrize(("rows", "channels", "groups"), [(1, 8, 4), (1100, 12, 4), (300, 32, 32)])
def test_norm_and_silu_are_torchs(
    rows: int, channels: int, groups: int, mean: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residual_sum, "TILE", 64)  # several tiles, which are merged two by two
    monkeypatch.setattr(group_norm, "TILES", 2)
    x, bias, norm = _random(2, rows, channels, mean=mean), _random(channels), _norm(channels, groups)
    exact = F.silu(norm.double()((x + bias).double().mT).mT)
    norm = norm.float()
    found = group_norm.normalize(x, residual_sum.statistics(x), norm, bias=bias, front=3, back=2)
    assert found.shape == (2, rows + 5, channels)
    assert _apart(found[:, 3:-2], exact) < (TOLERANCE if mean == 0 else 5e-4)
    assert not found[:, :3].any()
    assert not found[:, -2:].any()


def test_a_sum_and_its_statistics_leave_out_rows_behind() -> None:
    x, y, bias, norm = _random(2, 90, 8), _random(2, 96, 8), _random(8), _norm(8, 4)
    total, found = residual_sum.add(x, y, bias)
    exact = x + y[:, :90] + bias
    torch.testing.assert_close(total, exact)
    made = group_norm.normalize(total, found, norm, silu=False)
    assert _apart(made, norm(exact.mT).mT) < TOLERANCE


def test_sums_are_written_between_the_zeros_that_a_convolution_asks_for() -> None:
    x, y, bias = _random(2, 35, 12), _random(2, 35, 12), _random(12)
    exact = x + y + bias
    corner = residual_sum.add_with_corner(x, y, bias, (5, 7)).view(2, 6, 8, 12)
    torch.testing.assert_close(corner, F.pad(exact.view(2, 5, 7, 12), (0, 0, 0, 1, 0, 1)))
    torch.testing.assert_close(residual_sum.add_in_front(x, y, bias, 7), F.pad(exact, (0, 0, 7, 0)))


@pytest.mark.parametrize("is_bytes", [True, False])
def test_the_first_convolution_reads_pixels(is_bytes: bool) -> None:
    video = pixels(2, 9, 13)[0].movedim(1, 0).to(DEVICE)
    floats = video / 127.5 - 1
    weight = _random(12, 3, 3, 3)
    rows, found = vae_layers.first_conv(video if is_bytes else floats, weight)
    exact = F.conv2d(floats, weight, padding=1).flatten(2).mT
    assert _apart(rows, exact) < TOLERANCE
    norm = _norm(12, 4)
    assert _apart(group_norm.normalize(rows, found, norm, silu=False), norm(exact.mT).mT) < TOLERANCE


@pytest.mark.parametrize("time", [1, 2, 5])
def test_a_causal_convolution_is_the_sum_of_its_steps(time: int) -> None:
    x, norm, conv = _random(2, time * 6, 8), _norm(8, 4), CausalConv(8, 12, bias=False).to(DEVICE)
    conv.requires_grad_(False)
    rows, bias = _random(2, time * 6, 12), _random(12)
    inner = F.silu(norm(x.mT))
    exact = conv(inner.unflatten(2, (time, 2, 3))).flatten(2).mT
    moments = group_norm.normalize(x, residual_sum.statistics(x), norm, place=6)
    assert _apart(moments.unflatten(0, (time, 2)).movedim(0, 1).flatten(1, 2), inner.mT) < TOLERANCE
    steps = fast_vae._steps(moments, (time, 2, 3), conv.conv)
    alone, found = residual_sum.add_moments(None, steps, None, time * 6)
    assert _apart(alone, exact) < TOLERANCE
    assert _apart(residual_sum.add_moments(rows, steps, bias, time * 6)[0], exact + rows + bias) < TOLERANCE
    last = _norm(12, 4)
    assert _apart(group_norm.normalize(alone, found, last, silu=False), last(exact.mT).mT) < TOLERANCE


def test_softmax_leaves_out_what_stands_behind_the_keys() -> None:
    scores = _random(3, 5, 40) * 20
    found = vae_layers.softmax_rows(scores, 37, 0.3, torch.float32)
    torch.testing.assert_close(found[..., :37], (scores[..., :37] * 0.3).softmax(-1))
    assert not found[..., 37:].any()


@pytest.mark.parametrize(("height", "width"), [(16, 24), (13, 31)], ids=["even", "odd"])
def test_moments_of_frames_are_the_readable_ones(vae: Vae, height: int, width: int) -> None:
    video = pixels(1, height, width)[0].movedim(1, 0).to(DEVICE)
    exact = vae.frames.encode(video / 127.5 - 1).latent_dist.parameters
    assert _apart(fast_vae.encode_frames(vae.frames, video), exact) < TOLERANCE


@pytest.mark.parametrize("frames", [6, 1])
def test_moments_of_chunks_are_the_readable_ones(
    vae: Vae, frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_vae, "FEW_MOMENTS", frames // 3)
    latents = _random(1 + frames % 2, 4, frames, 3, 2)
    exact = torch.cat(vae.temporal_vae.encode(latents), dim=1)
    assert _apart(fast_vae.encode_chunks(vae.temporal_vae, latents), exact) < TOLERANCE


def test_a_whole_encode_takes_the_kernels_and_gives_the_readable_latents(
    vae: Vae, monkeypatch: pytest.MonkeyPatch
) -> None:
    readable, fast = (VideoVae(VaeSpec(dtype="float32"), is_fast=each) for each in (False, True))
    readable._vae = fast._vae = vae
    monkeypatch.setattr(VideoVae, "_takes_kernels", lambda self, *_: self.is_fast)
    monkeypatch.setattr(fast_vae, "PIXELS", 8 * 16 * 2)
    monkeypatch.setattr(fast_vae, "SCORES", 1)  # a picture's attention at a time
    video = pixels(3, 8, 16).to(DEVICE)
    for found, exact in zip(fast.posterior(video), readable.posterior(video), strict=True):
        assert _apart(found, exact) < TOLERANCE


def test_frames_and_chunks_at_once_depend_on_their_size_alone() -> None:
    assert [fast_vae.at_once(side, fast_vae.PIXELS) for side in (480 * 848, 144 * 256, 1 << 30)] == [
        10,
        113,
        1,
    ]
    assert [len(part) for part in fast_vae.even_parts(torch.zeros(51, 1), 10)] == [9, 9, 9, 8, 8, 8]


def test_other_architectures_and_float32_stay_readable(vae: Vae) -> None:
    assert fast_vae.supports(vae)
    other = build({"vae_2d": {"config": {"act_fn": "gelu"}}})
    assert not fast_vae.supports(other)
    encoder = VideoVae(VaeSpec(dtype="float32"))
    assert not encoder._takes_kernels(vae, torch.device("cuda"))
    assert not VideoVae(VaeSpec())._takes_kernels(vae, torch.device("cpu"))


def test_prepared_weights_keep_their_names_and_values() -> None:
    vae = build(WIDTHS)
    fill(vae)
    before = {name: value.clone() for name, value in vae.state_dict().items()}
    fast_vae.prepare(vae)
    after = vae.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(value, after[name]) for name, value in before.items())


@needs_gpu
@pytest.mark.parametrize("size", [(17, 96, 160), (20, 90, 106)])
def test_half_precision_is_as_near_float32_as_the_readable_encoders_are(size: tuple[int, int, int]) -> None:
    wide: dict[str, Any] = {
        "vae_2d": {"config": {"layers_per_block": 1, "block_out_channels": [128, 256, 256, 512]}},
        "vae_temporal": {"filters": 64, "num_res_blocks": 2},
    }
    vae = build(wide)
    fill(vae)
    for weight in vae.parameters():
        if weight.ndim > 1:
            weight.data.mul_(0.3)
    vae = vae.eval().requires_grad_(False).cuda()
    vae.scale, vae.shift = (torch.tensor(each, device="cuda").view(1, -1, 1, 1, 1) for each in (SCALE, SHIFT))
    video = pixels(*size).cuda()
    exact = VideoVae(VaeSpec(dtype="float32"))
    exact._vae = vae
    means = [exact.encode(video)]
    half = vae.to(torch.bfloat16)
    half.scale, half.shift = half.scale.float(), half.shift.float()
    for is_fast in (False, True):
        encoder = VideoVae(VaeSpec(), is_fast=is_fast)
        encoder._vae = cast(Vae, half)
        means.append(encoder.encode(video))
    readable, fast = (_apart(mean, means[0]) for mean in means[1:])
    assert 0 < fast <= 1.05 * readable
    assert not torch.equal(means[1], means[2])
