"""The kernel of an update gives what torch gives, on a GPU where there is one or in the interpreter."""

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="triton is not installed on this platform")

from trainer.model.kernels import adamw
from trainer.training.optim import adamw as optim_adamw
from trainer.training.optim.schedule import OptimSpec

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SPEC = OptimSpec(weight_decay=0.1, eps=1e-6, betas=(0.9, 0.99))


class Odd(nn.Module):
    """Tensors of all kinds of sizes, one of them of memory that is not its own: a piece of a flat buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.one = nn.Parameter(torch.randn(1))
        self.flat = nn.Parameter(torch.randn(5 * adamw.TILE[0] + 8)[5:].view(-1, 1))  # not at 16 bytes
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.whole = nn.Parameter(torch.randn(6, adamw.TILE[0]))
        self.none = nn.Parameter(torch.randn(0, 4))  # a rank's piece of few rows
        self.odd = nn.Parameter(torch.randn(7, 19))
        self.register_buffer("table", torch.randn(2))


def _model() -> Odd:
    with torch.device(DEVICE):
        return Odd()


@pytest.fixture(autouse=True)
def _small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adamw, "TILE", (32, 4))
    monkeypatch.setattr(adamw, "TILES", 2)


def _give(model: nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn(parameter.shape, device=DEVICE) * 10.0**-seed
    # One that lies otherwise than its tensor.
    model.odd.grad = model.odd.grad.T.contiguous().T


def test_the_kernel_updates_as_torch_does() -> None:
    models = _model(), _model()
    ours, torchs = (optim_adamw.masters(model, in_one_pass=k == 0) for k, model in enumerate(models))

    for step in range(5):
        if step == 3:  # as a resume fills the state
            for masters in (ours, torchs):
                optim_adamw.set_update_count(masters.optimizer, 1000)
        for model, masters in zip(models, (ours, torchs), strict=True):
            _give(model, step)
            if masters is torchs:  # torch's own kernel on a GPU refuses a gradient that lies otherwise
                model.odd.grad = model.odd.grad.contiguous()
            with torch.no_grad():
                model.frozen.add_(1)
            optim_adamw.update(masters, SPEC, lr=1e-2, ema_decay=0.8, clip_factor=(1.0, 0.3)[step % 2])

    assert ours.kernel is adamw
    assert torchs.kernel is None
    assert optim_adamw.update_count(ours.optimizer) == optim_adamw.update_count(torchs.optimizer) == 1002
    pairs = {name: (value, models[1].state_dict()[name]) for name, value in models[0].state_dict().items()}
    pairs |= {f"ema.{name}": (value, torchs.ema[name]) for name, value in ours.ema.items()}
    moments = [
        optim_adamw.moments(model, each.optimizer) for model, each in zip(models, (ours, torchs), strict=True)
    ]
    pairs |= {name: (value, moments[1][name]) for name, value in moments[0].items()}
    fresh = _model().state_dict()
    for name, (value, wanted) in pairs.items():
        torch.testing.assert_close(value, wanted, rtol=5e-6, atol=1e-7, msg=name)
    assert all(bool((pairs[name][0] != fresh[name]).all()) for name in ("one", "flat", "whole", "odd"))
    assert all(parameter.grad is None for parameter in models[0].parameters())


def test_what_the_kernel_cannot_read_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a tensor \(3, 2\) of torch.float32 is not contiguous float32"):
        adamw.table([torch.zeros(2, 3).T], [torch.zeros(3, 2)], [torch.zeros(3, 2)], [torch.zeros(3, 2)])
