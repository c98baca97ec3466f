"""The report as a browser shows it: light and dark, every section, no complaint, no request.

Without Chromium the structure of the same page is checked by reading it.
"""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from vidcurate.curation.clip_table import costs
from vidcurate.curation.demo_data import write as demo_data_write
from vidcurate.curation.report.build import run_report

RECIPE = """
run: {home}/run
workers: 2
ingest: {{metadata: {home}/data/captions.csv, videos: {home}/data/videos}}
score: {{noun_engine: builtin}}
frames: {{}}
dedup: {{perceptual: {{max_bits: 12, max_thumbnail_distance: 40}}}}
filter: {{limits: {{short_side: {{min: 32}}, aspect_ratio: {{max: 2}}, num_frames: {{min: 15}}}}}}
split: {{levels: 2, validation_fraction: 0.1}}
"""
SECTIONS = [
    "funnel", "spread", "levels", "copies", "reconciled", "failures", "kept", "rejected", "borderline",
    "shards", "costs", "provenance",
]  # fmt: skip
LIGHT, DARK = (252, 252, 250), (22, 24, 27)  # --paper of either scheme
SCHEMES = {"light": (1, LIGHT), "dark": (0, DARK)}  # Blink's number, the colour behind everything


@dataclass(frozen=True)
class Seen:
    """What a browser made of a page: its DOM as HTML, complaints on its console, addresses it asked for."""

    dom: str
    complaints: list[str]
    asked: list[str]
    picture: NDArray[np.uint8]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a whole curation of demo data, with pictures scored, copies looked for, and costs."""
    home = tmp_path_factory.mktemp("page")
    demo_data_write.write_demo_data(home / "data", clips=24, seed=3)
    (home / "recipe.yaml").write_text(RECIPE.format(home=home))
    subprocess.run(
        [sys.executable, "-m", "vidcurate", "curate", str(home / "recipe.yaml"), "--json"],
        check=True,
        capture_output=True,
    )
    return home / "run" / "report.html"


@pytest.fixture(scope="module")
def chromium() -> str:
    """The browser's path; skips where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium here: the page's structure is checked by reading it")
    return found


def look(chromium: str, page: Path, folder: Path, scheme: int) -> Seen:
    """Open `page` in Chromium with the colour scheme that is Blink's number `scheme`."""
    folder.mkdir(parents=True, exist_ok=True)
    base = [
        chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--blink-settings=preferredColorScheme={scheme}", f"--user-data-dir={folder / 'profile'}",
        "--enable-logging=stderr", "--window-size=1200,2000",
    ]  # fmt: skip
    net, shot = folder / "net.json", folder / "shot.png"
    dumped = subprocess.run(
        [*base, "--dump-dom", f"--log-net-log={net}", "--net-log-capture-mode=Everything", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    subprocess.run(
        [*base, f"--screenshot={shot}", page.as_uri()], capture_output=True, timeout=600, check=True
    )
    complaints = [line for line in dumped.stderr.splitlines() if "CONSOLE" in line]
    with av.open(str(shot)) as container:
        picture = next(container.decode(video=0)).to_ndarray(format="rgb24")
    return Seen(dom=dumped.stdout, complaints=complaints, asked=_asked(net), picture=picture)


def _asked(net: Path) -> list[str]:
    """Return the http addresses that the log of a browser's network names as requests."""
    text = net.read_text(encoding="utf-8", errors="replace")
    urls = re.findall(r'"url":"(https?://[^"]+)"', text)
    return sorted({url for url in urls if not re.search(r"//[\w.-]*(google|gstatic|gvt1)\w*\.", url)})


class _Sections(HTMLParser):
    """Collects the ids of the sections and what is in each: its words and its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: dict[str, list[str]] = {}
        self.tags: dict[str, list[str]] = {}
        self._now: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "section":
            self._now = dict(attrs).get("id") or ""
            self.words[self._now], self.tags[self._now] = [], []
        if self._now is not None:
            self.tags[self._now].append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "section":
            self._now = None

    def handle_data(self, data: str) -> None:
        if self._now is not None:
            self.words[self._now].append(data)


def check_sections(html: str) -> None:
    """Assert what the page must show, from its HTML: as written or as a browser holds it."""
    found = _Sections(html)
    assert list(found.words) == SECTIONS
    words = {name: " ".join(" ".join(parts).split()) for name, parts in found.words.items()}
    for stage in ("ingest", "probe", "score", "frames", "dedup", "filter", "split"):
        assert re.search(rf"\b{stage}\b", words["funnel"]), stage
    assert "to the level index" in words["funnel"]
    for title in ("Motion (median)", "Sharpness (median)", "Nouns in the caption"):
        assert title in words["spread"]
    assert "The same for every clip" in words["spread"]
    assert "black share 0" in words["spread"]
    assert "min 15" in words["spread"]  # the limit that is drawn in
    assert "max 2" in words["spread"]
    assert "Caption length by level" in words["levels"]
    assert "Ramp into each level" in words["levels"]
    assert "Tail:" in words["levels"]
    assert "preferred" in words["copies"]
    assert found.tags["copies"].count("img") >= 2
    assert "unreadable" in words["failures"]
    assert "ends at byte" in words["failures"]
    assert found.tags["kept"].count("figure") == found.tags["kept"].count("img") > 5
    assert found.tags["rejected"].count("figure") > 5
    assert "num_frames ≥ 15" in words["borderline"]
    assert re.search(r"\d+ kept .*\d+ rejected", words["borderline"])
    for command in costs.MADE:
        assert (f"{command} 26 1 " in words["costs"]) == (command != "score-models"), command
    assert "CPU hours per million clips" in words["costs"]


def test_the_page_as_written_has_every_section(page: Path) -> None:
    check_sections(page.read_text(encoding="utf-8"))


def test_the_page_is_small_and_its_bytes_are_the_runs(page: Path) -> None:
    before = page.read_bytes()
    assert len(before) < 3_000_000
    assert run_report(page.parent, videos=page.parents[1] / "data" / "videos").up_to_date
    page.unlink()
    run_report(page.parent, videos=page.parents[1] / "data" / "videos")
    assert page.read_bytes() == before


@pytest.mark.engine
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_browser_shows_every_section_and_asks_for_nothing(
    page: Path, chromium: str, scheme: str, tmp_path: Path
) -> None:
    number, paper = SCHEMES[scheme]
    seen = look(chromium, page, tmp_path, number)

    check_sections(seen.dom)
    assert seen.complaints == []
    assert seen.asked == []
    # The margin has the colour of the scheme, and text stands out against it.
    assert np.abs(seen.picture[:, :8].astype(int) - paper).max() <= 1
    assert np.abs(seen.picture.astype(int) - paper).sum(axis=2).max() > 400


@pytest.mark.engine
def test_a_page_that_asks_and_complains_would_be_seen(chromium: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<p>x</p><img src='http://127.0.0.1:9/never.png'><script>console.error('no'); nothing()</script>"
    )
    seen = look(chromium, bad, tmp_path / "profile", 1)

    assert seen.asked == ["http://127.0.0.1:9/never.png"]
    assert any("nothing is not defined" in line for line in seen.complaints)


def test_what_a_stage_cost_adds_up_until_it_is_done(tmp_path: Path, page: Path) -> None:
    for name in ("ingest", "probe"):
        shutil.copy(page.parent / f"{name}.parquet", tmp_path)
    (tmp_path / "probe.parquet").unlink()
    with pytest.raises(KeyboardInterrupt), costs.measured(tmp_path, "probe"):
        raise KeyboardInterrupt  # stopped: a call that did not finish
    assert costs.read_costs(tmp_path) == []
    with costs.measured(tmp_path, "probe"):
        shutil.copy(page.parent / "probe.parquet", tmp_path)
        sum(range(2_000_000))
    with costs.measured(tmp_path, "probe"):  # found its work done
        pass
    lines = [json.loads(line) for line in (tmp_path / costs.COSTS).read_text().splitlines()]
    (reported,) = costs.read_costs(tmp_path)

    assert [line["is_done"] for line in lines] == [False, True]
    assert reported["calls"] == 2
    assert reported["cpu_seconds"] == pytest.approx(sum(line["cpu_seconds"] for line in lines))
    assert reported["cpu_seconds"] > 0
    assert reported["cpu_hours_per_million_clips"] == pytest.approx(
        reported["cpu_seconds"] / reported["rows"] * 1e6 / 3600
    )
