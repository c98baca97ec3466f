"""Histograms and axes; input that is not to be believed."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shard_runs import write_table
from tests.vidcurate.curation.report.made import HOSTILE, Page, read_page, text_of
from vidcurate.curation.report import distributions, histogram, svg
from vidcurate.curation.report.build import run_report
from vidcurate.curation.report.histogram import Series, Span


def _hostile_run(folder: Path, words: list[str]) -> Path:
    rows = [
        {
            "clip_id": f"{number} {text}",
            "sample_key": f"clip{number}",
            "source_dataset": text,
            "source_id": text,
            "video_path": f"{text}.mp4",
            "caption": text,
            "width": 64,
            "height": 64,
            "fps": 8.0,
            "num_frames": 8,
            "duration_seconds": 1.0,
            "ingest_problem": None,
            "codec": text,
            "noun_count": number,
            "is_kept": number % 2 == 0,
            "reject_stage": None if number % 2 == 0 else text,
            "reject_rule": None if number % 2 == 0 else text,
            "reject_value": None if number % 2 == 0 else text,
            "reject_threshold": None if number % 2 == 0 else text,
        }
        for number, text in enumerate(words)
    ]
    finding = {"count": 1, "listed": [{"row": 1, "clip_id": words[0], "path": words[1]}]}
    folder.mkdir(exist_ok=True)
    write_table(folder, rows, "filter")
    (folder / "reconcile.json").write_text(
        json.dumps(
            {
                "schema": words[0],
                "reason": words[1],
                "metadata_rows": 1,
                "rows_in": 1,
                "rows_kept": 1,
                "own_columns": [{"column": word} for word in words],
                "captions": words,
                "missing_files": finding,
            }
        )
    )
    return folder


def test_no_word_of_the_input_becomes_a_tag(tmp_path: Path) -> None:
    run = _hostile_run(tmp_path / "run", [*HOSTILE, *HOSTILE[:1]])
    (tmp_path / "videos").mkdir()

    run_report(run, videos=tmp_path / "videos")

    text, page = text_of(run), read_page(run)
    assert not page.named("script")
    assert not page.named("img")
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "49" not in page.words().split()
    assert "<script>alert(1)</script>" in page.words()  # as text
    assert "{{ 7 * 7 }}" in page.words()
    assert "\x07" not in text
    assert "\x1b" not in text
    assert text.count("<bdi>") == text.count("</bdi>")


@settings(max_examples=12, deadline=None)
@given(st.lists(st.text(max_size=40), min_size=2, max_size=5))
def test_any_text_at_all_stays_text(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    clean = [word.encode("utf-8", "ignore").decode() for word in words]
    run = _hostile_run(tmp_path_factory.mktemp("any") / "run", [f"<b>{word}" for word in clean])
    run_report(run)
    assert not read_page(run).named("b")


def _series(*values: list[float]) -> list[Series]:
    return [
        Series(name=f"part {number}", ink="keep", values=np.array(part, dtype=np.float64))
        for number, part in enumerate(values)
    ]


@settings(deadline=None)
@given(
    st.lists(
        st.lists(
            st.floats(-1e12, 1e12) | st.integers(-50, 50).map(float) | st.just(float("nan")), max_size=40
        ),
        min_size=1,
        max_size=3,
    ),
    st.lists(st.floats(-1e6, 1e6), max_size=2),
)
def test_every_value_is_in_one_bar(parts: list[list[float]], limits: list[float]) -> None:
    series = _series(*parts)
    found = histogram.bars(series, limits)
    known = [int(np.isfinite(part.values).sum()) for part in series]
    assert found.counts.sum(axis=1).tolist() == known
    assert (np.diff(found.edges) > 0).all()
    assert found.counts.shape[1] <= 40
    Page(str(histogram.histogram(series, title="t", thresholds=[("min", limit) for limit in limits])))


def test_few_whole_numbers_have_a_bar_each() -> None:
    found = histogram.bars(_series([1, 1, 2, 4], [2]))
    assert found.edges.tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert found.counts.tolist() == [[2, 1, 0, 1], [0, 1, 0, 0]]


def test_a_long_tail_goes_into_the_last_bar() -> None:
    values = [*np.linspace(0, 10, 99).tolist(), 10_000.0]
    found = histogram.bars(_series(values))
    assert found.edges[-1] < 20
    assert found.num_beyond == 1
    assert "and more" in histogram.histogram(_series(values), title="t")
    # A limit out there keeps the axis.
    assert histogram.bars(_series(values), [9_000.0]).edges[-1] > 9_000


def test_a_histogram_says_its_counts_and_limits_as_text() -> None:
    drawn = histogram.histogram(
        [
            Series(name="kept", ink="keep", values=np.array([1.0, 2.0, 3.0])),
            Series(name="rejected", ink="drop", values=np.array([0.25])),
        ],
        title="Length <b>",
        unit="s",
        thresholds=[("min", 0.5)],
    )
    label = Page(str(drawn)).named("svg")[0]["aria-label"]
    assert label == (
        "Length <b> in s: 3 kept, from 1 to 3, median 2; 1 rejected, from 0.25 to 0.25, median 0.25; min 0.5"
    )
    assert "<b>" not in drawn


@pytest.mark.parametrize(
    ("low", "high", "count", "wanted"),
    [
        (0, 10, 5, [0, 2, 4, 6, 8, 10]),
        (0.1, 0.35, 3, [0.1, 0.2, 0.3]),
        (3, 3, 4, [3]),
        (-5, 5, 2, [-5, 0, 5]),
        (0, 322, 3, [0, 200]),
    ],
)
def test_ticks_are_round(low: float, high: float, count: int, wanted: list[float]) -> None:
    assert svg.ticks(low, high, count) == wanted


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (1234567, "1,234,567"), (0.5625, "0.562"), (29.97, "30"), (12.0, "12"), (float("nan"), "–")],
)
def test_numbers_are_shown_without_idle_digits(value: float, words: str) -> None:
    assert svg.shown(value) == words


def test_levels_of_one_value_can_be_drawn() -> None:
    rows = [
        Span(name=f"level {n}", ink=f"level-{n}", low=2.0, high=2.0, mean=2.0, spread=0.0) for n in (1, 2)
    ]
    page = Page(str(histogram.spans(rows, title="nouns")))
    assert len(page.named("circle")) == 2
    assert page.named("svg")[0]["aria-label"] == "nouns: level 1: 2 to 2, mean 2; level 2: 2 to 2, mean 2"


def labels(drawn: object) -> list[str]:
    return re.findall(r'y="\d+" text-anchor="(?:middle|end)">([^<]+)</text>', str(drawn))


def test_counts_have_no_half_labels() -> None:
    rows = [Span(name=f"level {n}", ink="level-1", low=n, high=n + 1, mean=n, spread=0.1) for n in (1, 2)]
    assert labels(histogram.spans(rows, title="nouns")) == ["1", "2", "3"]
    drawn = histogram.histogram(
        [Series(name="kept", ink="keep", values=np.array([1.0, 2.0, 3.0]))], title="n"
    )
    assert labels(drawn)[-3:] == ["1", "2", "3"]
    assert distributions._as_text(np.array([1.0, 2.0, 2.0, 3.0]), "nouns") == (
        "kept: median 2 nouns, all within 1 to 3"
    )


def test_labels_do_not_overlap() -> None:
    values = np.array([12_345_678_901.0, 98_765_432_101.0])
    drawn = str(histogram.histogram([Series(name="kept", ink="keep", values=values)], title="bytes"))
    found = re.findall(r'<text x="([\d.]+)" y="\d+" text-anchor="middle">([^<]+)</text>', drawn)
    ends = [(float(x) - 3.5 * len(text), float(x) + 3.5 * len(text)) for x, text in found]
    assert len(ends) > 1
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))


@pytest.mark.parametrize(
    ("most", "unit"),
    [(0.0, "B"), (1023.0, "B"), (1024.0, "KiB"), (5.2e6, "MiB"), (3e9, "GiB"), (1e20, "TiB")],
)
def test_sizes_have_a_unit_that_fits(most: float, unit: str) -> None:
    assert distributions._bytes_unit(most)[1] == unit
