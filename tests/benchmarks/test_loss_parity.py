"""The benchmark of loss parity gives each run a GPU that it was given itself."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.parametrize(("named", "expected"), [("1", ["1"]), ("2,5", ["2", "5"])])
def test_a_run_takes_a_gpu_by_the_name_that_the_benchmark_was_given(
    monkeypatch: pytest.MonkeyPatch, named: str, expected: list[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    import loss_parity

    assert loss_parity.visible_gpus() == expected
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert loss_parity.visible_gpus() == ["0", "1", "2"]
