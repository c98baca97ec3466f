"""Whole steps are timed with each form's blocks and captions, and the kept file holds what ran."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

BENCHMARK = "train_step"  # the module that the fixture `bench` imports
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # of torch's own compiler


class NoMeter:
    """Power and clock of no GPU."""

    sm_mhz, watts, most_mhz, most_watts = 1500.0, 690.0, 1980.0, 700.0

    def __enter__(self) -> "NoMeter":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def steps(bench: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the GPU: return the batches of each step, and whether its blocks are of float8."""
    seen: list[Any] = []

    def timed_step(model: Any, _: Any, batches: list[dict[str, Any]]) -> tuple[float, float, float]:
        seen.append((model.float8, batches))
        return 100.0, 200.0, 1.0

    def apply(model: Any, *, float8: bool) -> None:
        model.float8 = float8

    memory = {"empty_cache": None, "reset_peak_memory_stats": None, "max_memory_allocated": 2**30}
    for name, value in memory.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    made = SimpleNamespace(train=lambda: None, spatial_blocks=[], temporal_blocks=[])
    monkeypatch.setattr(bench, "build", lambda: made)
    monkeypatch.setattr(bench, "Masters", lambda _: None)
    monkeypatch.setattr(bench, "inputs", lambda _, count: {"x": torch.zeros(count, 1)})
    monkeypatch.setattr(bench, "apply_fused_blocks", apply)
    monkeypatch.setattr(bench, "timed_step", timed_step)
    monkeypatch.setattr(bench, "Meter", NoMeter)
    monkeypatch.setattr(bench, "ceiling_tflops", lambda: 800.0)
    monkeypatch.setattr(bench, "sustained", lambda: (700.0, NoMeter()))
    return seen


@pytest.mark.parametrize("form", ["packed", "float8_packed", "padded"])
def test_each_micro_batch_has_the_captions_of_its_own_clips(bench: Any, steps: list[Any], form: str) -> None:
    shape = bench.SHAPES["240p_102f"]

    bench.measure(shape, form, steps=1, warm_up=1)

    (float8, batches), _ = steps
    assert float8 == form.startswith("float8")
    masks = [batch["mask"].sum(1).tolist() for batch in batches]
    assert [len(mask) for mask in masks] == [5, 5]
    assert [length for mask in masks for length in mask] == bench.caption_lengths(10)
    if form == "padded":
        assert not any("text_lengths" in batch for batch in batches)
    else:
        assert [batch["text_lengths"] for batch in batches] == masks


def test_forms_of_one_call_are_merged_into_the_kept_file(
    bench: Any,
    steps: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "kept.json"
    path.write_text(json.dumps([{"metric": "256_image_tokens_per_s", "peer": "plain eager (ours is fast)"}]))
    words = ["--shapes", "144p_51f,720p_51f", "--forms", "fast,packed,float8,float8_packed", "--steps", "2"]
    monkeypatch.setattr(sys, "argv", ["train_step.py", *words, "--merge", "--out", str(path.with_suffix(""))])

    bench.main()

    kept = {row["metric"]: row for row in json.loads(path.read_text())}
    assert next(iter(kept)) == "256_image_tokens_per_s"
    for shape in ("144p_51f", "720p_51f"):
        assert {
            f"{shape}_{form}_backward_ms" for form in ("packed", "float8", "float8_packed")
        } <= kept.keys()
    assert len(steps) == 2 * ((2 + 2) + (2 + 2) + (1 + 2) + (1 + 2))  # warm-up and timed
    assert "s before, " in capsys.readouterr().out
