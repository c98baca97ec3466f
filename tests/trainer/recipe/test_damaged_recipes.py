"""A recipe with damaged bytes, or with values of another kind, is refused in one line or is a recipe."""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.shards_for_tests import make_shards
from trainer.__main__ import main
from trainer.recipe import recipe as recipes
from vidcurate.errors import VidcurateError

RECIPES = Path(__file__).resolve().parents[3] / "recipes"
NUMBER_OF_CASES = 120
TOKENS = (
    *(
        b"&a ",
        b"*a",
        b"<<: ",
        b"!!python/object:os.system ",
        b"!!binary ",
        b"!!set ",
        b"!!int ",
        b"? ",
        b"| ",
    ),
    *(b"{", b"}", b"[", b"]", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"1e999", b".nan", b"0o17", b"12:30:45"),
    *(b"2024-13-45", b"~", b"\t", b"\r", b"---\n", b"%YAML 9.9\n", b"9" * 5000, b"\x85", b"\xe2\x80\xa8"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 3, 10**30, 10**400, 1e308, 1e-300, "", "x", "/dev/null", "\ud800", "\x1b[31m"),
    *("a\0b", [], {}, [[]], [None], [1, 2], [0, 0], {"a": {"b": [1]}}, "1e5", 1 << 40, -0.5, "nan"),
)


def damage(data: bytes, random_: random.Random) -> bytes:
    """Return `data` with one to three bits turned, parts cut or copied, or words of YAML put in."""
    made = bytearray(data)
    for _ in range(random_.randint(1, 3)):
        first = random_.randrange(len(made) or 1)
        last = first + random_.randrange(60)
        match random_.randrange(5):
            case 0 if made:
                made[first] ^= 1 << random_.randrange(8)
            case 1:
                del made[first:last]
            case 2:
                made[first:first] = made[random_.randrange(len(made) or 1) :][: random_.randrange(80)]
            case 3:
                del made[first:]
            case _:
                made[first:first] = random_.choice(TOKENS)
    return bytes(made)


@pytest.mark.parametrize("name", ["speedrun.yaml", "speedrun-fast.yaml", "smoke.yaml"])
def test_a_recipe_with_damaged_bytes_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    random_ = random.Random(name)
    source = tmp_path / "recipe.yaml"
    refusals = []
    for _ in range(NUMBER_OF_CASES):
        source.write_bytes(damage((RECIPES / name).read_bytes(), random_))
        try:
            recipes.load(source, [])
        except VidcurateError as error:
            refusals.append(str(error))
    assert [text for text in refusals if "recipe.yaml" not in text or "\n" in text] == []
    assert (
        len(refusals) > NUMBER_OF_CASES // 2
    )  # what is left out or in a comment may change and still be a recipe


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value below `node`."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def test_values_of_another_kind_end_a_dry_run_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = make_shards(tmp_path / "shards")
    settings = [f"stages.0.data.shards={shards}", f"output={tmp_path / 'run'}"]
    whole = recipes.load(Path(__file__).resolve().parents[2] / "tiny.yaml", settings)
    source = tmp_path / "recipe.json"
    random_ = random.Random(0)
    for _ in range(2 * NUMBER_OF_CASES):
        forged = json.loads(whole.model_dump_json())
        *path, last = random_.choice(list(places(forged)))
        place = forged
        for key in path:
            place = place[key]
        place[last] = copy.deepcopy(random_.choice(VALUES))
        source.write_text(json.dumps(forged))
        code = main([str(source), "--dry-run"])
        said = capsys.readouterr().err
        assert code in (0, 2), said
        assert code == 0 or len(said.splitlines()) == 1, said
    assert not (tmp_path / "run").exists()
