"""The budget of a step: kernels have their parts, floors are the stated ones, the page is what was kept."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.model.flops import forward_flops

ROOT = Path(__file__).resolve().parents[2]

# As torch's profiler names them on an H200; FlashAttention-4's as its compiler does.
NAMES = {
    "attention in a frame and to captions": [
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x4x1_cga1x1x1_kernel0_0",
        "void cudnn::fusion::compute_dot_do_o<true>",
        "void cudnn::fusion::convert_dq_to_16bits<false>",
        "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at__Tensorgmemoi64",
        "kernel_cutlass_kernel_flash_attncuteflash_bwd_sm90FlashAttentionBackwardSm90_object_at__Tensorgmemoi64",
        "_flash_kernel",
        "_flash_by_keys",
        "_flash_by_queries",
    ],
    "linears": [
        "nvjet_sm90_tst_192x208_64x4_1x2_h_bz_coopB_bias_TNT",
        "nvjet_sm90_tst_192x208_64x4_1x2_h_badd_coopB_NNT",
        "nvjet_sm90_tst_128x128_64x6_1x1_h_bz_splitK_NTT",
        "void cublasLt::splitKreduce_kernel<32, 16, int, __nv_bfloat16, float>",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_32x6_nn_align4>",
        "_float8_transposed_kernel",
    ],
    "attention over time": ["_temporal_kernel", "_temporal_backward_kernel"],
    "norm of q and k, rotation": [
        "_qk_norm_kernel",
        "_qk_norm_backward_kernel",
        "_qk_norm_backward_rows_kernel",
    ],
    "modulate, residual, norm": ["_modulate_kernel", "_normed_backward_kernel", "_gated_backward_kernel"],
    "GELU": [
        "void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl(at::Tensor",
        "_gelu_backward_kernel",
    ],
    "sums for biases and tables": [
        "_add_up_kernel",
        "_bias_gradient_kernel",
        "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, at::native::func_wrapper_t<float",
    ],
    "other": [
        "Memset (Device)",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_",
        "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda(at::Tensor",
        "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, std",
        "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized",
        "void at::native::unrolled_elementwise_kernel",
    ],
}


@pytest.fixture(scope="module")
def benches() -> Iterator[SimpleNamespace]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import rows
        import speed_page
        import step_parts
        import step_profile

        yield SimpleNamespace(rows=rows, page=speed_page, parts=step_parts, profile=step_profile)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def _kernels(benches: SimpleNamespace, blocks: int = 56) -> list[Any]:
    """Every name once for each block, 3 microseconds each and 1 between two."""
    names = [name for part in NAMES.values() for name in part] * blocks
    names.append(NAMES["GELU"][0])  # of the captions' projection
    return [
        benches.parts.Kernel(name=name, start=4.0 * number, end=4.0 * number + 3.0)
        for number, name in enumerate(names)
    ]


def _rows(benches: SimpleNamespace, name: str) -> list[dict[str, Any]]:
    shape = benches.profile.SHAPES[name]
    rates = benches.parts.Rates(product=790.0, copy=4.3)
    made = benches.profile.rows_of(
        name, shape, 3, _kernels(benches), rates, 27.0, 1_201_595_936, "one device"
    )
    return list(made)


def test_a_kernel_belongs_to_the_part_that_its_name_says(benches: SimpleNamespace) -> None:
    found = {part: [benches.parts.part_of(name) for name in names] for part, names in NAMES.items()}
    assert found == {part: [part] * len(names) for part, names in NAMES.items()}


def test_every_kernel_that_a_block_launches_has_a_part(benches: SimpleNamespace) -> None:
    folder, waiting, launched = ROOT / "trainer" / "model" / "kernels", ["block"], set()
    for module in waiting:
        text = (folder / f"{module}.py").read_text(encoding="utf-8")
        waiting += {*re.findall(r"from trainer\.model\.kernels\.(\w+) import", text)} - {*waiting}
        named = {*re.findall(r'"(_\w+_kernel)"', text)}  # what one is called in a profile, where it says so
        launched |= named or {*re.findall(r"^    (\w+)\[", text, re.MULTILINE)} & {
            *re.findall(r"^def (\w+)", text, re.MULTILINE)
        }
    assert {"_modulate_kernel", "_flash_by_keys", "_add_up_kernel"} <= launched
    assert [name for name in sorted(launched) if benches.parts.part_of(name) == "other"] == []


def test_the_floors_of_240p_with_lean_blocks_are_those_counted_by_hand(benches: SimpleNamespace) -> None:
    found = {line["metric"]: line["peer_value"] for line in _rows(benches, "240p_102f")}
    by_hand = {
        "attention in a frame and to captions": 0.49,
        "attention over time": 0.17,
        "norm of q and k, rotation": 0.48,
        "modulate, residual, norm": 0.84,
        "GELU": 0.72,
        "sums for biases and tables": 0.03,
        "optimizer": 0.08,
    }
    assert {part: round(found[f"240p_102f {part}"], 2) for part in by_hand} == by_hand
    # By hand the captions' features had a gradient, too: 0.01 more.
    assert found["240p_102f linears"] == pytest.approx(7.93, abs=0.011)
    assert found["240p_102f all"] == pytest.approx(10.74, abs=0.05)


def test_parts_optimizer_and_gaps_are_the_whole(benches: SimpleNamespace) -> None:
    kernels = _kernels(benches)
    times = benches.parts.times(kernels)
    assert times["linears"] == pytest.approx(3.0 * 56 * len(NAMES["linears"]))
    assert times["gaps"] == pytest.approx(len(kernels) - 1.0)
    assert sum(times.values()) == pytest.approx(kernels[-1].end)

    lines = {line["metric"].partition(" ")[2]: line["value"] for line in _rows(benches, "240p_102f")}
    assert lines.pop("kernels") == len(kernels)
    assert lines.pop("all") == pytest.approx(sum(lines.values()), rel=1e-3)
    assert lines["optimizer"] == pytest.approx(27_000 / 121_500, rel=1e-3)


def test_a_lean_block_has_a_higher_floor(benches: SimpleNamespace) -> None:
    lean = {line["metric"]: line for line in _rows(benches, "720p_51f")}
    assert lean["720p_51f GELU"]["peer"] == "floor, lean blocks"
    assert lean["720p_51f GELU"]["peer_value"] == pytest.approx(0.60 * 24 / 20, abs=0.001)
    assert lean["720p_51f norm of q and k, rotation"]["peer_value"] == pytest.approx(
        0.36 * 16 / 12, abs=0.001
    )


def test_an_image_has_no_attention_over_time_and_half_the_norms(benches: SimpleNamespace) -> None:
    shape = benches.profile.SHAPES["256_image"]
    work = benches.profile.Work(clips=1, frames=1, places=256, text_tokens=300)
    floors = benches.parts.floors(
        benches.profile.CONFIG,
        work,
        benches.parts.Rates(product=790.0, copy=4.3),
        lean=False,
        trained=1_201_595_936,
        step_tokens=shape.batch * shape.tokens,
    )
    assert floors["attention over time"] == 0
    assert floors["norm of q and k, rotation"] == pytest.approx(0.18, abs=0.001)
    # Forward and both gradients of all, as trainer.model.flops counts, but for captions and what is no block.
    whole = floors["linears"] + floors["attention in a frame and to captions"]
    counted = 3 * forward_flops(benches.profile.CONFIG, 1, 32, 32, 300) / 256 / 790e6
    assert 0.9 < whole / counted < 1


def test_the_page_is_that_of_the_kept_results(
    benches: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, now = tmp_path / "speed.md", benches.page.PAGE.read_text(encoding="utf-8")
    page.write_text(now, encoding="utf-8")
    monkeypatch.setattr(benches.page, "PAGE", page)
    benches.page.main()
    assert page.read_text(encoding="utf-8") == now, "run `python benchmarks/speed_page.py`"


def test_the_budget_of_the_page_stays_without_a_kept_profile_and_is_written_from_one(
    benches: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, results = tmp_path / "speed.md", tmp_path / "results"
    results.mkdir()
    for kept in benches.rows.RESULTS.glob("*.json"):
        if kept.name != "step_profile_h200.json":
            (results / kept.name).write_bytes(kept.read_bytes())
    page.write_bytes(benches.page.PAGE.read_bytes())
    monkeypatch.setattr(benches.page, "PAGE", page)
    monkeypatch.setattr(benches.page, "RESULTS", results)
    begin, end = benches.page.BLOCKS["budget"]
    before = page.read_text(encoding="utf-8")

    benches.page.main()
    assert page.read_text(encoding="utf-8") == before

    rates = [
        benches.rows.row(name, value, unit, peer="data sheet", peer_value=value)
        for name, value, unit in (("product", 790.0, "TFLOP/s"), ("copy", 4.3, "TB/s"))
    ]
    made = [*rates, *_rows(benches, "240p_102f"), *_rows(benches, "720p_51f")]
    (results / "step_profile_h200.json").write_text(json.dumps(made))
    benches.page.main()

    after = page.read_text(encoding="utf-8")
    assert after.partition(begin)[0] == before.partition(begin)[0]
    assert after.partition(end)[2] == before.partition(end)[2]
    block = after.partition(begin)[2].partition(end)[0]
    measured = next(line["value"] for line in made if line["metric"] == "240p_102f linears")
    assert f"| linears | {measured:.2f} | 7.92 | 6.26 GFLOP a token" in block
    assert "| 720p x 51f, lean |" in block
    assert "By hand" not in block
    benches.page.main()
    assert page.read_text(encoding="utf-8") == after


def test_the_script_shows_an_example_and_refuses_what_it_cannot_measure(
    benches: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> str | int | None:
        monkeypatch.setattr(sys, "argv", ["benchmarks/step_profile.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            benches.profile.main()
        return ended.value.code

    assert run("--help") == 0
    example = re.search(r"Example: python benchmarks/step_profile.py (.*)", capsys.readouterr().out)
    assert example is not None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused = run(*example[1].split())
    assert isinstance(refused, str)
    assert "finds none" in refused
    assert "\n" not in refused
    assert run("--shapes", "240p") == 2
    assert "'240p' is no shape; there are 144p_51f, 240p_102f" in capsys.readouterr().err
