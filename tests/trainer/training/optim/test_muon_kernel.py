"""Muon's kernels update as torch does, on a GPU where there is one or in the interpreter."""

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton", reason="triton is not installed on this platform")

from trainer.model.kernels import muon as kernels
from trainer.training.optim import adamw, muon
from trainer.training.optim.schedule import OptimSpec

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORDS = {"steps": 5, "coefficients": muon.STEPS, "most_elements": 1 << 20, "dtype": torch.float32}


def _draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


class Small(nn.Module):
    """A block's matrices, of widths that no tile divides, one of them three in one, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        attention = {"qkv": nn.Linear(20, 60, bias=False), "proj": nn.Linear(20, 20, bias=False)}
        mlp = {"fc1": nn.Linear(20, 80, bias=False), "fc2": nn.Linear(80, 20, bias=False)}
        block = nn.ModuleDict({"attn": nn.ModuleDict(attention), "mlp": nn.ModuleDict(mlp)})
        self.spatial_blocks = nn.ModuleList([block])
        self.norm = nn.LayerNorm(20, bias=False)


@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU orthogonalises in bfloat16")
def test_the_kernels_update_as_torch_does() -> None:
    spec = OptimSpec(weight_decay=0.1, betas=(0.9, 0.99), muon=2.0)
    ours, torchs = (adamw.masters(Small(), with_muon=True, in_one_pass=one) for one in (True, False))

    for step in range(2):
        for number, name in enumerate(ours.learns):
            gradient = _draw(*ours.learns[name].shape, seed=100 * step + number)
            for masters in (ours, torchs):
                without = step == 1 and name.endswith("proj.weight")
                masters.learns[name].grad = None if without else gradient.clone()
        for masters in (ours, torchs):
            factor = torch.tensor(0.5) if masters is ours else 0.5
            adamw.update(masters, spec, lr=1e-2, ema_decay=0.8, clip_factor=factor)

    assert ours.matrices is not None
    assert ours.matrices.kernel is kernels
    assert len(ours.matrices.names) == 4
    assert torchs.matrices is not None
    assert torchs.matrices.kernel is None
    for name in ours.learns:
        torch.testing.assert_close(ours.learns[name], torchs.learns[name], rtol=1e-5, atol=2e-6, msg=name)
        torch.testing.assert_close(ours.ema[name], torchs.ema[name], rtol=1e-5, atol=2e-6, msg=name)
    for one, other in zip(ours.matrices.momenta, torchs.matrices.momenta, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


def test_a_matrix_has_the_same_bits_whatever_it_is_computed_with() -> None:
    several = [_draw(20, 36, seed=seed) for seed in range(3)]

    together = kernels.orthogonalised([*several, several[1].T.contiguous()], **WORDS)

    for one, other in zip(several, together, strict=False):
        assert torch.equal(kernels.orthogonalised([one], **WORDS)[0], other)
    assert torch.equal(together[3].mT, together[1])
    values = torch.linalg.svdvals(together[0])
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_an_update_in_shards_has_the_bits_of_the_whole_one() -> None:
    """One rank applies high matrices turned over, several ranks apply rows as they come."""
    (update,) = kernels.orthogonalised([_draw(36, 20, seed=1)], **WORDS)
    assert not update.is_contiguous()
    weights = [_draw(36, 20, seed=2) for _ in range(2)]
    averages = [_draw(36, 20, seed=3) for _ in range(2)]
    cut = [one.contiguous().split([7, 0, 29]) for one in (weights[1], averages[1], update.contiguous())]

    kernels.apply([weights[0]], [averages[0]], [update], [-0.3], kept=0.9, ema_decay=0.8)
    kernels.apply(*cut, [-0.3] * 3, kept=0.9, ema_decay=0.8)

    assert torch.equal(weights[0], weights[1])
    assert torch.equal(averages[0], averages[1])
    assert not torch.equal(weights[0], _draw(36, 20, seed=2))
