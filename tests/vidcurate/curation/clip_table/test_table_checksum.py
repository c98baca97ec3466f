"""A table is read only while its bytes are those that were written."""

import re
from pathlib import Path
from random import Random

import polars as pl
import pytest

from tests.vidcurate.curation.filter.test_filter import clip, scored
from vidcurate.curation.clip_table import table, table_checksum
from vidcurate.curation.clip_table.rejection_ledger import LEDGER, read_ledger
from vidcurate.curation.filter.spec import FilterSpec, Limit
from vidcurate.curation.filter.stage import run_filter
from vidcurate.errors import TableError

ORIGIN = table.Provenance(stage="score", settings={}, inputs={})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return scored(tmp_path, *(clip(f"c{n}", noun_count=n) for n in range(50)))


def damage(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << place % 8
    path.write_bytes(data)


def test_every_bit_that_turns_is_found(run: Path) -> None:
    path = table.stage_path(run, "score")
    whole = path.read_bytes()
    random = Random(0)
    said = {}
    for place in {*range(8), *range(len(whole) - 40, len(whole)), *random.choices(range(len(whole)), k=300)}:
        damage(path, place)
        try:
            table.scan(run, "score").collect()
        except TableError as error:
            said[place] = str(error)
        else:
            said[place] = "nothing"
        path.write_bytes(whole)
    asked = re.compile(rf"{re.escape(str(path))}: .*damaged.* Run `vidcurate score` again\.")
    assert {place: text for place, text in said.items() if not asked.fullmatch(text)} == {}
    assert table.scan(run, "score").collect().height == 50


@pytest.mark.parametrize("size", [0, 1, 7, 8, 12, 100])
def test_a_cut_table_is_no_table(run: Path, size: int) -> None:
    path = table.stage_path(run, "score")
    path.write_bytes(path.read_bytes()[:size])

    with pytest.raises(
        TableError,
        match=r"score\.parquet: not a table .*, or damaged \(no checksum\)\. Run `vidcurate score`",
    ):
        table.scan(run, "score")


def test_the_checksum_is_of_the_bytes_alone(run: Path, tmp_path: Path) -> None:
    path, again = table.stage_path(run, "score"), tmp_path / "copy" / "score.parquet"
    table.write(pl.read_parquet(path), again, ORIGIN)

    assert again.read_bytes() == path.read_bytes()
    assert table_checksum.has_own_bytes(again)


def test_a_table_without_a_checksum_is_refused(run: Path) -> None:
    path = table.stage_path(run, "score")
    words = {"vidcurate": ORIGIN.to_json(), "columns": "{}"}
    pl.read_parquet(path).write_parquet(path, metadata=words)

    with pytest.raises(TableError, match=r"damaged \(no checksum\)\. Run `vidcurate score` again"):
        table.scan(run, "score")


def test_words_like_the_mark_in_a_table_are_not_taken_for_it(run: Path) -> None:
    path = table.stage_path(run, "score")
    mark = "\x18\x06crc32c\x18\x0800000000"
    table.write(
        pl.DataFrame({"clip_id": [mark], mark: [mark]}), path, ORIGIN, words={mark: {"meaning": mark}}
    )

    assert table_checksum.has_own_bytes(path)
    assert table.scan(run, "score").collect()[mark].to_list() == [mark]


@pytest.mark.parametrize("name", ["filter.parquet", LEDGER])
def test_the_command_of_a_damaged_table_writes_it_again(run: Path, name: str) -> None:
    spec = FilterSpec(limits={"noun_count": Limit(min=20)})
    run_filter(run, spec)
    whole = (run / name).read_bytes()
    damage(run / name, len(whole) // 3)

    with pytest.raises(TableError, match=rf"{name}: damaged .* Run `vidcurate filter` again"):
        (read_ledger(run) if name == LEDGER else table.scan(run, "filter")).collect()
    assert not run_filter(run, spec).up_to_date
    assert (run / name).read_bytes() == whole
    assert run_filter(run, spec).up_to_date
