"""What the grid shows: filters, orders, samples, each against the same in plain Python."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.vidcurate.curation.review.conftest import Server
from vidcurate.curation.clip_table import table
from vidcurate.curation.review.clip_rows import stable_order
from vidcurate.curation.review.query import Query, search


def page(server: Server, query: dict[str, Any], **more: int) -> dict[str, Any]:
    response = server.client.get("/api/clips", params={"q": json.dumps(query), "limit": 200, **more})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def ids(server: Server, query: dict[str, Any]) -> list[str]:
    return [one["clip_id"] for one in page(server, query)["rows"]]


@pytest.fixture(scope="session")
def clips(run: Path) -> list[dict[str, Any]]:
    return table.scan(run, "split").collect().to_dicts()


def test_without_a_query_every_row_of_the_table_comes_in_its_order(
    server: Server, clips: list[dict[str, Any]]
) -> None:
    found = page(server, {})
    assert found["total"] == len(clips)
    assert [one["clip_id"] for one in found["rows"]] == [one["clip_id"] for one in clips]
    part = page(server, {}, offset=3, limit=4)
    assert part["rows"] == found["rows"][3:7]
    first, same = found["rows"][0], clips[0]
    assert {name: first[name] for name in ("caption", "is_kept", "reject_rule", "level", "width")} == {
        name: same[name] for name in ("caption", "is_kept", "reject_rule", "level", "width")
    }


def test_each_filter_shows_the_rows_that_plain_python_finds(
    server: Server, clips: list[dict[str, Any]]
) -> None:
    def said(one: dict[str, Any]) -> str:
        return (one["caption"] or "").lower()

    def is_small(one: dict[str, Any]) -> bool:
        return one["width"] is not None and min(one["width"], one["height"]) <= 64

    wanted: list[tuple[dict[str, Any], Any]] = [
        ({"words": {"is_kept": ["true"]}}, lambda one: one["is_kept"]),
        (
            {"words": {"reject_rule": ["min_num_frames"]}},
            lambda one: one["reject_rule"] == "min_num_frames",
        ),
        ({"words": {"level": ["1", "unknown"]}}, lambda one: one["level"] in (1, None)),
        (
            {"ranges": {"num_frames": {"min": 16, "max": 20}}},
            lambda one: 16 <= (one["num_frames"] or 0) <= 20,
        ),
        ({"text": "BLUE -circle"}, lambda one: "blue" in said(one) and "circle" not in said(one)),
        ({"text": '"to the right"'}, lambda one: "to the right" in said(one)),
        ({"contains": {"codec": "264"}}, lambda one: "264" in (one["codec"] or "")),
        (
            {"ranges": {"short_side": {"max": 64}}, "text": "square"},
            lambda one: is_small(one) and "square" in said(one),
        ),
    ]
    for query, keeps in wanted:
        expected = [one["clip_id"] for one in clips if keeps(one)]
        assert ids(server, query) == expected, query
        assert 0 < len(expected) < len(clips), query


def test_chosen_clips_come_in_their_order_unless_they_are_sorted(
    server: Server, clips: list[dict[str, Any]]
) -> None:
    chosen = [clips[at]["clip_id"] for at in (9, 2, 5)]
    assert ids(server, {"clips": [*chosen, "<b>no such clip</b>", chosen[0]]}) == chosen
    assert ids(server, {"clips": chosen, "sort": "clip_id"}) == sorted(chosen)
    assert ids(server, {"clips": chosen, "words": {"is_kept": ["true"]}}) == [
        one["clip_id"] for at in (9, 2, 5) for one in [clips[at]] if one["is_kept"]
    ]
    assert page(server, {"clips": ["nothing"]})["total"] == 0
    assert page(server, {"clips": []})["total"] == len(clips)
    many = server.client.get("/api/clips", params={"q": json.dumps({"clips": ["x"] * 1001})})
    assert many.status_code == 400
    shown = ids(server, {"ranges": {"motion_score": {}}})
    assert shown == [one["clip_id"] for one in clips if one["motion_score"] is not None]


def test_a_sort_puts_unknown_values_last_and_equal_ones_in_the_tables_order(
    server: Server, clips: list[dict[str, Any]]
) -> None:
    known = [one for one in clips if one["sharpness_mean"] is not None]
    unknown = [one["clip_id"] for one in clips if one["sharpness_mean"] is None]
    rising = [one["clip_id"] for one in sorted(known, key=lambda one: one["sharpness_mean"])]
    assert unknown
    assert ids(server, {"sort": "sharpness_mean"}) == rising + unknown
    assert ids(server, {"sort": "sharpness_mean", "descending": True}) == rising[::-1] + unknown
    ends = ids(server, {"sort": "sharpness_mean", "both_ends": True})
    assert ends[:4] == [rising[0], rising[-1], rising[1], rising[-2]]
    assert sorted(ends) == sorted(rising)
    by_level = sorted((one for one in clips if one["level"]), key=lambda one: one["level"])
    assert ids(server, {"sort": "level"})[: len(by_level)] == [one["clip_id"] for one in by_level]


def test_a_column_of_ones_own_is_sorted_and_counted_like_others(
    server: Server, clips: list[dict[str, Any]]
) -> None:
    (described,) = [
        one for one in server.client.get("/api/run").json()["columns"] if one["name"] == "my_score"
    ]
    assert (described["kind"], described["stage"]) == ("number", "own")
    assert "my_score" in described["meaning"]
    found = page(server, {"sort": "my_score", "ranges": {"my_score": {"min": 3}}})["rows"]
    scores = [one["my_score"] for one in found]
    assert scores == sorted(one["my_score"] for one in clips if (one["my_score"] or 0) >= 3)
    chart = server.client.get("/api/histogram", params={"column": "my_score"}).json()
    assert sum(chart["all"]) == sum(one["my_score"] is not None for one in clips)


def test_a_sample_takes_as_many_of_each_group_and_its_seed_draws_it_again(
    server: Server, clips: list[dict[str, Any]]
) -> None:
    query = {"sample": {"size": 12, "by": "is_kept", "seed": 5}}
    drawn = page(server, query)
    assert drawn["total"] == 12
    assert sum(one["is_kept"] for one in drawn["rows"]) == 6
    assert page(server, query) == drawn
    assert ids(server, {"sample": {"size": 12, "by": "is_kept", "seed": 6}}) != [
        one["clip_id"] for one in drawn["rows"]
    ]
    every = ids(server, {"sample": {"size": 10_000, "by": None, "seed": 1}})
    assert sorted(every) == sorted(one["clip_id"] for one in clips)
    tenths = page(server, {"sample": {"size": 10, "by": "motion_px_per_frame_mean", "seed": 1}})
    assert tenths["total"] == 10


def test_copies_stand_side_by_side_and_the_nearest_by_look_come_first(
    server: Server, clips: list[dict[str, Any]]
) -> None:
    copies = [one for one in clips if one["duplicate_cluster"] is not None]
    cluster = copies[0]["duplicate_cluster"]
    expected = sorted(
        (one for one in copies if one["duplicate_cluster"] == cluster), key=lambda one: one["duplicate_rank"]
    )
    assert ids(server, {"cluster": cluster}) == [one["clip_id"] for one in expected]
    twin = next(one for one in copies if one["duplicate_of"] and one["duplicate_kind"] == "perceptual")
    at = next(number for number, one in enumerate(clips) if one["clip_id"] == twin["clip_id"])
    assert page(server, {"near": at})["near"] == twin["clip_id"]
    near = ids(server, {"near": at})
    assert near[0] == twin["clip_id"]
    bits = {
        one["clip_id"]: np.bitwise_count(
            np.array(one["perceptual_hashes"], dtype=np.uint64)
            ^ np.array(twin["perceptual_hashes"], dtype=np.uint64)
        ).mean()
        for one in clips
        if one["perceptual_hashes"]
    }
    assert bits[near[1]] <= np.quantile(list(bits.values()), 0.2)


def test_counts_by_value_ignore_their_own_filter_and_histograms_too(
    server: Server, clips: list[dict[str, Any]]
) -> None:
    query = {"words": {"is_kept": ["true"]}, "ranges": {"num_frames": {"min": 20}}}
    found = server.client.get("/api/facets", params={"q": json.dumps(query)}).json()
    many = [one for one in clips if (one["num_frames"] or 0) >= 20]
    counted = {one["value"]: one["rows"] for one in found["columns"]["is_kept"]}
    assert counted["true"] == sum(one["is_kept"] for one in many)
    assert counted["false"] == sum(not one["is_kept"] for one in many)
    parameters = {"q": json.dumps(query), "column": "num_frames"}
    chart = server.client.get("/api/histogram", params=parameters).json()
    assert sum(chart["shown"]) == sum(one["is_kept"] and one["num_frames"] is not None for one in clips)
    assert sum(chart["all"]) + chart["unknown"] == len(clips)
    assert len(chart["edges"]) == len(chart["all"]) + 1


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ('{"colour": 1}', "colour"),
        ('{"ranges": {"caption": {"min": 1}}}', "caption"),
        ('{"sort": "no_such_column"}', "no_such_column"),
        ('{"sort": "perceptual_hashes"}', "lists"),
        ('{"near": 99999}', "no row 99999"),
        ("{", "query.json"),
        ("[1]", "mapping"),
        ('{"text": "' + "x" * 2000 + '"}', "text"),
    ],
)
def test_a_wrong_query_is_one_line_that_names_what_is_wrong(server: Server, query: str, says: str) -> None:
    response = server.client.get("/api/clips", params={"q": query})
    assert response.status_code == 400
    message = response.json()["error"]
    assert says in message
    assert "\n" not in message


def test_the_order_of_a_column_is_that_of_a_stable_sort() -> None:
    rng = np.random.default_rng(0)
    for values in (rng.normal(size=999), rng.integers(0, 5, 999) * 1.0, np.full(9, np.nan), np.zeros(0)):
        mixed = np.where(rng.uniform(size=len(values)) < 0.2, np.nan, values)
        for one in (values, mixed, np.where(mixed > 1, np.inf, -mixed)):
            assert stable_order(one).tolist() == np.argsort(one, kind="stable").tolist()


def test_words_are_found_in_any_case_and_script_and_are_no_pattern() -> None:
    captions = pl.Series(["Ein Straßenfest", "Ñandú und ÑANDÚ", "a.c", "abc", None, "50% (half)"])
    assert search(captions, "ñandú").tolist() == [False, True, False, False, False, False]
    assert search(captions, "a.c").tolist() == [False, False, True, False, False, False]
    assert search(captions, "(half)").tolist()[-1]
    assert search(captions, "-abc").tolist() == [True, True, True, False, True, True]
    assert search(captions, "a.c -abc").tolist() == [False, False, True, False, False, False]
    assert search(captions, "-abc -half").tolist() == [True, True, True, False, True, False]
    assert search(captions, " ").tolist() == [True] * 6
    assert search(captions, '"').tolist() == [False] * 6
    assert Query().sort is None


def test_a_search_finds_what_plain_python_finds_whichever_word_is_rare() -> None:
    signs = ["dog", "cat", "A<b>", "\\d+", "[x", "tab\there", "two\nlines", "😀", "ß", "é", "~#&-", "İ"]
    rng = np.random.default_rng(0)
    captions = pl.Series([" ".join(rng.choice(signs, 4)) for _ in range(5000)] + [None, "the rarest word"])
    searches = ["dog cat", "-dog cat", "the dog", "rarest word", "\\d+ [x", "a<B> ~#&-", "😀 É ß"]
    searches += ['"dog cat" -ß', '"tab\there"', '"two\nlines" dog', "-rarest -dog", "x" * 1000]
    for text in searches:
        words = [(minus, (a or b).lower()) for minus, a, b in re.findall(r'(-?)(?:"([^"]+)"|(\S+))', text)]
        wanted = [
            all((word in (one or "").lower()) != bool(minus) for minus, word in words) for one in captions
        ]
        assert search(captions, text).tolist() == wanted, text
    assert search(pl.Series([], dtype=pl.String), "two words").tolist() == []


def test_a_row_has_every_cell_of_every_stage(server: Server, clips: list[dict[str, Any]]) -> None:
    found = server.client.get("/api/clip/0").json()["cells"]
    assert found["clip_id"] == clips[0]["clip_id"]
    assert found["cut_seconds"] == clips[0]["cut_seconds"]
    assert {name for name in clips[0] if not name.startswith("perceptual")} == set(found)
    assert server.client.get("/api/clip/99999").status_code == 400
    assert server.client.get("/api/clip/-1").status_code == 404
