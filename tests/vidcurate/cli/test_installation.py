"""`vidcurate recipes` and `vidcurate version`."""

import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from vidcurate.cli import installation
from vidcurate.errors import InputError

RECIPES = Path(__file__).resolve().parents[3] / "recipes"


def names(folder: Path) -> set[str]:
    """Return the names of the files of a folder; a __pycache__ beside recipes is none."""
    return {path.name for path in folder.iterdir() if path.is_file()}


def test_all_recipes_are_copied_byte_for_byte(tmp_path: Path) -> None:
    found = installation.copy_recipes([], tmp_path / "recipes")

    assert names(tmp_path / "recipes") == names(RECIPES)
    for name in names(RECIPES):
        assert (tmp_path / "recipes" / name).read_bytes() == (RECIPES / name).read_bytes()
    assert len(found["written"]) == len(names(RECIPES))
    again = installation.copy_recipes([], tmp_path / "recipes")
    assert (again["written"], again["unchanged"]) == ([], found["written"])


@pytest.mark.parametrize("name", ["smoke", "smoke.yaml"])
def test_a_recipe_is_copied_with_its_schema(tmp_path: Path, name: str) -> None:
    installation.copy_recipes([name], tmp_path)
    assert names(tmp_path) == {"smoke.yaml", "train.schema.json"}


def test_a_changed_file_is_replaced_only_by_force(tmp_path: Path) -> None:
    (tmp_path / "smoke.yaml").write_text("mine")
    with pytest.raises(InputError, match=r"smoke.yaml: exists with other contents; nothing was copied"):
        installation.copy_recipes([], tmp_path)
    assert names(tmp_path) == {"smoke.yaml"}
    assert (tmp_path / "smoke.yaml").read_text() == "mine"

    installation.copy_recipes([], tmp_path, force=True)
    assert (tmp_path / "smoke.yaml").read_bytes() == (RECIPES / "smoke.yaml").read_bytes()


def test_an_unknown_recipe_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"smok: unknown recipe\. Recipes: curate-demo, .*smoke, speedrun"):
        installation.copy_recipes(["smok"], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_list_has_every_recipe_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    installation.recipes("list", to_json=True)
    listed = json.loads(capsys.readouterr().out)["recipes"]
    assert [row["recipe"] for row in listed] == sorted(n for n in names(RECIPES) if not n.endswith(".json"))
    assert all(len(row["about"]) > 20 and "\n" not in row["about"] for row in listed)


@pytest.mark.parametrize("words", [("show", None), ("list", ["smoke"])])
def test_another_action_is_refused(words: tuple[str, list[str] | None]) -> None:
    with pytest.raises(InputError, match="use `list`, or `copy NAME…`"):
        installation.recipes(*words)


def test_versions_name_packages_libraries_and_decoders(run_python: Callable[[str], str]) -> None:
    printed = run_python(
        "import sys\nfrom vidcurate.cli.main import main\n"
        "try:\n    main(['version', '--json'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'polars', 'pyarrow') if name in sys.modules])"
    ).splitlines()
    found = json.loads(printed[0])
    assert printed[1] == "[]"
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["packages"]["polars"] == metadata.version("polars")
    assert set(found["packages"]) == {"av", "polars", "pyarrow", "torch"}
    assert {"libavcodec", "libavformat"} <= set(found["ffmpeg"])
    assert found["decoders"]["h264"] == ["h264"]
    assert set(found["decoders"]) == {"h264", "hevc", "vp9", "av1"}


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert installation._installed("no-such-package") is None
