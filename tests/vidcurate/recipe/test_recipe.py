from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from vidcurate.errors import RecipeError
from vidcurate.recipe import recipe
from vidcurate.recipe.recipe import Recipe


class Model(Recipe):
    depth: int = 2
    lr: float = 0.1


class Stage(Recipe):
    name: str
    sizes: Mapping[str, tuple[float, int]] = {}


class Whole(Recipe):
    model: Model = Model()
    output: Path | None = None
    stages: tuple[Stage, ...] = ()
    verbose: bool = False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model:\n  depht: 4\n", "r.yaml:2: model.depht is not a setting. Did you mean model.depth?"),
        ("modle: {}\n", "r.yaml:1: modle is not a setting. Did you mean model?"),
        ("model:\n  depth: '4'\n", 'r.yaml:2: model.depth is "4": input should be a valid integer.'),
        ("model:\n  depth: 4.5\n", "r.yaml:2: model.depth is 4.5:"),
        ("model:\n  lr: 1e-4x\n", "r.yaml:2: model.lr is"),
        ("model:\n  lr: 1e400\n", "r.yaml:2: model.lr is Infinity: input should be a finite number"),
        ("verbose: yes\n", 'r.yaml:1: verbose is "yes"'),  # YAML 1.1 would call it true
        ("stages:\n  - name: a\n  - nme: b\n", "r.yaml:3: stages.1.nme is not a setting."),
        ("stages:\n  - sizes: {}\n", "r.yaml:2: stages.0.name is missing and has no default"),
        ("model: {depth: 1}\nmodel: {depth: 2}\n", "r.yaml:2: model is given twice (first on line 1)"),
        ("model: [\n", "r.yaml:2: not YAML:"),
        ("- a\n- b\n", "r.yaml: a recipe is a mapping of settings, not a list."),
        ("stages:\n  - name: a\n    sizes: {51: [1, 0.5]}\n", "r.yaml:3: stages.0.sizes.51.1 is 0.5"),
    ],
)
def test_a_wrong_recipe_is_one_line_that_names_file_line_and_key(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe.parse(text, Whole, where="r.yaml")

    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_numbers_follow_yaml_1_2() -> None:
    read = recipe.parse("model: {lr: 1e-4, depth: 010}\nstages: [{name: on, sizes: {51: [1, 3]}}]", Whole)

    assert read.model.lr == 1e-4
    assert read.stages[0].name == "on"
    assert read.stages[0].sizes == {"51": (1.0, 3)}


def test_set_goes_through_the_same_strict_door() -> None:
    text = "stages: [{name: a}]"

    read = recipe.parse(text, Whole, settings=["model.depth=7", "stages.0.name=b", "output=out"])

    assert (read.model.depth, read.stages[0].name, read.output) == (7, "b", Path("out"))
    for setting in ("model.dept=7", "model.depth=x", "model.depth", "stages.3.name=c", "=3"):
        with pytest.raises(RecipeError):
            recipe.parse(text, Whole, settings=[setting])


def test_a_recipe_that_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"none\.yaml: no such recipe file"):
        recipe.load(tmp_path / "none.yaml", Whole)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match=r"binary\.yaml: the recipe cannot be read"):
        recipe.load(tmp_path / "binary.yaml", Whole)


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r": a folder, and a recipe's file is needed; a run keeps its own"):
        recipe.load(tmp_path, Whole)


def test_a_recipe_cannot_be_changed_after_it_was_read() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Model().depth = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model": {"depht": 4}}', "r.json: model.depht is not a setting. Did you mean model.depth?"),
        ('{\n"model": }', "r.json:2: not JSON: Expecting value."),
        ('{"model": {"depth": 1, "depth": 2}}', "r.json: depth is given twice; keep one."),
        ('{"model": {"lr": NaN}}', "r.json: NaN is no number of JSON."),
        ("[1]", "r.json: a recipe is a mapping of settings, not a list."),
    ],
)
def test_a_recipe_in_json_is_as_strict(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        recipe.load(path, Whole)
    assert str(caught.value).removeprefix(f"{tmp_path}/") == message


def test_json_and_settings_are_read_alike_where_there_is_no_yaml(run_python: Callable[[str], str]) -> None:
    text = '{"model": {"lr": 1e-4}, "stages": [{"name": "a"}]}'
    settings = ["output=runs/a", "model.depth=7", "stages.0.name=on", "verbose=true"]
    code = (
        "import sys; sys.modules['yaml'] = None\n"
        "sys.path.insert(0, '.')\n"
        "from tests.vidcurate.recipe.test_recipe import Whole\n"
        "from vidcurate import errors\n"
        "from vidcurate.recipe import recipe\n"
        f"print(recipe.parse({text!r}, Whole, where='r.json', settings={settings!r}).model_dump_json())\n"
        "for text, where, setting in [('a: 1', 'r.yaml', []), ('{}', 'r.json', ['model={depth: 3}'])]:\n"
        "    try: recipe.parse(text, Whole, where=where, settings=setting)\n"
        "    except errors.RecipeError as error: print(error)\n"
    )
    with_yaml = recipe.parse(text, Whole, where="r.json", settings=settings)
    without, no_reader, no_value = run_python(code).splitlines()
    assert without == with_yaml.model_dump_json()
    assert no_reader == "r.yaml: PyYAML is not installed here; give the recipe as .json."
    assert no_value.startswith("--set model={depth: 3}: cannot be applied (PyYAML is not installed here")
    assert recipe.parse("{}", Whole, where="r.json", settings=["model={depth: 3}"]).model.depth == 3


class Square(Recipe):
    kind: Literal["square"] = "square"
    height: int = 1


class Circle(Recipe):
    kind: Literal["circle"] = "circle"
    radius: int = 1


class Drawing(Recipe):
    shape: Annotated[Square | Circle, Field(discriminator="kind")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "shape:\n  kind: circle\n  radus: 2\n",
            "r.yaml:3: shape.radus is not a setting. Did you mean shape.radius?",
        ),
        (
            "shape:\n  kind: circle\n  height: 2\n",
            "r.yaml:3: shape.height is not a setting; the settings here are kind, radius.",
        ),
        ("shape:\n  kind: circle\n  radius: x\n", 'r.yaml:3: shape.radius is "x": input should be'),
    ],
)
def test_a_message_names_the_key_as_the_file_has_it_whatever_kind_it_belongs_to(
    text: str, message: str
) -> None:
    with pytest.raises(RecipeError) as error:
        recipe.parse(text, Drawing, where="r.yaml")
    assert str(error.value).startswith(message)


class Captions(Recipe):
    names: Annotated[tuple[str, ...], Field(min_length=1)] | dict[str, Annotated[float, Field(gt=0)]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("names: {short: 0}", "r:1: names.short is 0: input should be greater than 0."),
        ("names: {short: x}", 'r:1: names.short is "x": input should be a valid number.'),
        ("names: [3]", "r:1: names.0 is 3: input should be a valid string."),
        ("names: []", "r:1: names is []: "),
        ("names: 3", "r:1: names is 3: "),
    ],
)
def test_a_union_names_the_value_and_never_its_own_members(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe.parse(text, Captions, where="r")
    assert str(caught.value).startswith(message)
    assert "tuple[" not in str(caught.value)


def test_a_set_value_is_not_blamed_on_the_line_that_it_replaces() -> None:
    text = "verbose: false\nmodel:\n  lr: 1.0\n  depth: 3\n"
    with pytest.raises(RecipeError) as error:
        recipe.parse(text, Whole, where="r.yaml", settings=["model={depth: x}"])
    assert str(error.value).startswith('--set model={depth: x}: model.depth is "x"')
