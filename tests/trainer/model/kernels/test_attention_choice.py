"""Attention takes the fastest of the right kernels; a library's fault keeps its kernel out."""

import itertools
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.kernels import flash_attention4
from trainer.model.kernels.autotune import Choice, Gradients, Kept, Kernel, both_passes, choose, distance

ROOT = Path(__file__).resolve().parents[4]
# A package as flash-attn-4 is one, in as far as it is called: its dQ is right where the last step reads what
# the step before wrote, in rows of {rows} columns.
PACKAGE = """
import torch
import torch.nn.functional as F

def _heads_first(*given):
    return [part.transpose(1, 2) for part in given]

def _flash_attn_fwd(q, k, v, seqused_k=None, return_lse=False):
    q, k, v = _heads_first(q, k, v)
    scores = q @ k.mT * q.shape[3] ** -0.5
    return (scores.softmax(-1) @ v).transpose(1, 2).contiguous(), scores.logsumexp(-1), None, None, None

def _bwd_postprocess_convert(sums, into, hdim_multiple_of=32, *, fake_mode):
    into.copy_(sums if hdim_multiple_of == {rows} else sums.roll(1, -1))

def _flash_attn_bwd(q, k, v, out, dout, lse, seqused_k=None, *, dq=None, dk=None, dv=None):
    q, k, v, out, dout = _heads_first(q, k, v, out, dout)
    scale = q.shape[3] ** -0.5
    p = (q @ k.mT * scale - lse[..., None]).exp()
    ds = p * (dout @ v.mT - (out * dout).sum(-1, keepdim=True)) * scale
    dk.copy_((ds.mT @ q).transpose(1, 2))
    dv.copy_((p.mT @ dout).transpose(1, 2))
    _bwd_postprocess_convert((ds @ k).transpose(1, 2), dq, hdim_multiple_of=32, fake_mode=False)
    return dq, dk, dv
"""


def _attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Kept]:
    return F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v))).transpose(1, 2), ()


def _gradients(q: Tensor, k: Tensor, v: Tensor, out: Tensor, kept: Kept, dout: Tensor) -> Gradients:
    given = [part.detach().requires_grad_() for part in (q, k, v)]
    dq, dk, dv = torch.autograd.grad(_attention(*given)[0], given, dout)
    return dq, dk, dv


def _wrong_dq(q: Tensor, k: Tensor, v: Tensor, out: Tensor, kept: Kept, dout: Tensor) -> Gradients:
    dq, dk, dv = _gradients(q, k, v, out, kept, dout)
    return dq.roll(1, -1), dk, dv


def _raises(*_: Tensor) -> tuple[Tensor, Kept]:
    raise RuntimeError("no kernel image is available\nfor this device")


def _not_finite(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Kept]:
    return torch.full_like(q, float("nan")), ()


class Clock:
    """Time advances by the cost that a kernel declares, whenever it runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self, runs: Sequence[Callable[[], object]]) -> list[float]:
        times = [self.now]
        for run in runs:
            run()
            times.append(self.now)
        return [end - begin for begin, end in itertools.pairwise(times)]

    def costing(self, cost: float, kernel: Kernel) -> Kernel:
        """Return the kernel, whose forward pass now takes `cost` ms."""

        def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Kept]:
            self.now += cost
            return kernel.forward(q, k, v)

        return Kernel(kernel.name, forward, kernel.backward, kernel.mended)


OWN = Kernel("own", _attention, _gradients)


def _chosen(*others: tuple[float, Kernel]) -> tuple[Kernel, Choice]:
    """Return the choice among the kernels, by what each costs, and ours, which costs 4 ms."""
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, length, 3, 72, generator=draw) for length in (6, 5, 5))
    clock = Clock()
    kernels = [clock.costing(cost, kernel) for cost, kernel in others]
    return choose(q, k, v, trusted=clock.costing(4, OWN), others=kernels, clock=clock)


def test_the_fastest_of_the_right_kernels_is_taken() -> None:
    right = [(5.0, Kernel("slow", _attention, _gradients)), (2.0, Kernel("quick", _attention, _gradients))]
    taken, choice = _chosen(*right)
    assert (taken.name, choice.kernel) == ("quick", "quick")
    assert (choice.heads, choice.queries, choice.keys) == (6, 6, 5)
    facts = choice.facts()
    assert [facts[f"{name}_ms"] for name in ("own", "slow", "quick")] == [4, 5, 2]
    assert facts["kernel"] == "quick"
    assert facts["kept_out"] == {}


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (Kernel("other", _attention, _wrong_dq), "wrong, of its norm: dq by 1."),
        (Kernel("other", _raises, _gradients), "RuntimeError: no kernel image is available"),
        (Kernel("other", _not_finite, _gradients), "wrong, of its norm: out by nan"),
    ],
)
def test_a_kernel_that_is_wrong_or_raises_is_kept_out_and_the_reason_is_reported(
    kernel: Kernel, why: str
) -> None:
    taken, choice = _chosen((1.0, kernel))
    assert taken.name == "own"
    assert list(choice.kept_out) == ["other"]
    assert choice.kept_out["other"].startswith(why)
    assert "\n" not in choice.kept_out["other"]
    assert list(choice.milliseconds) == ["own"]


def test_a_wrong_kernel_is_tried_again_in_its_mended_form_and_only_then() -> None:
    mended = Kernel("other", _attention, _gradients)
    taken, choice = _chosen((1.0, Kernel("other", _attention, _wrong_dq, mended)))
    assert taken is mended
    assert (choice.kernel, choice.kept_out) == ("other", {})
    right = Kernel("other", _attention, _gradients, Kernel("other", _raises, _gradients))
    assert _chosen((1.0, right))[1].kernel == "other"
    wrong_twice = Kernel("other", _attention, _wrong_dq, Kernel("other", _attention, _wrong_dq))
    assert "; mended: wrong, of its norm: dq" in _chosen((1.0, wrong_twice))[1].kept_out["other"]


def test_ours_is_taken_where_there_is_no_other() -> None:
    taken, choice = _chosen()
    assert (taken.name, choice.milliseconds, choice.kept_out) == ("own", {"own": 4}, {})


def test_results_that_are_zero_are_right_if_both_are() -> None:
    q, k, v = (torch.zeros(1, 2, 1, 8) for _ in range(3))
    _, choice = choose(
        q,
        k,
        v,
        trusted=OWN,
        others=[Kernel("other", _attention, _gradients)],
        clock=lambda runs: [1.0] * len(runs),
    )
    assert not choice.kept_out


def test_a_choice_moves_no_other_draw() -> None:
    torch.manual_seed(3)
    wanted = torch.randn(1)
    torch.manual_seed(3)
    _chosen((1.0, Kernel("other", _attention, _gradients)))
    assert torch.equal(torch.randn(1), wanted)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that installs a package named flash-attn-4 with this source."""
    for name in [name for name in sys.modules if name.split(".")[0] == "flash_attn"]:
        monkeypatch.delitem(sys.modules, name)

    def forget() -> None:
        flash_attention4.interface.cache_clear()
        flash_attention4._mended_backward.cache_clear()
        for name in [name for name in sys.modules if name.split(".")[0] == "flash_attn"]:
            del sys.modules[name]

    def install(source: str) -> None:
        folder = tmp_path / "flash_attn" / "cute"
        folder.mkdir(parents=True)
        (folder.parent / "__init__.py").touch()
        (folder / "__init__.py").touch()
        (folder / "interface.py").write_text(source)
        about = tmp_path / "flash_attn_4-0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.4\nName: flash-attn-4\nVersion: 0\n")
        monkeypatch.syspath_prepend(tmp_path)

    forget()
    yield install
    forget()


@pytest.mark.parametrize(
    ("rows", "is_taken", "is_mended"), [(32, True, False), (16, True, True), (48, False, False)]
)
def test_flash_attention_4_is_taken_as_released_or_mended_whichever_is_right(
    installed: Callable[[str], None], rows: int, is_taken: bool, is_mended: bool
) -> None:
    installed(PACKAGE.replace("{rows}", str(rows)))
    assert flash_attention4.is_installed()
    package = flash_attention4.interface()
    given = [torch.randn(1, 4, 2, 72) for _ in range(3)]
    before = dict(vars(package))
    taken, choice = choose(
        *given, trusted=OWN, others=[flash_attention4.FLASH4], clock=lambda runs: [1.0] * len(runs)
    )
    assert ("flash4" in choice.milliseconds) == is_taken
    assert "mended" in choice.kept_out.get("flash4", "mended")
    if is_taken:
        form = flash_attention4.FLASH4.mended if is_mended else flash_attention4.FLASH4
        assert form is not None
        out, kept = form.forward(*given)
        dq, _, _ = form.backward(*given, out, kept, torch.ones_like(out))
        torch.testing.assert_close(dq, _gradients(*given, out, (), torch.ones_like(out))[0])
    assert vars(package) == before
    assert taken.name == "own"  # the one clock says the same of both: ours goes first


def test_a_broken_installation_is_reported_in_a_line_and_ours_is_taken(
    installed: Callable[[str], None],
) -> None:
    installed("raise ImportError('libcute_dsl_runtime.so: cannot open shared object file')")
    taken, choice = _chosen((1.0, flash_attention4.FLASH4))
    assert taken.name == "own"
    assert choice.kept_out == {
        "flash4": "ImportError: libcute_dsl_runtime.so: cannot open shared object file"
    }


COMPILE = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from trainer.model.kernels import flash_attention4

package = flash_attention4.interface()
before = dict(vars(package))
with FakeTensorMode():
    q, k, v = (torch.empty(2, 405, 16, 72, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    out, kept = flash_attention4.forward(q, k, v)
    dq, dk, dv = flash_attention4.mended_backward(q, k, v, out, kept, torch.empty_like(out))
assert vars(package) == before
assert dq.shape == q.shape and dk.shape == dv.shape == k.shape
print(*(key[-2] for key in package._bwd_postprocess_convert.compile_cache.cache))
"""


@pytest.mark.skipif(
    not flash_attention4.is_installed(), reason="flash-attn-4 is not installed (extra hopper)"
)
def test_the_mended_backward_pass_compiles_for_hopper_at_heads_of_72() -> None:
    """On a machine without a GPU, too: FlashAttention-4 compiles for the given architecture."""
    target = {
        "FLASH_ATTENTION_ARCH": "sm_90", "CUTE_DSL_ARCH": "sm_90a", "FLASH_ATTENTION_NUM_SMS": "132",
    }  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-c", COMPILE],
        cwd=ROOT,
        env={**os.environ, **target},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["16"]
    assert "aux_data" not in ended.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_benchmark_says_in_a_line_that_it_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", ["benchmarks/attention.py"])
    with pytest.raises(SystemExit, match=r"^benchmarks/attention.py needs a GPU[^\n]*$"):
        runpy.run_path(str(ROOT / "benchmarks" / "attention.py"), run_name="__main__")


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="no Hopper GPU"
)
def test_on_hopper_every_kernel_that_is_there_is_right_in_frames_and_to_captions() -> None:
    from trainer.model.kernels import attention

    there = {"own", "cudnn", *(["flash4"] if flash_attention4.is_installed() else [])}
    for queries, keys in ((405, 405), (2160, 300)):
        q, k, v, dout = (
            torch.randn(4, length, 16, 72, device="cuda", dtype=torch.bfloat16)
            for length in (queries, keys, keys, queries)
        )
        attention.news()
        out, kept = attention.attend(q, k, v)
        (choice,) = attention.news()
        assert choice.kept_out == {}
        assert set(choice.milliseconds) == there
        found = out, *attention.attend_backward(q, k, v, None, out, kept, dout)
        wanted = both_passes(attention.OWN, q, k, v, dout)
        assert max(distance(one, two) for one, two in zip(found, wanted, strict=True)) < 0.01
        assert attention.news() == []
