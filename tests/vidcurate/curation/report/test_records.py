"""Tables of a terminal break no number and no name."""

import io
import re

import pytest
from rich.console import Console

from vidcurate.cli import common
from vidcurate.curation.report.records import Records

ROWS = [
    {
        "level": level,
        "clips": 1_234_567,
        "validation_clips": 12_345,
        "frames": 123_456_789_012,
        "hours": 12_345.5,
        "share_of_pass": 0.1234,
        "standard_deviation": 12.25,
        "because": "the noun count grows by more than its limit",
    }
    for level in (1, 2)
]
NUMBERS = ("1,234,567", "12,345", "123,456,789,012", "0.1234", "12.25")


@pytest.mark.parametrize("width", [40, 60, 80, 140])
def test_no_number_is_broken_at_any_width(width: int) -> None:
    screen = io.StringIO()
    Console(file=screen, width=width).print(Records("levels", ROWS, common._cell))

    said = screen.getvalue()
    assert max(map(len, said.splitlines())) <= width
    for number in NUMBERS:
        assert len(re.findall(rf"(?<![\d,.]){re.escape(number)}(?![\d,.])", said)) == 2, said


FUNNEL = [
    {"rule": rule, "measure": measure, "threshold": "no ingest problem", "rejected": 1_234, "kept": 61}
    for rule, measure in (("min_short_side", "short_side"), ("temporal_consistency_score", "caption"))
]


@pytest.mark.parametrize("width", [40, 60, 80, 140])
def test_names_of_rules_and_measures_can_be_copied_at_any_width(width: int) -> None:
    screen = io.StringIO()
    Console(file=screen, width=width).print(Records("funnel", FUNNEL, common._cell))

    said = screen.getvalue()
    assert max(map(len, said.splitlines())) <= width
    for row in FUNNEL:
        assert {str(row["rule"]), str(row["measure"])} <= set(said.split()), said
