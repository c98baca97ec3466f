"""What decode workers, monitors and reports import loads nothing heavy; vidcurate does not know trainer."""

import ast

import pytest

from tests.test_rooms import modules

# These start in decode workers and on GPU machines: nothing heavy when they are imported.
LIGHT = [
    "errors",
    "loader.loader",
    "recipe.recipe",
    "sampler.buckets",
    "sampler.order",
    "shards.index",
]


def test_vidcurate_does_not_know_trainer_and_only_loader_and_model_scores_know_torch() -> None:
    for module, path in modules().items():
        if not module.startswith("vidcurate"):
            continue
        tops = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            for name in (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
        }
        assert "trainer" not in tops, path
        light = path.stem in ("__init__", "stage", "frames", "spec")
        may_know = module.startswith("vidcurate.curation.model_scores") and not light
        assert "torch" not in tops or module == "vidcurate.loader.torch" or may_know, path


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_load_nothing_heavy(module: str, run_python) -> None:  # type: ignore[no-untyped-def]
    heavy = run_python(
        f"import sys, vidcurate.{module}; "
        "heavy = ('polars', 'av', 'torch', 'joblib', 'spacy', 'obstore'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    assert heavy.strip() == "[]"


def test_what_reads_a_run_from_outside_loads_no_torch(run_python) -> None:  # type: ignore[no-untyped-def]
    loaded = run_python(
        "import sys, trainer.cluster.command, trainer.cluster.launch.command, "
        "trainer.cluster.launch.launch_agent, trainer.cluster.launch.supervisor, trainer.cluster.node.agent, "
        "trainer.report.balance, "
        "trainer.report.page, trainer.report.read; "
        "print([name for name in ('torch', 'pyarrow', 'polars', 'av') if name in sys.modules])"
    )
    assert loaded.strip() == "[]"
