"""The gallery as a browser shows it from the disk: every clip plays, and new rounds appear by themselves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser
from tests.trainer.report.test_gallery import SPEC, add_round, add_steps
from trainer.report import gallery

pytestmark = pytest.mark.engine
PROMPTS = tuple(f"prompt {name}" for name in ("red", "green", "blue", "white"))
MANY = SPEC.model_copy(update={"prompts": PROMPTS, "seeds": (0,)})
NEAR = "[...document.querySelectorAll('video')].filter(clip => clip.src)"
HEADS = "[...document.querySelectorAll('thead th')].map(th => th.textContent)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "a run & more"
    run.mkdir()
    add_steps(run, 1, 200)
    for step in range(20, 200, 20):
        add_round(run, step, spec=MANY)
    add_round(run, 100, "low4s", spec=MANY)
    gallery.write_gallery(run)
    return run


def look(browser: Browser, run: Path, width: int = 1000) -> None:
    """Open the run's page and wait until its clips are there."""
    browser.leave()
    browser.size(width, 900)
    browser.open(run / gallery.PAGE)
    browser.until(f"{NEAR}.length > 0 && {NEAR}.every(clip => clip.dataset.state === 'ready')")


@pytest.mark.parametrize(("scheme", "paper"), [("light", "252, 252, 250"), ("dark", "22, 24, 27")])
def test_every_clip_near_the_window_plays_and_nothing_else_is_asked_for(
    browser: Browser, run: Path, scheme: str, paper: str
) -> None:
    browser.scheme(scheme)
    look(browser, run)

    browser.until(f"{NEAR}.every(clip => !clip.paused && clip.currentTime > 0)")
    assert browser.value(f"{NEAR}.every(clip => clip.videoWidth === 16)")
    assert browser.value("getComputedStyle(document.body).backgroundColor") == f"rgb({paper})"
    assert browser.value("document.querySelectorAll('video').length") == 36
    assert browser.value("document.querySelectorAll('#curve svg').length") == 1
    assert browser.complaints == []
    assert [url for url in browser.asked if url.startswith(("http", "ws"))] == []


def test_a_narrow_window_scrolls_the_clips_and_not_the_page(browser: Browser, run: Path) -> None:
    look(browser, run, width=400)

    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    assert browser.value("document.getElementById('scroll').scrollWidth > innerWidth")


def test_new_rounds_appear_and_neither_place_nor_play_is_lost(browser: Browser, run: Path) -> None:
    look(browser, run)
    browser.value("document.getElementById('scroll').scrollLeft = 200")
    first = "[...document.querySelectorAll('tbody td')].find(td => td.dataset.step === '60')"
    browser.value(f"(window.kept = {first}, window.left = kept.getBoundingClientRect().left, 1)")
    heads = browser.value(HEADS)

    add_round(run, 30, spec=MANY)  # an older one, which comes in to the left
    add_round(run, 200, spec=MANY)
    gallery.write_gallery(run)
    browser.until(f"{HEADS}.length === {len(heads) + 2}")

    assert browser.value(HEADS)[1:4] == ["step 20", "step 30", "step 40"]
    assert browser.value(HEADS)[-1] == "step 200"
    assert browser.value(f"kept.isConnected && kept === {first}")
    assert browser.value("Math.abs(kept.getBoundingClientRect().left - left)") < 2
    assert browser.complaints == []


def test_who_stands_at_the_newest_round_stays_there(browser: Browser, run: Path) -> None:
    look(browser, run)
    heads = len(browser.value(HEADS))
    at_end = (
        "(box => box.scrollLeft + box.clientWidth >= box.scrollWidth - 4)(document.getElementById('scroll'))"
    )
    assert browser.value(at_end)

    add_round(run, 200, spec=MANY)
    gallery.write_gallery(run)
    browser.until(f"{HEADS}.length === {heads + 1}")

    assert browser.value(at_end)


def test_the_loss_curve_grows_while_the_page_is_open(browser: Browser, run: Path) -> None:
    look(browser, run)
    assert "199 steps" in browser.value("document.getElementById('about').textContent")

    add_steps(run, 200, 300)
    gallery.write_gallery(run)

    browser.until("document.getElementById('about').textContent.includes('299 steps')")


def test_prompts_are_filtered_and_presets_switched(browser: Browser, run: Path) -> None:
    look(browser, run)
    rows = "[...document.querySelectorAll('tbody tr')].filter(tr => !tr.hidden).map(tr => tr.dataset.key)"

    browser.value("(box => { box.value = 'RED'; box.oninput(); })(document.getElementById('filter'))")
    assert browser.value(rows) == ["0|0|prompt red"]
    assert "1 of 4 rows" in browser.value("document.getElementById('said').textContent")
    browser.value("document.querySelectorAll('#tabs button')[1].click()")

    assert browser.value(rows) == ["0|0|prompt red"]  # the filter stays
    assert browser.value(HEADS) == ["prompt", "step 100"]
    assert browser.value("location.hash") == "#low4s"
    pressed = "[...document.querySelectorAll('#tabs button')].map(b => b.textContent + b.ariaPressed)"
    assert browser.value(pressed) == ["ownfalse", "low4strue"]


def test_all_clips_can_be_paused_and_begun_together(browser: Browser, run: Path) -> None:
    look(browser, run)

    browser.value("document.getElementById('play').click()")
    assert browser.value(f"{NEAR}.every(clip => clip.paused)")
    assert browser.value("document.getElementById('play').textContent") == "play all"
    # Read in the task in which they begin: a moment later each may have come to another frame.
    begun = "document.getElementById('together').onclick().then"
    times = browser.value(f"{begun}(() => {NEAR}.map(clip => clip.currentTime))")

    browser.until(f"{NEAR}.every(clip => !clip.paused)")
    assert max(times) - min(times) < 0.1


def test_a_missing_clip_says_so_and_a_broken_one_does_not_stop_the_page(browser: Browser, run: Path) -> None:
    add_round(run, 190, spec=MANY.model_copy(update={"prompts": PROMPTS[:2]}))
    gallery.write_gallery(run)
    (run / "samples/step-00000190/01-0.mp4").write_bytes(b"no video")
    look_at = "[...document.querySelectorAll('tbody td')].filter(td => td.dataset.step === '190')"

    browser.size(1000, 900)
    browser.open(run / gallery.PAGE)

    browser.until(f"{look_at}.length === 4 && {look_at}[0].firstChild.dataset.state === 'ready'")
    browser.until(f"{look_at}[1].firstChild.dataset.state === 'broken'")
    assert browser.value(f"{look_at}.slice(2).map(td => td.textContent)") == ["not sampled"] * 2


def test_a_prompt_is_text_whatever_substitutes_it(browser: Browser, tmp_path: Path) -> None:
    nasty = "</script><img src=x onerror=\"document.title='taken'\">"
    add_round(tmp_path, 4, spec=MANY.model_copy(update={"prompts": (nasty,)}))
    gallery.write_gallery(tmp_path)
    look(browser, tmp_path)

    assert browser.value("document.querySelector('tbody th').firstChild.textContent") == nasty
    assert browser.value("document.querySelectorAll('img').length") == 0
