"""Links of the reports into the review app, in a real browser: from a page on the disk to the query."""

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.browser import Browser
from tests.review_page import press, visit
from tests.trainer.report.test_gallery import SPEC, add_round
from tests.vidcurate.curation.review.conftest import TOKEN, Server, curated, served
from trainer.report import command as report_command
from trainer.report import gallery
from trainer.run_folder import clip_losses, jsonl, metrics
from vidcurate.curation.report import review_link
from vidcurate.curation.report.build import run_report

pytestmark = pytest.mark.engine
HOSTILE = '"><img src=x onerror="document.title=\'owned\'">javascript:alert(1)'
HERE = "JSON.parse(decodeURIComponent(location.hash.slice(1)) || '{}')"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a curated run, its report and its videos."""
    home = tmp_path_factory.mktemp("links")
    curated(home)
    run_report(home / "run", videos=home / "data" / "videos")
    return home


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    yield from served(home / "run", home / "data" / "videos")


def follow(browser: Browser, page: Path, link: str, server: Server) -> dict[str, Any]:
    """Open a page from the disk, press Enter on a link, and return the query at which the app opens."""
    browser.open(page)
    browser.until(f"document.querySelector({json.dumps(link)}) !== null")
    found_at = f"document.querySelector({json.dumps(link)})"
    browser.value(f"({found_at}.closest('details')?.setAttribute('open', ''), {found_at}.focus())")
    assert browser.value(f"document.activeElement === {found_at}")
    press(browser, "Enter")
    browser.until(f"location.href.startsWith('{server.origin}/') && location.pathname === '/'")
    browser.until("document.querySelector('.card[aria-label], .empty') !== null")
    found: dict[str, Any] = browser.value(HERE)
    return found


def test_the_curation_report_leads_to_the_clip_the_rule_and_the_histogram(
    browser: Browser, server: Server, home: Path
) -> None:
    visit(browser, server)  # the browser has the cookie from here on
    page = home / "run" / "report.html"
    query = follow(browser, page, "#kept .id", server)
    (clip,) = query["clips"]
    browser.until("document.querySelector('#clip[open] .cells table') !== null")
    assert browser.value("document.getElementById('clip-title').textContent") == clip
    press(browser, "Escape")
    browser.until("!document.getElementById('clip').open")
    query = follow(browser, page, "#funnel tbody a", server)
    ((rule,),) = query["words"].values()
    counts = dict(server.session.rows.column("reject_rule").value_counts().iter_rows())
    browser.until(f"document.getElementById('count').textContent.startsWith('{counts[rule]} of ')")
    query = follow(browser, page, "#of-sharpness_median h3 a", server)
    assert query == {"ranges": {"sharpness_median": {}}}
    browser.until("document.querySelector('[data-column=sharpness_median] svg') !== null")
    browser.until(
        "(() => { const chart = document.querySelector('[data-column=sharpness_median]');"
        " const box = chart.getBoundingClientRect(); return box.top >= 0 && box.bottom <= innerHeight; })()"
    )
    assert browser.complaints == []


@pytest.fixture(scope="module")
def training(home: Path) -> Path:
    """The folder of a training run on the shards of the curation, with its report and its gallery."""
    run = home / "train"
    run.mkdir()
    stages = [{"name": "one", "data": {"shards": str(home / "run" / "shards")}}]
    (run / "recipe.json").write_text(json.dumps({"name": "linked", "stages": stages}))
    clips = pl.read_parquet(home / "run" / "split.parquet")["clip_id"].to_list()
    for step in range(1, 21):
        line = {"step": step, "stage": "one", "time": 100.0 + step, "seconds": 1.0, "data_seconds": 0.1}
        jsonl.append_line(run / metrics.METRICS, {**line, "loss": 5.0 if step == 12 else 1.0})
        if step % 4 == 0:
            some = clips[step : step + 3]
            clip_losses.append(
                run, step, "one", clip_ids=some, buckets=["32px"] * 3, levels=["1"] * 3,
                losses=[1.0, 9.0, 5.0] if step == 12 else [1.0] * 3, timesteps=[0.5] * 3,
            )  # fmt: skip
    damaged = {
        "event": "clip_substituted",
        "step": 9,
        "time": 109.5,
        "clip_id": clips[5],
        "fallback": clips[6],
    }
    jsonl.append_line(run / jsonl.EVENTS, damaged)
    add_round(run, 14, spec=SPEC.model_copy(update={"prompts": ("a blue square that moves",), "seeds": (0,)}))
    assert report_command.main([str(run)]) == 0
    gallery.write_gallery(run)
    return run


def test_the_run_report_leads_to_the_clips_of_a_step_and_of_an_event(
    browser: Browser, server: Server, home: Path, training: Path
) -> None:
    visit(browser, server)
    clips = pl.read_parquet(home / "run" / "split.parquet")["clip_id"].to_list()
    page = training / "report.html"
    # The step with the highest loss comes first, its clips by falling loss.
    step = follow(browser, page, "#losses tbody td a", server)
    assert step == {"clips": [clips[13], clips[14], clips[12]]}
    browser.until("document.getElementById('count').textContent.startsWith('3 of ')")
    shown = "[...document.querySelectorAll('.card')].map((card) => card.ariaLabel.split(',')[0])"
    assert browser.value(shown) == step["clips"]
    assert follow(browser, page, "#events dd a", server) == {"clips": [clips[5]]}
    browser.until("document.getElementById('clip').open")
    assert follow(browser, page, "#slowest td a", server) == {"clips": clips[4:7]}
    assert browser.complaints == []


def test_the_gallery_leads_to_the_clips_of_a_step_and_to_captions_like_a_prompt(
    browser: Browser, server: Server, home: Path, training: Path
) -> None:
    visit(browser, server)
    clips = pl.read_parquet(home / "run" / "split.parquet")["clip_id"].to_list()
    page = training / gallery.PAGE
    found = follow(browser, page, "thead th a", server)
    assert found == {"clips": clips[12:15]}
    assert follow(browser, page, "tbody th a", server) == {"text": "blue square moves"}
    captions = server.session.rows.column("caption").fill_null("").to_list()
    some = sum(all(word in one.lower() for word in ("blue", "square", "moves")) for one in captions)
    assert some > 0
    browser.until(f"document.getElementById('count').textContent.startsWith('{some} of ')")
    assert browser.value("document.getElementById('text').value") == "blue square moves"
    assert browser.complaints == []


def test_without_the_app_the_link_says_how_to_start_it_and_then_leads_on(
    browser: Browser, home: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(home / "run", run, ignore=shutil.ignore_patterns(".*"))
    (run / review_link.PAGE).write_bytes(review_link.page(None))
    browser.open(run / "report.html")
    browser.value("document.querySelector('#kept .id').click()")
    browser.until("location.pathname.endsWith('/review.html') && document.readyState === 'complete'")
    wanted = browser.value(HERE)
    assert f"vidcurate review {run}," in browser.value("document.body.textContent")
    for server in served(run, None):
        browser.until(f"location.href.startsWith('{server.origin}/open')")  # by itself
        browser.until("document.readyState === 'complete'")
        assert "has no token" in browser.value("document.body.textContent")  # and nothing else
        assert browser.value("document.cookie") == ""
        browser.call("Page.navigate", url=f"{server.origin}/?token={TOKEN}")
        browser.until("document.querySelector('.card[aria-label]') !== null")
        assert follow(browser, run / "report.html", "#kept .id", server) == wanted
    assert (run / review_link.PAGE).read_bytes() == review_link.page(None)


@contextmanager
def foreign(folder: Path) -> Iterator[str]:
    """Serve a folder from another origin, under a name that is another site."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            yield f"http://localhost:{other.server_port}"
        finally:
            other.shutdown()
            thread.join()


def test_a_foreign_page_can_link_to_a_query_and_neither_read_nor_frame_nor_write(
    browser: Browser, server: Server, tmp_path: Path
) -> None:
    visit(browser, server)
    query = {"clips": [HOSTILE], "text": HOSTILE, "words": {"reject_rule": [HOSTILE]}, "sort": "clip_id"}
    link = review_link.link(query, "open").removeprefix("open")
    (tmp_path / "page.html").write_text(
        f"<!doctype html><title>foreign</title><a href='{server.origin}/open{link}'>there</a>"
        f"<iframe src='{server.origin}/open{link}'></iframe>"
    )
    with foreign(tmp_path) as origin:
        browser.call("Page.navigate", url=f"{origin}/page.html")
        browser.until("document.title === 'foreign' && document.readyState === 'complete'")
        read = f"fetch('{server.origin}/api/run', {{credentials: 'include'}})"
        assert browser.value(f"{read}.then(() => 'read', () => 'refused')") == "refused"
        write = (
            f"fetch('{server.origin}/api/decide', {{method: 'POST', credentials: 'include', mode: 'no-cors',"
            " body: '{}'}).then((r) => r.type + r.status, () => 'refused')"
        )
        assert browser.value(write) in ("refused", "opaque0")
        assert browser.value("document.querySelector('iframe').contentDocument") is None
        browser.complaints.clear()
        browser.value("document.querySelector('a').click()")
        browser.until(f"location.href.startsWith('{server.origin}/#')")
        browser.until("document.querySelector('.empty') !== null")
        assert browser.value(HERE) == query
        assert browser.value("document.querySelector('#active').textContent.includes('onerror')")
        assert browser.value("document.querySelectorAll('#active img, #grid img').length") == 0
        assert browser.value("document.title").startswith("Review of ")
        assert browser.value("document.referrer") == ""
        assert browser.value("window.opener") is None
    assert server.session.book.counts()["keep"] == 0


def test_a_forged_fragment_does_not_lead_away_from_the_app(browser: Browser, server: Server) -> None:
    visit(browser, server)
    for fragment in (
        "#//evil.example/",
        "#javascript:document.title='owned'",
        "#%7B%22__proto__%22:1",
        "#[1]",
    ):
        browser.call("Page.navigate", url="about:blank")
        browser.call("Page.navigate", url=f"{server.origin}/open{fragment}")
        browser.until(f"location.origin === '{server.origin}' && location.pathname === '/'")
        browser.until("document.getElementById('count')?.textContent.includes('clips')")
        assert browser.value("document.title").startswith("Review of ")
