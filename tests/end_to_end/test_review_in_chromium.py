"""The review app in a real browser, by keyboard and mouse: watch, find, try thresholds, decide.

The run is demo data; one test shows a table of a million rows. The server is uvicorn on a free port.
"""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.browser import Browser
from tests.review_page import click, mouse, names, point, press, selected, shown, visit, write
from tests.vidcurate.curation.review.conftest import Server, curated, served
from vidcurate.curation.clip_table import table
from vidcurate.curation.review_decisions.journal import read_decisions

pytestmark = pytest.mark.engine
MILLION = 1_000_000
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\u202e"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a curated run and its videos."""
    home = tmp_path_factory.mktemp("review")
    curated(home)
    return home


@pytest.fixture
def server(home: Path, tmp_path: Path) -> Iterator[Server]:
    """A server of a copy of the run, with no decision yet."""
    shutil.copytree(home / "run", tmp_path / "run", ignore=shutil.ignore_patterns(".*"))
    yield from served(tmp_path / "run", home / "data" / "videos")


def test_the_keyboard_moves_plays_and_opens_a_clip(browser: Browser, server: Server) -> None:
    visit(browser, server, {"words": {"is_kept": ["true"]}, "contains": {"codec": "h264"}})
    first = selected(browser)
    press(browser, "ArrowRight", "ArrowDown")
    browser.until(
        f"document.querySelector('.card[aria-selected=true]').ariaLabel.split(',')[0] !== '{first}'"
    )
    columns = browser.value("document.querySelectorAll('.card').length > 4")
    assert columns
    press(browser, "Home")
    assert selected(browser) == first
    press(browser, " ")
    browser.until("document.querySelector('.card video')?.currentTime > 0")
    assert browser.value("document.querySelectorAll('video').length") == 1
    press(browser, " ")
    browser.until("document.querySelector('.card video') === null")
    press(browser, "Enter")
    browser.until("document.querySelector('#clip[open] .cells table') !== null")
    assert browser.value("document.getElementById('clip-title').textContent") == first
    browser.until("document.querySelector('#clip video').currentTime > 0")
    press(browser, "ArrowRight")
    browser.until(f"document.getElementById('clip-title').textContent !== '{first}'")
    press(browser, "Escape")
    browser.until("!document.getElementById('clip').open && document.activeElement.id === 'grid'")
    press(browser, "?")
    browser.until("document.getElementById('help').open")
    press(browser, "Escape")
    assert browser.complaints == []


def test_a_clip_plays_under_the_mouse_and_a_foreign_format_is_transcoded(
    browser: Browser, server: Server
) -> None:
    visit(browser, server, {"words": {"is_kept": ["true"]}, "contains": {"video_path": ".mkv"}})
    clip = server.client.get(
        "/api/clips", params={"q": browser.value("decodeURIComponent(location.hash.slice(1))")}
    )
    assert clip.json()["rows"][0]["video"] == "transcode"
    x, y = point(browser, ".card .picture")
    mouse(browser, "mouseMoved", x, y)
    browser.until("document.querySelector('.card video')?.currentTime > 0")
    assert browser.value("document.querySelector('.card video').src.includes('/media/transcoded/')")
    mouse(browser, "mouseMoved", 2, 2)
    browser.until("document.querySelector('.card video') === null")
    assert browser.complaints == []


def test_search_facets_and_a_dragged_histogram_narrow_the_grid_and_back_widens_it(
    browser: Browser, server: Server
) -> None:
    visit(browser, server)
    whole = shown(browser)
    press(browser, "/")
    write(browser, "blue")
    browser.until("document.getElementById('count').textContent.includes(' of ')")
    captions = server.session.rows.column("caption").fill_null("")
    blue = int(captions.str.contains("(?i)blue").sum())
    assert shown(browser).startswith(f"{blue} of ")
    press(browser, "Escape")
    browser.value("history.back()")
    browser.until(f"document.getElementById('count').textContent === {json.dumps(whole)}")
    click(browser, '[data-facet="is_kept=true"]')
    kept = int(server.session.rows.column("is_kept").sum())
    browser.until(f"document.getElementById('count').textContent.startsWith('{kept} of ')")
    click(browser, "#active .chip")
    browser.until(f"document.getElementById('count').textContent === {json.dumps(whole)}")
    x, y = point(browser, "[data-column=duration_seconds] .histogram")
    mouse(browser, "mousePressed", x, y, button="left", clickCount=1)
    mouse(browser, "mouseMoved", x + 30, y, button="left")
    mouse(browser, "mouseMoved", x + 400, y, button="left")
    mouse(browser, "mouseReleased", x + 400, y, button="left", clickCount=1)
    browser.until("location.hash.includes('duration_seconds')")
    low = json.loads(browser.value("decodeURIComponent(location.hash.slice(1))"))["ranges"][
        "duration_seconds"
    ]
    assert low["max"] is None
    values = server.session.rows.values("duration_seconds")
    browser.until(
        f"document.getElementById('count').textContent.startsWith('{(values >= low['min']).sum()} of ')"
    )
    assert browser.complaints == []


def test_a_slider_shows_survivors_and_the_clips_that_change_sides_and_saves_a_recipe(
    browser: Browser, server: Server
) -> None:
    visit(browser, server)
    click(browser, "#tab-what-if")
    browser.until("document.querySelector('[data-threshold=num_frames]') !== null")
    browser.until("document.querySelector('.outcome .big') !== null")
    x, y = point(browser, "[data-threshold=num_frames] input[type=range]")
    mouse(browser, "mousePressed", x + 40, y, button="left", clickCount=1)
    mouse(browser, "mouseReleased", x + 40, y, button="left", clickCount=1)
    browser.until("location.hash.includes('limits')")
    limits = json.loads(browser.value("decodeURIComponent(location.hash.slice(1))"))["limits"]
    trial = server.post("/api/trial", {"limits": limits}).json()
    changes = trial["newly_kept"] + trial["newly_rejected"]
    assert changes > 0
    browser.until(f"document.getElementById('count').textContent.startsWith('{changes} of ')")
    assert browser.value("document.querySelector('.outcome .big').textContent").startswith(
        f"{trial['kept']['clips']} kept"
    )
    click(browser, "#recipe-name")
    write(browser, "tried")
    press(browser, "Enter")
    browser.until("document.querySelector('.saved code') !== null")
    assert (server.session.run / "recipes" / "tried.yaml").exists()
    assert browser.complaints == []


def test_decisions_by_key_are_on_the_disk_and_shown_and_undone(browser: Browser, server: Server) -> None:
    visit(browser, server)
    order = names(server)
    press(browser, "k")
    browser.until("document.querySelectorAll('.badge.mine.keep').length === 1")
    browser.until(f"document.querySelector('.card[aria-selected=true]').ariaLabel.startsWith('{order[1]},')")
    press(browser, "r")
    browser.until("document.getElementById('decide').open")
    press(browser, "3")
    browser.until("document.querySelectorAll('.badge.mine.reject').length === 1")
    press(browser, "c")
    browser.until("document.activeElement.tagName === 'TEXTAREA'")
    browser.value("document.activeElement.select()")
    write(browser, "A caption of mine & <b>yours</b>.")
    press(browser, "Enter", modifiers=2)
    browser.until(
        "document.querySelector('.card[aria-selected=true] .words').textContent.includes('of mine')"
    )
    press(browser, "t")
    browser.until("document.querySelector('#decide[open] input') !== null")
    write(browser, "night, good")
    press(browser, "Enter")
    browser.until("document.querySelector('.card[aria-selected=true]').textContent.includes('#night')")
    lines = read_decisions(server.session.run)
    assert [(one.clip_id, one.verdict, one.reason, one.caption, one.tags) for one in lines] == [
        (order[0], "keep", None, None, ()),
        (order[1], "reject", "blurred", None, ()),
        (order[2], "caption", None, "A caption of mine & <b>yours</b>.", ()),
        (order[2], "tag", None, None, ("night", "good")),
    ]
    press(browser, "u")
    browser.until("!document.querySelector('#grid').textContent.includes('#night')")
    assert read_decisions(server.session.run)[-1].undone_by == 5
    assert browser.complaints == []


def test_in_a_list_of_undecided_clips_the_decided_one_leaves_and_the_next_takes_its_place(
    browser: Browser, server: Server
) -> None:
    order = names(server)
    visit(browser, server, {"decided": "none"})
    for at in range(3):
        left = len(order) - at - 1
        press(browser, "k")
        browser.until(f"document.getElementById('count').textContent.startsWith('{left} of ')")
        assert selected(browser) == order[at + 1]
    assert [one.clip_id for one in read_decisions(server.session.run)] == order[:3]
    press(browser, "u")
    browser.until(f"document.getElementById('count').textContent.startsWith('{len(order) - 2} of ')")
    assert selected(browser) == order[2]
    assert browser.complaints == []


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A run of a million rows without videos; its first caption is hostile."""
    run = tmp_path_factory.mktemp("million")
    rng = np.random.default_rng(0)
    ids = pl.select(pl.concat_str(pl.lit("clip-"), pl.int_range(MILLION).cast(pl.String))).to_series()
    captions = pl.concat([pl.Series([HOSTILE]), "A dog walks, take " + ids[1:]])
    frame = pl.DataFrame(
        {
            "clip_id": pl.concat([pl.Series(["<b>clip</b>"]), ids[1:]]),
            "video_path": pl.Series([None], dtype=pl.String).new_from_index(0, MILLION),
            "source_dataset": pl.Series(["<i>a</i>"]).new_from_index(0, MILLION),
            "caption": captions,
            "ingest_problem": pl.Series([None], dtype=pl.String).new_from_index(0, MILLION),
            "duration_seconds": rng.gamma(3.0, 2.5, MILLION),
            "noun_count": pl.Series(rng.poisson(14, MILLION).astype(np.int32)),
        }
    )
    table.write(frame, run / "score.parquet", table.Provenance(stage="score", settings={}, inputs={}))
    yield from served(run, None)


def test_a_million_rows_scroll_to_any_place_and_only_cards_in_sight_exist(
    browser: Browser, million: Server
) -> None:
    visit(browser, million)
    assert shown(browser) == "1,000,000 clips"
    start = time.monotonic()
    press(browser, "End")
    browser.until(
        "document.querySelector('.card[aria-selected=true]')?.ariaLabel?.startsWith('clip-999999,')"
    )
    press(browser, "ArrowUp", "ArrowUp")
    press(browser, "Home")
    browser.until(
        "document.querySelector('.card[aria-selected=true]')?.ariaLabel?.startsWith('<b>clip</b>,')"
    )
    assert time.monotonic() - start < 30
    browser.value(
        "(() => { const g = document.getElementById('grid'); g.scrollTop = g.scrollHeight / 2; })()"
    )
    browser.until(
        "[...document.querySelectorAll('.card')].some((c) => /^clip-(49|50)\\d{4},/.test(c.ariaLabel))"
    )
    assert browser.value("document.querySelectorAll('.card').length") < 60
    # A small move is a move by pixels, not a jump over thousands of rows.
    before = browser.value("Number(document.querySelector('.card').getAttribute('aria-posinset'))")
    browser.value("document.getElementById('grid').scrollTop += 300")
    browser.until(
        f"Number(document.querySelector('.card').getAttribute('aria-posinset')) !== {before} || true"
    )
    after = browser.value("Number(document.querySelector('.card').getAttribute('aria-posinset'))")
    assert abs(after - before) < 20
    assert browser.complaints == []


def test_hostile_captions_and_names_stay_text(browser: Browser, million: Server) -> None:
    visit(browser, million)
    assert HOSTILE.replace("\u202e", "") in browser.value("document.querySelector('.words').textContent")
    press(browser, "Enter")
    browser.until("document.querySelector('#clip[open] .cells table') !== null")
    assert (
        browser.value(
            "document.querySelectorAll('#grid img, #clip img, #clip script, #grid b b, h2 b').length"
        )
        == 0
    )
    assert browser.value("document.title") == f"Review of {million.session.run.name}"
    press(browser, "Escape")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200, 2400])
def test_no_column_is_cut_off_and_every_control_has_a_name(
    browser: Browser, server: Server, scheme: str, width: int
) -> None:
    browser.scheme(scheme)
    browser.size(width, 800)
    try:
        visit(browser, server)
        assert browser.value("document.documentElement.scrollWidth") == width
        cut = browser.value(
            "[...document.querySelectorAll('.card')].filter((card) => card.getBoundingClientRect().right >"
            " document.documentElement.clientWidth).length"
        )
        assert cut == 0
        nameless = browser.value(
            "[...document.querySelectorAll('input, select, button, textarea')].filter((e) => !("
            "e.labels?.length || e.ariaLabel || e.textContent.trim())).map((e) => e.outerHTML)"
        )
        assert nameless == []
    finally:
        browser.size(1200, 800)
        browser.scheme("light")


def test_the_page_asks_only_its_own_server(browser: Browser, server: Server) -> None:
    visit(browser, server)
    browser.until("document.querySelector('.card img')?.naturalWidth > 0")
    own = (f"{server.origin}/", "data:", "about:", "chrome")
    foreign = [url for url in browser.asked if not url.startswith(own)]
    assert foreign == []
    assert any("/media/poster/" in url for url in browser.asked)


def test_text_stands_out_from_its_ground_in_both_schemes(browser: Browser, server: Server) -> None:
    """WCAG AA: 4.5 to 1 for text."""
    script = """
    (() => {
      const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
      const linear = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
      const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
      const ground = (e) => {
        for (; e; e = e.parentElement) {
          const found = numbers(getComputedStyle(e).backgroundColor);
          if (found.length === 3 || found[3] > 0) return found;
        }
        return [255, 255, 255];
      };
      const found = [];
      const texts = 'h1, h3, p, .words, .facts, .badge, label, button, .axis, .name, .rows';
      for (const e of document.querySelectorAll(texts)) {
        if (!e.textContent.trim() || !e.offsetParent) continue;
        const both = [light(numbers(getComputedStyle(e).color)), light(ground(e))];
        const ratio = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
        if (ratio < 4.5) found.push([e.className || e.tagName, ratio]);
      }
      return found;
    })()
    """
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        visit(browser, server)
        press(browser, "k")
        browser.until("document.querySelectorAll('.badge.mine').length > 0")
        assert browser.value(script) == []
    browser.scheme("light")
