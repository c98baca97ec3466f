"""docs/latents.md: its tables are those of the code."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.trainer.shards_for_tests import make_shards, smoke
from trainer.data.latents import command as latents_command
from trainer.data.latents.folder import LATENT_COLUMNS, TEXT_COLUMNS
from trainer.data.latents.manifest import read_manifest
from trainer.data.latents.precompute import encode_ahead, request_of
from vidcurate import rng
from vidcurate.loader import clip_view

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "latents.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("heading", "columns"), [("### latents.parquet", LATENT_COLUMNS), ("### texts.parquet", TEXT_COLUMNS)]
)
def test_its_columns_are_those_of_the_tables(heading: str, columns: dict[str, tuple[Any, str]]) -> None:
    section = PAGE[PAGE.index(heading) + 4 :]
    section = section[: section.index("\n###")]
    shown = re.findall(r"^\| `(\w+)` \| ([\w ]+) \| (.*) \|$", section, flags=re.M)
    expected = []
    for name, (dtype, meaning) in columns.items():
        plain = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
        kind = "16 bytes" if pa.types.is_fixed_size_binary(plain) else str(plain)
        expected.append((name, kind, meaning))
    assert shown == expected


def test_its_keys_are_those_of_the_manifest_and_its_flags_those_of_the_command(tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "shards", num_clips=4)
    recipe = smoke(shards, tmp_path / "run", "stages.0.data.views=1")
    encode_ahead(request_of(recipe), tmp_path / "latents")
    manifest = read_manifest(tmp_path / "latents")
    assert manifest is not None
    section = PAGE[PAGE.index("### manifest.json") :]
    for name in [*manifest, *manifest["totals"]]:
        assert f"`{name}`" in section, name
    flags = {
        action.option_strings[0]
        for action in latents_command._parser()._actions
        if action.option_strings and action.option_strings[0] not in ("-h", "--traceback")
    }
    assert set(re.findall(r"^\| `(--[\w-]+)", PAGE, flags=re.M)) == flags


def test_its_formula_is_that_of_the_views() -> None:
    for clip_id in ("a", "b/c", "ünï"):
        for view in range(6):
            turned = rng.key("view", clip_id) / 2**64 + view * (5**0.5 - 1) / 2
            assert clip_view.first_frame(clip_id, view, 1000) == int(1000 * (turned % 1))
