"""What is wrong with a folder of latents, or with a wish for one, has a name."""

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.data.latents.made import (
    ROOT,
    TRAINED,
    encode,
    from_latents,
)
from tests.trainer.shards_for_tests import SMOKE, make_shards, smoke
from tests.trainer.test_main import help_of
from trainer import __main__ as trainer_command
from trainer.data import model_inputs, open_stage
from trainer.data import stages as data_stages
from trainer.data.latents import command as latents_command
from trainer.data.latents.folder import open_folder
from trainer.data.latents.precompute import request_of
from trainer.report.preview import dry_run
from trainer.train import train
from vidcurate.errors import InputError, MissingError, RecipeError, ShardError, VidcurateError


@pytest.fixture
def broken(latents: Path, tmp_path: Path) -> Path:
    return shutil.copytree(latents, tmp_path / "broken")


def a_row(folder: Path, view: int = 0) -> dict[str, Any]:
    return next(row for row in open_folder(folder).latents.to_pylist() if row["view"] == view)


def test_an_altered_byte_names_shard_and_clip(shards: Path, broken: Path, tmp_path: Path) -> None:
    row = a_row(broken)
    path = broken / row["shard"]
    content = bytearray(path.read_bytes())
    content[row["offset"] + 77] ^= 1
    path.write_bytes(content)

    said = re.escape(f"{path}: clip {row['clip_id']!r} has CRC-32 ")
    with pytest.raises(ShardError, match=f"{said}.* the table says {row['crc32']:08x}"):
        train(smoke(shards, tmp_path / "run", *TRAINED, *from_latents(broken)))


def test_a_shard_cut_while_it_is_read_names_shard_and_clip(
    shards: Path, broken: Path, tmp_path: Path
) -> None:
    recipe = smoke(shards, tmp_path / "run", *TRAINED, *from_latents(broken))
    (stage,) = data_stages.open_stages(recipe)
    for path in broken.glob("8f-*.tar"):
        os.truncate(path, 600)
    with (
        open_stage.open_loader(
            stage, recipe.loader, recipe.video_encoder, rank=0, world_size=1, on_event=pytest.fail
        ) as loader,
        pytest.raises(
            ShardError, match=r"8f-.*\.tar: ends \d+ bytes before clip 'clip-\d+' does\. Copy this shard"
        ),
    ):
        loader.step(0)


@pytest.mark.parametrize(
    ("hurt", "said"),
    [
        (
            lambda folder: os.truncate(folder / "text-000000.tar", 99),
            r"text-000000\.tar: has 99 bytes and the man",
        ),
        (
            lambda folder: (folder / "text-000000.tar").unlink(),
            r"text-000000\.tar: named by the manifest and cannot",
        ),
        (
            lambda folder: os.truncate(folder / "latents.parquet", 99),
            r"latents\.parquet: has 99 bytes and the man",
        ),
        (
            lambda folder: (folder / "texts.parquet").unlink(),
            r"texts\.parquet: named by the manifest and cannot",
        ),
        (
            lambda folder: (folder / "manifest.json").write_text("{}"),
            r"its format is None, this version reads",
        ),
        (
            lambda folder: (folder / "manifest.json").write_text("{"),
            r"manifest\.json: cannot be read as JSON",
        ),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_by_name(
    broken: Path, hurt: Callable[[Path], object], said: str
) -> None:
    hurt(broken)
    with pytest.raises(ShardError, match=said):
        open_folder(broken)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("index.parquet", r"index\.parquet: no such index"),
        ("manifest.json", r"no latents there \(no manifest\.json\)"),
    ],
)
def test_a_folder_that_lacks_what_makes_it_one_of_latents_is_missing(
    broken: Path, name: str, said: str
) -> None:
    (broken / name).unlink()
    with pytest.raises(MissingError, match=said):
        open_folder(broken)


def test_shards_of_clips_given_as_latents_are_reported_so(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "manifest.json").write_text('{"format": "vidcurate-shards-1"}')
    with pytest.raises(ShardError, match=r"It is the manifest of clips: give it as data\.shards"):
        open_folder(tmp_path / "clips")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("video_encoder.temporal=2", None),  # does not fit the model: refused before
        ("text_encoder.pairs=false", r"text_encoder\.pairs is true there and false in the recipe"),
        (
            "encoded.latent_dtype=bfloat16",
            r'encoded\.latent_dtype is "float32" there and "bfloat16" in the rec',
        ),
        ("stages.0.data.captions=[caption, short_caption]", r"data\.captions is \[\"caption\"\] there and"),
    ],
)
def test_latents_of_another_recipe_are_refused_by_the_key(
    shards: Path, latents: Path, tmp_path: Path, more: str, said: str | None
) -> None:
    with pytest.raises(RecipeError, match=said):
        data_stages.open_stages(smoke(shards, tmp_path, *TRAINED, *from_latents(latents), more))


def test_missing_clips_are_listed_with_the_command_and_counted_by_the_dry_run(
    shards: Path, latents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = (
        *TRAINED,
        *from_latents(latents),
        "stages.0.data.buckets.table={32px: {8: [[1.0, 0.5], 2], 4: [1.0, 2]}}",
    )
    recipe = smoke(shards, tmp_path / "run", *more)
    said = r"needs 2 views of clips that are not encoded: \d of level-1/32px-4f-.*\(clip-\d+.* precompute"
    with pytest.raises(InputError, match=said):
        data_stages.open_stages(recipe)
    with pytest.raises(InputError, match="stage first needs 3 views of clips"):
        data_stages.open_stages(
            smoke(shards, tmp_path, *TRAINED, *from_latents(latents), "stages.0.data.views=3")
        )

    (stage,) = dry_run.dry_run(recipe)["stages"]
    short = {cell["name"]: cell["clips"] for cell in stage["cells"] if "-4f-" in cell["name"]}
    assert {part["cell"]: part["clips"] for part in stage["latents"]["missing"]} == short
    assert stage["latents"]["missing_clips"] == sum(short.values()) > 0
    words = dry_run.to_text(dry_run.dry_run(recipe))
    assert "  missing in level-1/32px-4f-" in words
    whole = dry_run.dry_run(smoke(shards, tmp_path / "run", *TRAINED, *from_latents(latents)))
    clips = dry_run.dry_run(smoke(shards, tmp_path / "run", *TRAINED))
    assert whole["stages"][0]["latents"]["missing"] == []
    assert "precomputed, one view a clip" in dry_run.to_text(clips)
    for key in ("clips", "steps", "cells", "first_clip_ids", "plan_fingerprint", "structure_fingerprint"):
        assert whole["stages"][0][key] == clips["stages"][0][key]


@pytest.mark.parametrize(
    ("more", "names", "said"),
    [
        (("stages.0.data.views=null",), (), r"stages\.0\.data\.views is null: a new start frame"),
        ((), ("second",), r"--stage second: the recipe's stages are first"),
    ],
)
def test_what_cannot_be_encoded_ahead_is_refused(
    shards: Path, tmp_path: Path, more: tuple[str, ...], names: tuple[str, ...], said: str
) -> None:
    with pytest.raises(VidcurateError, match=said):
        request_of(smoke(shards, tmp_path, *TRAINED, *more), names)


def test_latents_without_views_or_no_data_at_all_are_refused(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="set views to how many"):
        smoke(shards, tmp_path, "stages.0.data.latents=there")
    with pytest.raises(RecipeError, match="neither is given"):
        smoke(shards, tmp_path, "stages.0.data.shards=null")
    with pytest.raises(RecipeError, match=r"stages\.0\.data\.shards is not set"):
        request_of(smoke(shards, tmp_path, *TRAINED, *from_latents(tmp_path)))


def test_too_many_failures_end_the_encoding_by_name(hurt_shards: Path, tmp_path: Path) -> None:
    with pytest.raises(
        VidcurateError,
        match=r"max_failure_share 0 allows of 1,000 clips; the last: clip-005 \(too_few_frames\)",
    ):
        encode(hurt_shards, tmp_path / "out", "loader.max_failure_share=0.0")


def test_the_example_of_the_help_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(latents_command.main)
    encoding = re.search(r"python -m trainer precompute (\S+\.yaml .*)", text)
    training = re.search(r"python -m trainer (\S+\.yaml .*)", text)
    assert encoding is not None
    assert training is not None
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    make_shards(tmp_path / "demo" / "run" / "shards", num_clips=6, num_frames=15)
    monkeypatch.chdir(tmp_path)
    given = [*shlex.split(encoding[1]), "--set", "stages.0.data.small_cells=shrink"]  # three clips

    assert latents_command.main([*given, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("3 clips of level-1, 2 shards\n")
    assert not (tmp_path / "demo" / "latents").exists()
    assert latents_command.main([*given, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["clips"], answer["latents"], answer["is_finished"]) == (3, 3, True)
    assert latents_command.main(given) == 0
    assert "up to date; 3 latents" in capsys.readouterr().out
    short = [
        f"--set=stages.{number}.{key}" for number in (0, 1) for key in ("steps=1", "data.small_cells=shrink")
    ]
    assert trainer_command.main([*shlex.split(training[1]), *short, "--set=sample=null"]) == 0
    assert capsys.readouterr().out.startswith("done: 2 steps")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--part", "2"], "--part 2: write it as I/N"),
        (["--part", "3/2"], "--part 3/2: it must lie in 1/2 to 2/2"),
        (["--stage", "x"], "--stage x: the recipe's stages are first"),
        (["--set", "encoded.latent_dtyp=bfloat16"], "Did you mean encoded.latent_dtype?"),
    ],
)
def test_what_is_wrong_is_one_line_and_an_exit_code(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    settings = [f"stages.0.data.shards={shards}", "stages.0.data.views=1"]
    given = [str(SMOKE), "--out", str(tmp_path / "out"), *(w for value in settings for w in ("--set", value))]
    assert latents_command.main([*given, *more]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_a_rank_of_torchrun_takes_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    assert latents_command._part(None) == (1, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert latents_command._part(None) == (3, 8)
    assert latents_command._part("1/4") == (1, 4)


def test_only_true_tokens_are_kept_and_padding_is_made_anew() -> None:
    texts = [torch.ones(2, 4), torch.full((3, 4), 2.0)]
    y, mask = model_inputs._padded(texts, 5, torch.device("cpu"))
    assert y.shape == (2, 1, 5, 4)
    assert mask.tolist() == [[True, True, False, False, False], [True, True, True, False, False]]
    assert y[:, 0].sum((1, 2)).tolist() == [8, 24]
