"""From latent shards to a checkpoint with torch, numpy, pyarrow and pydantic installed, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.shards_for_tests import make_shards, numbers, smoke
from trainer.data.latents.precompute import encode_ahead, request_of
from trainer.recipe import recipe as recipes
from trainer.run_folder.checkpoint import checkpoint, checksum
from trainer.train import train

ROOT = Path(__file__).resolve().parents[4]
TRAINED = ("stages.0.steps=3", "stages.0.checkpoint_every=2", "stages.0.data.views=1", "sample=null")
# Every installed package is as if it were not there, but these and what they themselves require.
ONLY = """
import gc, re, sys
from importlib import metadata

gc.disable()  # torch and what it loads stay

kept, open_ = set(), ["torch", "numpy", "pyarrow", "pydantic"]
while open_:
    name = re.sub(r"[-_.]+", "-", open_.pop()).lower()
    if name in kept:
        continue
    kept.add(name)
    try:
        needs = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        continue
    open_ += [re.match(r"[A-Za-z0-9._-]+", need)[0] for need in needs if "extra ==" not in need]
ours = {"vidcurate", "trainer"}
blocked = {
    module
    for module, owners in metadata.packages_distributions().items()
    if not {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners} & (kept | ours)
}
assert {"polars", "av", "yaml", "safetensors", "typer", "rich", "joblib", "webdataset"} <= blocked, blocked
assert not {"torch", "numpy", "pyarrow", "pydantic"} & blocked


class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in blocked else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)


sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
for name in [name for name in sys.modules if name.split(".")[0] in blocked]:
    del sys.modules[name]

if sys.argv[1].endswith(".py"):
    import runpy
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
    code = 0
else:
    from trainer.__main__ import main
    code = main(sys.argv[1:])
assert not [name for name in sys.modules if name.split(".")[0] in blocked]
sys.exit(code)
"""


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", ONLY, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=600
    )


def test_training_on_latents_needs_torch_numpy_pyarrow_and_pydantic_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    shards = make_shards(tmp_path / "shards", num_clips=6)
    encode_ahead(request_of(smoke(shards, tmp_path / "line", *TRAINED)), tmp_path / "latents")
    train(smoke(shards, tmp_path / "line", *TRAINED))
    ahead = smoke(shards, tmp_path / "ahead", *TRAINED, f"stages.0.data.latents={tmp_path / 'latents'}")
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(recipes.to_json(ahead)))
    shards.rename(tmp_path / "elsewhere")  # the clips are not there

    begun = run(str(recipe), "--set", "stages.0.steps=2")
    resumed = run(str(recipe), "--json")

    assert begun.returncode == 0, begun.stderr
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["step"] == 3
    assert [line["loss"] for line in numbers(tmp_path / "ahead")] == [
        line["loss"] for line in numbers(tmp_path / "line")
    ]
    parts = [checkpoint.load(tmp_path / name).parts for name in ("line", "ahead")]
    for part in parts[0]:
        assert checksum.checksum(parts[0][part]) == checksum.checksum(parts[1][part])


def test_made_up_latents_need_no_more_and_train_in_mixed_buckets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    table = "stages.0.data.buckets.table={32px: {8: [1.0, 2], 16: [1.0, 2], 1: [1.0, 4]}}"
    recipe = smoke(tmp_path / "none", tmp_path / "run", *TRAINED, table)
    (tmp_path / "recipe.json").write_text(json.dumps(recipes.to_json(recipe)))

    made = run(
        "benchmarks/make_latents.py",
        str(tmp_path / "out"),
        "--clips",
        "12",
        "--recipe",
        str(tmp_path / "recipe.json"),
    )

    assert made.returncode == 0, made.stderr
    assert made.stdout.count(" 4 clips, ") == 3
    outcome = train(recipes.load(tmp_path / "out" / "recipe.json"))
    assert outcome.step == 3
    buckets = {name for line in numbers(tmp_path / "run") for name in line["loss_by_bucket"]}
    assert len(buckets) >= 2
