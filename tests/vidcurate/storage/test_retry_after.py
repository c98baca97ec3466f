"""What a busy server asks for in its Retry-After header is read in one place."""

import email.utils
import time
from typing import Any

import pytest

from vidcurate.storage.http_pool import retry_after


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("12", 12),
        ("-3", 0.0),
        (email.utils.formatdate(0, usegmt=True), 0.0),
        ("soon", None),
        ("nan", None),
        ("", None),
        (None, None),
        ("inf", float("inf")),
        ("Mon, 99 Foo 99999 99:99:99 GMT", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, seconds: Any) -> None:
    assert retry_after(value) == seconds


def test_retry_after_as_a_date_counts_from_now() -> None:
    in_an_hour = email.utils.formatdate(time.time() + 3600, usegmt=True)
    assert retry_after(in_an_hour) == pytest.approx(3600, abs=60)
