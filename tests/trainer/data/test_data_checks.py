"""What a recipe says of captions, shapes and folds is true, or a line says that it is not."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.shards_for_tests import make_shards, smoke
from trainer.report.preview.dry_run import dry_run, to_text
from vidcurate.errors import InputError, RecipeError
from vidcurate.shards.index_file import INDEX_NAME, write_index


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards", num_clips=8)


def test_a_caption_key_that_no_clip_has_is_refused_with_the_keys_there(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"captions names 'captoin', which none of 8 clips .*caption, clip_id"
    ):
        dry_run(smoke(shards, tmp_path / "run", "stages.0.data.captions=[caption, captoin]"))
    dry_run(smoke(shards, tmp_path / "run", "stages.0.data.captions=[caption, clip_id]"))


def test_a_caption_key_is_looked_for_in_some_clips_and_the_message_says_so(tmp_path: Path) -> None:
    many = make_shards(tmp_path / "many", num_clips=40)
    with pytest.raises(InputError, match=r"none of \d+ clips looked at in .*caption, clip_id"):
        dry_run(smoke(many, tmp_path / "run", "stages.0.data.captions=[captoin]"))


def test_a_name_is_looked_for_among_the_captions_and_own_columns_of_the_index(
    shards: Path, tmp_path: Path
) -> None:
    table = pq.read_table(shards / INDEX_NAME)
    rows = {name: table.column(name).to_pylist() for name in table.column_names if not name.endswith("_hash")}
    several = [{"name": "dense", "text": "d"}, {"name": "short", "text": "s"}]
    rows |= {"captions": [several] * 8, "caption_name": ["dense"] * 8, "score": pa.array([1.5] * 8)}
    rows["remark"] = pa.array([None, *["r"] * 7])
    copied = tmp_path / "shards"
    shutil.copytree(shards, copied)
    write_index(copied, rows, {"score": "score", "remark": "remark"})

    dry_run(smoke(copied, tmp_path / "run", "stages.0.data.captions={short: 1, dense: 2.5, remark: 1}"))
    for wrong in ("{shrot: 1, dense: 1}", "[score, dense]"):
        with pytest.raises(
            InputError, match=r"none of 8 clips .* they have caption, clip_id, dense, remark, short"
        ):
            dry_run(smoke(copied, tmp_path / "run", f"stages.0.data.captions={wrong}"))


@pytest.mark.parametrize("wrong", ["{}", "[]", "{short: 0}", "{short: -1}", "{short: .inf}", "['']"])
def test_weights_of_captions_are_above_nothing(shards: Path, tmp_path: Path, wrong: str) -> None:
    with pytest.raises(RecipeError, match=r"stages\.0\.data\.captions"):
        smoke(shards, tmp_path / "run", f"stages.0.data.captions={wrong}")


def test_the_dry_run_names_sizes_that_the_encoder_cuts(shards: Path, tmp_path: Path) -> None:
    sizes = "stages.0.data.buckets.sizes={32px: {'1.00': [32, 32], '0.50': [23, 46]}}"

    report = dry_run(smoke(shards, tmp_path / "run", sizes))

    (cut,) = [note for note in report["stages"][0]["shape_notes"] if "trained as" in note]
    assert cut.startswith("32px-8f-0.50: [23, 46] is trained as [20, 44]")
    assert f"  note: {cut}" in to_text(report)


def test_the_dry_run_names_a_sample_that_the_encoder_cuts(shards: Path, tmp_path: Path) -> None:
    report = dry_run(smoke(shards, tmp_path / "run", "sample.height=34", "sample.width=170"))

    assert "note: a sample of [34, 170] is made as [32, 168]; " in to_text(report)
    assert dry_run(smoke(shards, tmp_path / "run"))["sample_note"] is None


def test_the_dry_run_names_a_model_narrower_than_its_patches(shards: Path, tmp_path: Path) -> None:
    report = dry_run(smoke(shards, tmp_path / "run"))
    (note,) = report["stages"][0]["shape_notes"]
    assert note.startswith(
        "model.hidden_size 32 is smaller than a patch's 192 values (48 channels x 1 x 2 x 2)"
    )

    wide = smoke(shards, tmp_path / "run", "model.hidden_size=192", "model.num_heads=4")
    assert dry_run(wide)["stages"][0]["shape_notes"] == []


def test_a_size_that_contradicts_its_key_is_refused(shards: Path, tmp_path: Path) -> None:
    sizes = "stages.0.data.buckets.sizes={32px: {'1.00': [32, 32], '0.50': [48, 24]}}"
    with pytest.raises(RecipeError, match=r"32px\.0\.50 is the ratio of \[48, 24\], which is 2\.00"):
        smoke(shards, tmp_path / "run", sizes)


def test_an_empty_fold_is_named_with_the_folds_there(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no clip is in the fold train2 \(clips by fold: train 8\)\.$"):
        dry_run(smoke(shards, tmp_path / "run", "stages.0.data.fold=train2"))
