import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidcurate.curation.clip_table import schema
from vidcurate.errors import ColumnError, InputError


def test_an_id_that_looks_like_a_number_keeps_its_zero() -> None:
    assert schema.sample_key("12.1") != schema.sample_key("12.10") != schema.sample_key("12.100")


@pytest.mark.parametrize("clip_id", ["a", "OpenVid_00-17", "A" * 80])
def test_a_safe_id_is_its_own_key(clip_id: str) -> None:
    assert schema.sample_key(clip_id) == clip_id


@given(st.text(min_size=1, max_size=200))
def test_a_key_is_one_that_every_webdataset_reader_takes_whole(clip_id: str) -> None:
    key = schema.sample_key(clip_id)

    assert key.isascii()
    assert 0 < len(key) <= schema.MAX_KEY_BYTES
    assert not set(key) & set("./\\ \t\n:")
    assert key[0] not in "_-"


@given(st.lists(st.text(min_size=1, max_size=12), unique=True, max_size=50))
def test_different_ids_have_different_keys(clip_ids: list[str]) -> None:
    keys = schema.sample_keys(clip_ids)

    assert len(set(keys)) == len(clip_ids)


def test_two_ids_that_would_share_a_key_are_refused() -> None:
    twin = schema.sample_key("a.b")

    with pytest.raises(InputError, match=r"'a\.b' and 'a_b-[0-9a-f]{8}' would share the sample key"):
        schema.sample_keys(["a.b", twin])


def test_a_missing_column_is_named_with_those_that_are_there() -> None:
    with pytest.raises(ColumnError, match=r"the column fps is missing; it has height, width\. Probe first\."):
        schema.require(["width", "height"], ["width", "fps"], "t.parquet", "Probe first.")


def test_a_misspelt_column_of_a_wide_table_is_one_short_line_with_the_nearest_name() -> None:
    with pytest.raises(ColumnError) as error:
        schema.require([*schema.COLUMNS], ["noun_cuont"], "t.parquet")

    said = str(error.value)
    assert said.startswith("t.parquet: the column noun_cuont is missing; it has ")
    assert said.endswith(", …. Did you mean noun_count?")
    assert len(said) < 500


def test_every_column_has_a_meaning_and_units_ride_in_names() -> None:
    for name, column in schema.COLUMNS.items():
        assert column.meaning, name
        assert column.stage in schema.STAGES, name
        if name.endswith(
            ("_seconds", "_seconds_from_header", "_seconds_from_index", "_seconds_from_metadata")
        ):
            assert column.unit == "s", name
        if name.endswith("_bytes"):
            assert column.unit == "B", name
