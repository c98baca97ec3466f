"""Pages at every window size, in a real browser: what plays keeps playing, nothing is cut off."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser
from tests.review_page import press, visit
from tests.vidcurate.curation.review.conftest import Server, curated, served


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a curated run and its videos."""
    home = tmp_path_factory.mktemp("sizes")
    curated(home)
    return home


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    yield from served(home / "run", home / "data" / "videos")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        browser.size(1200, 800)
        yield browser


def test_a_clip_plays_on_while_the_window_changes_its_size(browser: Browser, server: Server) -> None:
    visit(browser, server, {"words": {"is_kept": ["true"]}, "contains": {"codec": "h264"}})
    press(browser, " ")
    browser.until("document.querySelector('.card video')?.currentTime > 0")
    browser.value("window.playing = document.querySelector('.card video')")
    for width in (700, 1600, 1200):
        before = browser.value("document.querySelector('.card[aria-selected=true]').offsetWidth")
        browser.size(width, 800)
        browser.until(f"document.querySelector('.card[aria-selected=true]').offsetWidth !== {before}")
        assert browser.value("playing === document.querySelector('.card video') && !playing.paused")
        sizes = browser.value(
            "[...document.querySelectorAll('.card')].map((c) => c.offsetWidth + c.offsetHeight)"
        )
        assert len(set(sizes)) == 1  # the old cards have the new size
        wide = "document.querySelector('.card .picture').clientWidth"
        tall = "document.querySelector('.card .picture').clientHeight"
        assert browser.value(f"Math.abs({wide} * 9 / 16 - {tall})") < 2
    browser.value("window.at = playing.currentTime")
    browser.until("playing.currentTime !== at")
    assert browser.complaints == []
