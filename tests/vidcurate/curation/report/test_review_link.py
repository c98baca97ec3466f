"""Links into the review app as text: what they hold, and that nothing in them becomes address or markup."""

import base64
import hashlib
import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from vidcurate.curation.report import review_link

HOSTILE = "\"><script>x</script>' javascript:alert(1) #?%/\u202e\0\ud800é"


def query_of(link: str) -> object:
    return json.loads(unquote(link.partition("#")[2]))


def test_a_link_holds_its_query_and_nothing_that_a_page_could_take_for_markup() -> None:
    link = review_link.link({"text": HOSTILE, "clips": [HOSTILE]})
    assert re.fullmatch(r"review\.html#[\w.~%-]+", link)
    shown = HOSTILE.replace("\ud800", "?")
    assert query_of(link) == {"text": shown, "clips": [shown]}


@pytest.mark.parametrize("folder", ["javascript:alert(1)", "a#b?c%d", "//evil.example", "../run"])
def test_a_folder_with_any_name_stays_a_path(folder: str) -> None:
    link = review_link.link({}, f"{folder}/review.html")
    path = link.partition("#")[0]
    assert ":" not in path
    assert "?" not in path
    assert unquote(path) == f"{folder}/review.html"


def test_a_link_to_many_clips_is_bounded_by_number_and_by_length() -> None:
    assert query_of(review_link.link_clips(["b", "a", "b"])) == {"clips": ["b", "a"]}
    many = query_of(review_link.link_clips(f"clip {at}" for at in range(1000)))
    assert many == {"clips": [f"clip {at}" for at in range(review_link.MOST_CLIPS)]}
    long = query_of(review_link.link_clips("x" * 5000 + str(at) for at in range(10)))
    assert isinstance(long, dict)
    assert len(long["clips"]) == 2
    assert len(json.dumps(long)) < 20_000  # what the app reads


def test_the_page_runs_its_own_script_alone_and_no_app_is_forgotten(tmp_path: Path) -> None:
    for port in (None, 8765):
        page = review_link.page(port).decode()
        (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"default-src 'none'; script-src 'sha256-{digest}'; style-src" in page
        assert page.count("<script") == 1
        assert ("http://127.0.0.1:8765/open" in page) == (port is not None)
    review_link.write_page(tmp_path)
    before = (tmp_path / review_link.PAGE).read_bytes()
    assert before == review_link.page(None)
    (tmp_path / review_link.PAGE).write_bytes(review_link.page(1))
    review_link.write_page(tmp_path)  # an app may be running
    assert (tmp_path / review_link.PAGE).read_bytes() == review_link.page(1)
