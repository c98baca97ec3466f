"""Tables of a terminal break no number."""

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
