"""A recipe made to harm is one line at once, in a file and in --set; an error names its option."""

import time
from typing import Self

import pytest
from pydantic import Field, model_validator

from vidcurate.errors import RecipeError
from vidcurate.recipe import recipe
from vidcurate.recipe.recipe import Recipe


class Inner(Recipe):
    low: int = 0
    high: int = 1
    names: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low is {self.low} and high is {self.high}; low must not be above high")
        return self


class Whole(Recipe):
    depth: int = 1
    inner: Inner = Inner()
    sizes: dict[str, dict[str, tuple[float, int | tuple[int, int]]]] = Field(default_factory=dict)


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
MERGES = "a0: &a0 {k: v}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 12)
)
HOSTILE = {
    "alias bomb": BOMB,
    "bomb of merges": MERGES,
    "self in a list": "depth: &a [*a]\n",
    "self in a mapping": "inner: &a {low: *a}\n",
    "self in a merge": "inner: &a {<<: *a}\n",
    "5,000 brackets": "depth: " + "[" * 5000 + "]" * 5000,
    "5,000 braces": "depth: " + "{a: " * 5000 + "1" + "}" * 5000,
    "5,000 open brackets": "depth: " + "[" * 5000,
    "60 levels": "depth: " + "[" * 60 + "]" * 60,
    "integer of 5,000 digits": "depth: " + "9" * 5000,
    "hexadecimal integer": "depth: 0x" + "f" * 50_000,
    "octal integer": "depth: 0" + "7" * 50_000,
    "sexagesimal integer": "depth: 1" + ":59" * 5000,
    "sexagesimal integer of 1 MB": "depth: 1" + ":1" * 500_000,
    "tagged sexagesimal integer of 1 MB": 'depth: !!int "1' + ":1" * 500_000 + '"',
    "long word 5,000 times": "inner: {names: [&a " + "x" * 100_000 + ", *a" * 5000 + "]}",
    "list as a key twice": "? [a]\n: 1\n? [a]\n: 2\n",
    "half of a character": 'inner: {names: ["\\ud800"]}',
    "NUL in a word": 'inner: {names: ["a\\0b"]}',
    "float without end": "depth: 1e999999999",
    "empty integer": 'depth: !!int ""',
    "object": "depth: !!python/object/apply:os.system [true]",
    "timestamp": "depth: !!timestamp 99",
    "bytes": "inner: {names: [!!binary aGVsbG8=]}",
    "set": "inner: !!set {a}",
    "mapping as a key": "? {a: b}\n: 1\n",
    "key of lists": "? [a, [b]]\n: 1\n",
    "NUL": "depth: \x00",
    "too long": "# " + "x" * (1 << 21),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_recipe_is_one_short_line_at_once(text: str) -> None:
    began = time.process_time()

    with pytest.raises(RecipeError) as caught:
        recipe.parse(text, Whole, where="r.yaml")

    assert time.process_time() - began < 2
    assert str(caught.value).startswith("r.yaml")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("pair", ["[]", "{}"])
def test_a_hostile_json_recipe_is_one_short_line(pair: str) -> None:
    opening = pair[0] if pair == "[]" else '{"a": '
    text = '{"depth": ' + opening * 5000 + "1" + pair[1] * 5000 + "}"
    with pytest.raises(RecipeError, match=r"^r\.json: is nested too deep\.$"):
        recipe.parse(text, Whole, where="r.json")


@pytest.mark.parametrize(
    "value",
    [
        "[" * 5000,
        "[" * 5000 + "]" * 5000,
        "9" * 5000,
        "&a [*a]",
        "{a: " * 2000,
        '!!int ""',
        "[1e",
        '"\\ud800"',
        '"\\u0000"',
    ],
)
def test_a_hostile_set_is_one_short_line(value: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe.parse("", Whole, where="r.yaml", settings=[f"depth={value}"])

    assert str(caught.value).startswith("--set depth=")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "name", ["²", "9" * 5000, "depth.low", "depth.low.0", "inner.names.²", "inner.low.0.a", ".", "inner."]
)
def test_a_set_of_a_place_that_cannot_be_is_one_short_line(name: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe.parse("depth: 1\ninner: {low: 1, names: [a]}\n", Whole, where="r.yaml", settings=[f"{name}=1"])

    assert str(caught.value).startswith(("--set ", "r.yaml"))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("text", "wanted"), [("010", 10), ("0o17", 15), ("0x1F", 31), ("+3", 3), ("-0", 0), ("!!int 7", 7)]
)
def test_integers_are_those_of_yaml_1_2(text: str, wanted: int) -> None:
    assert recipe.parse(f"depth: {text}", Whole).depth == wanted


@pytest.mark.parametrize("text", ["1:30", "1_000", "0b11"])
def test_what_is_an_integer_in_yaml_1_1_alone_is_a_word(text: str) -> None:
    with pytest.raises(RecipeError, match="valid integer"):
        recipe.parse(f"depth: {text}", Whole)


@pytest.mark.parametrize("text", ["[" * 5000 + "]" * 5000, '{"depth": ' + "9" * 5000 + "}"])
def test_a_hostile_json_recipe_is_one_line(text: str) -> None:
    with pytest.raises(RecipeError, match=r"^r\.json"):
        recipe.parse(text, Whole, where="r.json")


def test_aliases_of_a_sane_size_are_read() -> None:
    read = recipe.parse("inner: &a {low: 1, high: 2}\n", Whole)
    assert read.inner.high == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["depth=x"], '--set depth=x: depth is "x": input should be a valid integer.'),
        (["dept=3"], "--set dept=3: dept is not a setting. Did you mean depth?"),
        (["inner.lo=3"], "--set inner.lo=3: inner.lo is not a setting. Did you mean inner.low?"),
        (["inner={low: x}"], '--set inner={low: x}: inner.low is "x"'),
        (["depth=1", "depth=y"], '--set depth=y: depth is "y"'),
        (["inner.low=9"], "r.yaml:2: inner: low is 9 and high is 2; low must not be above high (with --set "),
        ([], 'r.yaml:1: depth is "file"'),
        (["sizes.64px.8=[1, x]"], '--set sizes.64px.8=[1, x]: sizes.64px.8.1 is "x": '),
        (
            ["sizes.64px.0.56=[1, x]"],
            '--set sizes.64px.0.56=[1, x]: sizes.64px.0.56.1 is "x": ',
        ),
        (["sizes.64px.0.57=[1, 2]"], "--set sizes.64px.0.57=[1, 2]: sizes.64px.0 is "),
        (["iner.low=3"], "--set iner.low=3: iner is not a setting. Did you mean inner?"),
        (["depth.x=3"], "--set depth.x=3: depth is a value, and has no settings inside."),
        (["inner.names.0=a"], "--set inner.names.0=a: inner.names has 0, counted from 0."),
        ([f"inner.names.{'9' * 5000}=a"], "--set inner.names.999"),
    ],
)
def test_an_error_of_a_set_names_the_option_and_not_a_line(settings: list[str], said: str) -> None:
    sizes = "{64px: {8: [1.0, 1], 0.56: [1.0, 1]}}"
    text = f"depth: 2\ninner: {{high: 2, names: []}}\nsizes: {sizes}\n" if settings else "depth: file\n"
    with pytest.raises(RecipeError) as caught:
        recipe.parse(text, Whole, where="r.yaml", settings=settings)

    assert str(caught.value).startswith(said)


def test_a_set_reaches_a_key_with_a_dot() -> None:
    text = "sizes: {64px: {0.56: [1.0, 1]}}"

    read = recipe.parse(text, Whole, settings=["sizes.64px.0.56=[0.5, 2]", "sizes.64px.8=[1, 3]"])

    assert read.sizes == {"64px": {"0.56": (0.5, 2), "8": (1, 3)}}


def test_an_error_of_several_keys_names_them_and_shows_no_json() -> None:
    with pytest.raises(RecipeError) as caught:
        recipe.parse("depth: 2\ninner:\n  low: 5\n", Whole, where="r.yaml")

    assert str(caught.value) == "r.yaml:2: inner: low is 5 and high is 1; low must not be above high."
