"""Pages at every window size, in a real browser: what plays keeps playing, nothing is cut off."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser
from tests.review_page import press, visit
from tests.trainer.shards_for_tests import smoke
from tests.vidcurate.curation.review.conftest import Server, curated, served
from trainer.report import command as report_command
from trainer.report import gallery
from trainer.run_folder import jsonl
from trainer.train import train
from vidcurate.curation.report.build import run_report, with_breaks
from vidcurate.shards.build import run_build_shards
from vidcurate.shards.layout import ShardSpec

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a curated run and its videos."""
    home = tmp_path_factory.mktemp("sizes")
    curated(home)
    return home


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    yield from served(home / "run", home / "data" / "videos")


# Texts of charts that leave their panel, or lie over one another.
TEXTS = """
(() => {
  const found = [];
  for (const svg of [...document.querySelectorAll('svg[viewBox]')].filter((one) => one.checkVisibility())) {
    const box = (svg.closest('.panel') ?? svg).getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')]
      .map((one) => [one.textContent, one.getBoundingClientRect()]);
    for (const [text, at] of texts)
      if (at.left < box.left - 1 || at.right > box.right + 1) found.push(`cut: ${text}`);
    texts.forEach(([text, a], number) => texts.slice(number + 1).forEach(([other, b]) => {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 3) found.push(`${text} over ${other}`);
    }));
  }
  return found;
})()
"""
# Cells that reach out of the window or hide a part of their text; rows of videos scroll by design.
CUT = """
[...document.querySelectorAll('td, th, dd, dt, p, h1, h2, h3, li, summary')].filter((one) => {
  if (!one.checkVisibility() || one.closest('.scroll')?.querySelector('video')) return false;
  const box = one.getBoundingClientRect(), around = one.closest('.scroll')?.getBoundingClientRect();
  const isHiding = ['hidden', 'clip'].includes(getComputedStyle(one).overflowX);
  const isOut = box.left < -1 || box.right > Math.min(innerWidth, around?.right ?? innerWidth) + 1;
  return isOut || (isHiding && one.scrollWidth > one.clientWidth + 1);
}).map((one) => one.outerHTML.slice(0, 200))
"""

# Numbers in cells of tables that begin on one line and end on another.
NUMBERS = r"""
[...document.querySelectorAll('td, th, .moment')].filter((one) => one.checkVisibility()).flatMap((one) => {
  const texts = document.createTreeWalker(one, NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode())
    for (const match of texts.currentNode.data.matchAll(/(?<![\w-])\d[\d.,]*(e[+-]?\d+)?(?![\w-])/g)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, match.index);
      range.setEnd(texts.currentNode, match.index + match[0].length);
      if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1)
        found.push(match[0]);
    }
  return found;
})
"""


@pytest.fixture(scope="module")
def training(home: Path) -> Path:
    """A training run on the shards of the curation, with a report and a gallery."""
    run, videos = home / "run", home / "data" / "videos"
    run_build_shards(run, ShardSpec(), videos=videos, out=run / "shards")
    more = ("stages.0.steps=16", "stages.0.clip_losses_every=1", "sample.every=4", "preflight.at_start=false")
    train(smoke(home / "run" / "shards", home / "train", *more))
    digest = {"event": "comet", "step": 3, "time": 1.0, "fingerprint": "0f" * 32, "words": "x" * 200}
    jsonl.append_line(home / "train" / jsonl.EVENTS, digest)
    slow = {"buckets": "2x32px-8f-0.50 2x32px-8f-1.00", "tokens_per_second": 7546.5, "usual": 41026.3}
    rate = {"event": "throughput_drop", "step": 9, "time": 2.0, **slow, "share": 0.521, "advice": "wait"}
    jsonl.append_line(home / "train" / jsonl.EVENTS, rate)
    run_report(home / "run", videos=home / "data" / "videos")
    assert report_command.main([str(home / "train")]) == 0
    gallery.write_gallery(home / "train")
    return home / "train"


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize(
    "name", ["run/report.html", "train/report.html", "train/gallery.html", "run/review.html"]
)
def test_no_page_scrolls_sideways_and_nothing_is_cut_off(
    browser: Browser, training: Path, name: str, width: int
) -> None:
    browser.size(width, 850)
    try:
        browser.open(training.parent / name)
        if name.endswith("gallery.html"):
            browser.until("document.querySelectorAll('tbody video').length > 0")
        browser.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert browser.value("document.documentElement.scrollWidth <= innerWidth")
        assert browser.value(CUT) == []
        assert browser.value(TEXTS) == []
        assert browser.value(NUMBERS) == []
    finally:
        browser.size(1200, 800)


# Names of rules of which a piece between two places to break lies on two lines.
BROKEN = """
[...document.querySelectorAll('code:has(wbr), .measured:has(wbr)')].flatMap((one) => {
  const texts = document.createTreeWalker(one, NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(texts.currentNode);
    if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1)
      found.push(texts.currentNode.data);
  }
  return found;
})
"""


@pytest.mark.parametrize("width", [390, 1200])
def test_a_long_name_of_a_rule_breaks_between_its_words(browser: Browser, training: Path, width: int) -> None:
    name = with_breaks("minimum_optical_flow_between_neighbouring_frames.of_the_second_half")
    rule = "document.querySelector('#funnel table:not(#stages) tbody th code')"
    browser.size(width, 850)
    try:
        browser.open(training.parent / "run" / "report.html")
        assert browser.value("document.querySelectorAll('#funnel th code:has(wbr)').length > 0")
        browser.value(f"{rule}.innerHTML = {json.dumps(name)}")
        assert browser.value(BROKEN) == []
        if width == 390:
            assert browser.value(f"{rule}.getClientRects().length > 1")
        assert browser.value("document.documentElement.scrollWidth <= innerWidth")
        browser.value(f"{rule}.innerHTML = 'a_<wbr>' + 'b'.repeat(200)")
        browser.value(f"{rule}.style = 'white-space: normal; overflow-wrap: anywhere'")
        assert len(browser.value(BROKEN)) == 1  # a name that breaks inside a word would be seen
    finally:
        browser.size(1200, 800)


def test_a_page_that_is_cut_off_would_be_seen(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<table><tr><td><div style='width: 2000px'>wide</div></td></tr></table>"
        "<table><tr><td style='width: 1px'>4.402e-05</td></tr></table>"
        "<svg viewBox='0 0 100 20'><text x='0' y='10'>one</text><text x='2' y='10'>two</text>"
        "<text x='95' y='10'>far too long</text></svg>"
    )
    browser.open(page)
    assert not browser.value("document.documentElement.scrollWidth <= innerWidth")
    assert len(browser.value(CUT)) == 1
    assert browser.value(TEXTS) == ["cut: far too long", "one over two"]
    assert browser.value(NUMBERS) == ["4.402e-05"]


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
