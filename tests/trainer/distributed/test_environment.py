"""`--print-env`: each variable in force with its value, who set it and why, by real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.shards_for_tests import TINY
from trainer.cli import training_arguments
from trainer.distributed import environment
from trainer.distributed.environment_names import KNOWN, NAMES, RENAMED
from trainer.recipe import recipe as recipes
from trainer.report.preview import environment as preview_environment
from vidcurate.errors import RecipeError

ROOT = Path(__file__).resolve().parents[3]
CLEAN = {name: value for name, value in os.environ.items() if not environment.IN_QUESTION.match(name)}


def printed(*words: str, before: str = "", **variables: str) -> dict[str, dict[str, Any]]:
    """Return name → what `--print-env --json` says of it, started from a shell that first does `before`."""
    command = f"{before}\n{sys.executable} -m trainer --print-env --json {' '.join(words)}\n:"
    done = subprocess.run(
        ["sh", "-c", command], env=CLEAN | variables, cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.stdout, done.stderr
    return {each["name"]: each for each in json.loads(done.stdout)}


def test_value_and_setter_and_meaning_of_each_are_reported() -> None:
    found = printed(before="export NCCL_IB_TIMEOUT=22", NCCL_DEBUG="WARN", NCCL_BUFFSIZE="4194304")
    assert (found["NCCL_DEBUG"]["value"], found["NCCL_DEBUG"]["warning"]) == ("WARN", "")
    assert "process" in found["NCCL_DEBUG"]["set_by"]  # this test, which gave it to the shell
    assert found["NCCL_IB_TIMEOUT"]["set_by"].startswith("sh (process")
    assert found["NCCL_IB_TIMEOUT"]["meaning"] == KNOWN["NCCL_IB_TIMEOUT"].meaning
    assert found["NCCL_BUFFSIZE"]["meaning"] == "not documented here"
    assert (found["OMP_WAIT_POLICY"]["value"], found["OMP_WAIT_POLICY"]["set_by"]) == ("PASSIVE", "vidcurate")
    assert (found["CUDA_LAUNCH_BLOCKING"]["value"], found["CUDA_LAUNCH_BLOCKING"]["set_by"]) == (
        None,
        "default",
    )


def test_a_recipes_variables_are_in_force_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    recipe = [str(TINY), "--set", "'environment={NCCL_IB_TIMEOUT: \"23\", NCCL_IB_HCA: mlx5}'"]
    found = printed(*recipe, NCCL_IB_HCA="=mlx5_0")
    assert (found["NCCL_IB_TIMEOUT"]["value"], found["NCCL_IB_TIMEOUT"]["set_by"]) == ("23", "the recipe")
    assert found["NCCL_IB_HCA"]["value"] == "=mlx5_0"
    assert "the recipe says mlx5" in found["NCCL_IB_HCA"]["warning"]


def test_a_variable_that_the_user_set_by_its_older_name_is_not_set_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new, older = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
    monkeypatch.delenv(new, raising=False)
    monkeypatch.setenv(older, "max_split_size_mb:512")
    fit = recipes.load(TINY, ["parallel.recompute_blocks=fit"]).environment
    assert fit == {new: "expandable_segments:True"}

    environment.apply(fit)
    assert new not in os.environ
    monkeypatch.delenv(older)
    monkeypatch.setenv(new, "")  # so that the test's end takes it away again
    del os.environ[new]
    environment.apply(fit)
    assert os.environ[new] == "expandable_segments:True"


def test_a_recipe_sets_only_the_documented_ones() -> None:
    with pytest.raises(RecipeError, match=r"NCCL_SOKET_IFNAME is none.*did you mean NCCL_SOCKET_IFNAME"):
        recipes.load(TINY, ["environment={NCCL_SOKET_IFNAME: eth0}"])
    with pytest.raises(RecipeError, match="OMP_NUM_THREADS is none"):  # read before the recipe is
        recipes.load(TINY, ['environment={OMP_NUM_THREADS: "4"}'])


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("NCCL_SOCKET_IFNAMES", "eth0", "did you mean NCCL_SOCKET_IFNAME?"),
        ("TORCH_NCCL_ASYNC_EROR_HANDLING", "1", "did you mean TORCH_NCCL_ASYNC_ERROR_HANDLING?"),
        ("NCCL_P2P_DISABLE", "1", "unset it"),
        ("NCCL_P2P_DISABLE", "0", ""),
        ("NCCL_ALGO", "Ring", "cannot choose"),
        ("NCCL_SOCKET_IFNAME", "no-such-card0", "no such interface"),
        ("NCCL_SOCKET_IFNAME", "=lo", "other hosts cannot be reached"),
        ("NCCL_SOCKET_IFNAME", "^docker", ""),
        ("NCCL_ASYNC_ERROR_HANDLING", "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING now"),
        ("NCCL_ASYNC_ERROR_HANDLING", "0", "waits for ever"),
        ("CUDA_VISIBLE_DEVICES", "", "hides every GPU"),
        ("CUDA_VISIBLE_DEVICES", "0,1", ""),
        ("OMP_NUM_THREADS", "100000", "more threads than"),
        ("NCCL_SOMETHING_OF_A_LATER_VERSION", "1", ""),
        ("NCCL_MIN_NCHANNELS", "4", ""),  # near NCCL_MAX_NCHANNELS, and a name of its own
    ],
)
def test_what_is_odd_is_warned_of_and_nothing_else(name: str, value: str, word: str) -> None:
    found = environment.warning(name, value)
    assert (word in found) if word else found == ""


def test_nccls_own_file_is_read_and_the_environment_goes_before_it(tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("# of the site\nNCCL_DEBUG=INFO\nNCCL_IB_HCA=mlx5\n")
    found = printed(NCCL_CONF_FILE=str(conf), NCCL_DEBUG="WARN")
    assert (found["NCCL_IB_HCA"]["value"], found["NCCL_IB_HCA"]["set_by"]) == ("mlx5", str(conf))
    assert found["NCCL_DEBUG"]["value"] == "WARN"


def test_the_words_name_what_is_odd_and_the_example_of_the_help_is_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "TRACE")
    assert preview_environment.main([]) == 0
    text = capsys.readouterr().out
    assert "NCCL_DEBUG=TRACE" in text
    assert "warning: NCCL_DEBUG: fills the logs" in text
    assert "not set, so the default applies:" in text
    with pytest.raises(SystemExit):
        preview_environment.main(["--help"])
    assert "python -m trainer --print-env recipes/first-steps.yaml --json" in capsys.readouterr().out
    assert "--print-env" in training_arguments.parser().format_help()
    assert preview_environment.main(["--set", "seed=1"]) == 2


def test_the_documented_set_is_on_the_page() -> None:
    page = (ROOT / "docs" / "preflight.md").read_text(encoding="utf-8")
    for name, known in KNOWN.items():
        star = " *" if known.is_offered else ""
        assert f"| `{name}`{star} | {known.meaning} | {known.default} |" in page
        assert name in NAMES
    assert set(RENAMED.values()) <= NAMES
