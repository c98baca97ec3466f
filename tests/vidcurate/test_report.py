"""The report: one page that stands alone, says what the tables say, and believes no caption."""

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import av
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.shard_runs import write_table
from vidcurate import synthetic, table
from vidcurate.difficulty import SplitSpec, run_split
from vidcurate.errors import InputError, StageError, StorageError, TableError
from vidcurate.filter import FilterSpec, run_filter
from vidcurate.ingest import IngestSpec, run_ingest
from vidcurate.probe import ProbeSpec, run_probe
from vidcurate.report import charts, funnel, run_report, sheet
from vidcurate.report.charts import Series, Span
from vidcurate.score import ScoreSpec, run_score
from vidcurate.shards import ShardSpec, run_build_shards

_VOID = {"meta", "img", "br"}
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></title><svg onload=alert(1)>",
    "{{ 7 * 7 }} {% include 'x' %}",
    "javascript:alert(1) &lt;b&gt;",
    "right \u202e to left, bell \x07, escape \x1b[31m",
]


class _Page(HTMLParser):
    """Collects tags and text, and fails on a tag that is not closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def _page(run: Path) -> _Page:
    return _Page((run / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "data"
    synthetic.write_demo_data(out, clips=60, seed=2)
    return out


@pytest.fixture(scope="module")
def run(demo: Path) -> Path:
    """A whole curation of demo data, with its report."""
    run = demo.parent / "run"
    videos = demo / "videos"
    run_ingest(run, IngestSpec(metadata=demo / "captions.csv", videos=videos))
    run_probe(run, ProbeSpec(videos=videos))
    run_score(run, ScoreSpec(noun_engine="builtin"))
    run_filter(run, FilterSpec(min_short_side=32, min_num_frames=8, max_aspect_ratio=2, min_aspect_ratio=0.5))
    run_split(run, SplitSpec(levels=2, validation_fraction=0.1))
    run_build_shards(run, ShardSpec(), videos=videos, out=run / "shards", num_workers=1)
    run_report(run, videos=videos)
    return run


# ── a page that stands alone ────────────────────────────────────────────────────────────────────────────


def test_the_page_asks_nobody_for_anything(run: Path) -> None:
    text = (run / "report.html").read_text(encoding="utf-8")
    page = _page(run)

    assert not page.named("script")
    assert not page.named("link")
    assert not page.named("iframe")
    assert not re.search(r"https?://|url\(|@import", text)
    assert all((image["src"] or "").startswith("data:image/jpeg;base64,") for image in page.named("img"))
    assert all((link["href"] or "").startswith("#") for link in page.named("a"))
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    policies = [meta["content"] for meta in page.named("meta") if "http-equiv" in meta]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_every_link_inside_the_page_has_its_place(run: Path) -> None:
    page = _page(run)
    places = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(places) == len(set(places))
    assert {(link["href"] or "")[1:] for link in page.named("a")} <= set(places)


def test_every_picture_says_in_words_what_it_shows(run: Path) -> None:
    page = _page(run)
    assert all(image["alt"] for image in page.named("img"))
    assert all(drawing["role"] == "img" and drawing["aria-label"] for drawing in page.named("svg"))
    assert page.named("html")[0]["lang"] == "en"


def test_the_same_run_gives_the_same_bytes(run: Path, demo: Path) -> None:
    before = (run / "report.html").read_bytes()
    again = run_report(run, videos=demo / "videos")
    assert again.up_to_date
    assert (run / "report.html").read_bytes() == before
    assert again.size_bytes == len(before)

    (run / "report.html").unlink()
    assert not run_report(run, videos=demo / "videos").up_to_date
    assert (run / "report.html").read_bytes() == before


def test_the_page_is_for_light_and_dark_and_says_so(run: Path) -> None:
    text = (run / "report.html").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", text, flags=re.DOTALL)[:2]
    names = re.findall(r"(--[\w-]+):", light)
    assert names
    assert names == re.findall(r"(--[\w-]+):", dark), "a colour has no dark twin"
    assert set(re.findall(r"var\((--[\w-]+)\)", text)) <= set(names)


# ── what it says ────────────────────────────────────────────────────────────────────────────────────────


def test_the_numbers_are_those_of_the_tables(run: Path, demo: Path) -> None:
    clips = table.scan(run, "split").collect()
    kept = int(clips["is_kept"].sum())
    summary = run_report(run, videos=demo / "videos")
    words = _page(run).words()

    assert (summary.rows_in, summary.rows_kept) == (clips.height, kept)
    assert summary.rows_in == summary.rows_kept + summary.rows_rejected
    assert f"{kept} of {clips.height} clips kept" in words
    for rule, count in clips["reject_rule"].drop_nulls().value_counts().iter_rows():
        assert rule in words, (rule, count)
    for level, count in clips["level"].drop_nulls().value_counts().iter_rows():
        assert f"{level} {count} " in words


def test_the_funnel_ends_with_the_clips_that_are_kept(run: Path) -> None:
    clips = table.scan(run, "split").collect()
    steps = json.loads((run / "funnel.json").read_text())
    left = re.findall(r'<td class="n">[\d,]+</td><td class="n">([\d,]+)</td></tr>', _text(run))
    assert [int(number) for number in left[: len(steps)]] == [step["kept"] for step in steps]
    assert steps[-1]["kept"] == clips["is_kept"].sum()


def _text(run: Path) -> str:
    return (run / "report.html").read_text(encoding="utf-8")


def test_what_the_split_drops_is_a_step_of_the_funnel(run: Path, demo: Path, tmp_path: Path) -> None:
    for stage in ("ingest", "probe", "score", "filter"):
        (tmp_path / f"{stage}.parquet").write_bytes((run / f"{stage}.parquet").read_bytes())
    (tmp_path / "funnel.json").write_bytes((run / "funnel.json").read_bytes())
    split = run_split(tmp_path, SplitSpec(levels=2, drop_hardest=0.2))
    assert split.rows_dropped_here

    summary = run_report(tmp_path, videos=demo / "videos")

    assert summary.rows_kept == split.rows_kept
    found = re.search(r"<code>drop_hardest</code>.*?</tr>", _text(tmp_path), flags=re.DOTALL)
    assert found
    assert f'<td class="n">{split.rows_dropped_here}</td><td class="n">{split.rows_kept}</td>' in found[0]


def test_the_reconciliation_names_what_was_planted(run: Path) -> None:
    words = _page(run).words()
    for meaning in ("rows whose file is not there", "files that no row names", "rows that stand twice"):
        assert f"1 {meaning}" in words
    assert synthetic.write.MISSING_NAME in words


def test_limits_of_the_filter_are_drawn_into_the_histograms(run: Path) -> None:
    text = _text(run)
    for label in ("min 32", "min 8", "min 0.5", "max 2"):
        assert re.search(rf'<text class="limit"[^>]*>{label}</text>', text), label


def test_a_score_that_the_filter_limits_has_a_histogram(run: Path, tmp_path: Path, demo: Path) -> None:
    for stage in ("ingest", "probe", "score"):
        (tmp_path / f"{stage}.parquet").write_bytes((run / f"{stage}.parquet").read_bytes())
    spec = FilterSpec.model_validate_json('{"limits": {"aesthetic_score": {"min": 4.5}}}')
    run_filter(tmp_path, spec)
    run_report(tmp_path, videos=demo / "videos")
    assert "Aesthetic score" in _page(tmp_path).words()
    assert re.search(r'<text class="limit"[^>]*>min 4.5</text>', _text(tmp_path))


def test_a_report_is_written_after_each_stage(run: Path, demo: Path, tmp_path: Path) -> None:
    pages = []
    for stage in ("ingest", "probe", "score", "filter", "split"):
        (tmp_path / f"{stage}.parquet").write_bytes((run / f"{stage}.parquet").read_bytes())
        if stage == "split":
            (tmp_path / "levels.json").write_bytes((run / "levels.json").read_bytes())
        summary = run_report(tmp_path, videos=demo / "videos")
        assert summary.rows_in == summary.rows_kept + summary.rows_rejected
        pages.append(_page(tmp_path).words())

    assert all("No filter has been run yet" in words for words in pages[:3])
    assert not any("No filter has been run yet" in words for words in pages[3:])
    # The funnel is counted from the table where funnel.json is not there.
    assert "truncated" in pages[3]
    assert "Levels and jumps" in pages[4]


def test_one_name_in_two_stages_is_two_rules(tmp_path: Path) -> None:
    rows = [
        {
            "clip_id": name,
            "sample_key": name,
            "source_dataset": "made",
            "source_id": name,
            "video_path": f"{name}.mp4",
            "caption": name,
            "ingest_problem": None,
            "is_kept": stage is None,
            "reject_stage": stage,
            "reject_rule": stage and "unreadable",
            "reject_value": stage and f"{name} at {stage}",
            "reject_threshold": stage and "ok",
        }
        for name, stage in (("a", "probe"), ("b", "probe"), ("c", "frames"), ("d", None))
    ]
    write_table(tmp_path, rows, "filter")
    steps = [
        {"rule": "unreadable", "stage": "probe", "threshold": "ok", "rows_in": 4, "rejected": 2, "kept": 2},
        {"rule": "unreadable", "stage": "frames", "threshold": "ok", "rows_in": 2, "rejected": 1, "kept": 1},
    ]
    (tmp_path / "funnel.json").write_text(json.dumps(steps))
    judged = table.scan(tmp_path, "filter")

    found = funnel.failures(judged, steps)
    assert [[clip["clip_id"] for clip in one["clips"]] for one in found] == [["a", "b"], ["c"]]
    assert [one["more"] for one in found] == [0, 0]
    assert [row["rejected"] for row in funnel.by_stage(tmp_path, judged, steps, 4)] == [2, 1, 0]
    assert sheet.choose_rejected(judged, [step["rule"] for step in steps], 9) == ["a", "b", "c"]
    run_report(tmp_path)
    assert _page(tmp_path).words().count("c at frames") == 3  # an example, a failure, a card


# ── pictures ────────────────────────────────────────────────────────────────────────────────────────────


def _decoded(uri: str) -> NDArray[np.uint8]:
    data = base64.b64decode(uri.removeprefix("data:image/jpeg;base64,"))
    with av.open(io.BytesIO(data), format="image2") as container:
        image: NDArray[np.uint8] = next(container.decode(video=0)).to_ndarray(format="rgb24")
        return image


def test_a_strip_shows_three_frames_of_its_clip(run: Path) -> None:
    images = _page(run).named("img")
    easy = [
        image
        for image in images
        if re.search(r": A red \w+ moves (up|down|to the \w+)\.$", image["alt"] or "")
    ]
    assert easy
    for image in easy:
        strip = _decoded(image["src"] or "")
        assert strip.shape[:2] == (int(image["height"] or 0), int(image["width"] or 0))
        assert strip.shape[0] == sheet.STRIP_HEIGHT
        for part in np.array_split(strip, 3, axis=1):
            red = (part[..., 0] > 150) & (part[..., 1] < 110) & (part[..., 2] < 110)
            assert red.mean() > 0.02, image["alt"]


def test_a_clip_without_a_picture_says_why(run: Path) -> None:
    page = _page(run)
    reasons = [drawing["aria-label"] or "" for drawing in page.named("svg")]
    assert any("there is no file" in reason for reason in reasons)
    assert any("not a video that FFmpeg opens" in reason for reason in reasons)


def test_damage_that_no_header_tells_is_seen_on_the_sheet(demo: Path) -> None:
    truth = json.loads((demo / "truth.json").read_text())["clips"]
    name = next(name for name, clip in truth.items() if clip["planted"] == "truncated_faststart")
    card = sheet.card({**truth[name], "video_path": name, "clip_id": name}, demo / "videos")
    assert card.image is not None
    assert card.why is not None
    assert "of 3 wanted frames decoded" in card.why


def test_a_path_that_leaves_the_folder_is_not_read(demo: Path, tmp_path: Path) -> None:
    clip = {"clip_id": "x", "num_frames": 4, "width": 64, "height": 64}
    name = next((demo / "videos").glob("*.webm")).name
    inside = sheet.card({**clip, "video_path": name}, demo / "videos")
    (tmp_path / "link.webm").symlink_to(demo / "videos" / name)
    assert inside.image is not None
    for path, folder in ((f"../videos/../videos/../../{demo.name}/captions.csv", demo / "videos"),):
        assert sheet.card({**clip, "video_path": path}, folder).why == "the path leaves the folder of videos"
    assert (
        sheet.card({**clip, "video_path": "link.webm"}, tmp_path).why
        == "the path leaves the folder of videos"
    )


def test_a_long_clip_is_sought_and_an_interval_kept(make_video) -> None:  # type: ignore[no-untyped-def]
    path = make_video("long.mp4", num_frames=200, gop=20)
    whole = {
        "clip_id": "x",
        "video_path": path.name,
        "num_frames": 200,
        "width": 96,
        "height": 64,
        "fps": 24.0,
    }
    assert sheet._frame_numbers(whole) == [33, 100, 166]
    part = {**whole, "start_seconds": 5.0, "num_frames": 24}
    assert sheet._frame_numbers(part) == [124, 132, 140]
    shown = sheet.card(whole, path.parent)
    assert shown.image is not None
    assert shown.why is None
    assert (shown.image_width, shown.image_height) == (3 * 144 + 2 * 2, 96)


def test_without_videos_the_page_has_words_only(run: Path, tmp_path: Path) -> None:
    (tmp_path / "ingest.parquet").write_bytes((run / "ingest.parquet").read_bytes())
    assert run_report(tmp_path).clips_shown
    assert not _page(tmp_path).named("img")
    assert "no folder of videos was given" in _text(tmp_path)


def test_the_sheets_show_every_level_and_every_rule(run: Path) -> None:
    judged = table.scan(run, "split")
    clips = judged.collect()
    rules = [step["rule"] for step in json.loads((run / "funnel.json").read_text())]
    kept = sheet.choose_kept(judged, 8)
    chosen = clips.filter(pl.col("clip_id").is_in(kept))
    assert len(kept) == len(set(kept)) == 8
    assert chosen["level"].value_counts().sort("level")["count"].to_list() == [4, 4]
    assert chosen["is_kept"].all()

    dropped = sheet.choose_rejected(judged, rules, len(rules))
    assert [clips.filter(pl.col("clip_id") == clip_id)["reject_rule"].item() for clip_id in dropped] == rules
    assert sheet.choose_rejected(judged, rules, 3) == dropped[:3]
    assert len(sheet.choose_rejected(judged, rules, 10_000)) == clips.filter(~pl.col("is_kept")).height


# ── input that is not to be believed ────────────────────────────────────────────────────────────────────


def _hostile_run(folder: Path, words: list[str]) -> Path:
    rows = [
        {
            "clip_id": f"{number} {text}",
            "sample_key": f"clip{number}",
            "source_dataset": text,
            "source_id": text,
            "video_path": f"{text}.mp4",
            "caption": text,
            "width": 64,
            "height": 64,
            "fps": 8.0,
            "num_frames": 8,
            "duration_seconds": 1.0,
            "ingest_problem": None,
            "codec": text,
            "noun_count": number,
            "is_kept": number % 2 == 0,
            "reject_stage": None if number % 2 == 0 else text,
            "reject_rule": None if number % 2 == 0 else text,
            "reject_value": None if number % 2 == 0 else text,
            "reject_threshold": None if number % 2 == 0 else text,
        }
        for number, text in enumerate(words)
    ]
    finding = {"count": 1, "listed": [{"row": 1, "clip_id": words[0], "path": words[1]}]}
    folder.mkdir(exist_ok=True)
    write_table(folder, rows, "filter")
    (folder / "reconcile.json").write_text(
        json.dumps(
            {
                "schema": words[0],
                "reason": words[1],
                "metadata_rows": 1,
                "rows_in": 1,
                "rows_kept": 1,
                "dropped_columns": words,
                "missing_files": finding,
            }
        )
    )
    return folder


def test_no_word_of_the_input_becomes_a_tag(tmp_path: Path) -> None:
    run = _hostile_run(tmp_path / "run", [*HOSTILE, *HOSTILE[:1]])
    (tmp_path / "videos").mkdir()

    run_report(run, videos=tmp_path / "videos")

    text, page = _text(run), _page(run)
    assert not page.named("script")
    assert not page.named("img")
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "49" not in page.words().split()
    assert "<script>alert(1)</script>" in page.words()  # as text
    assert "{{ 7 * 7 }}" in page.words()
    assert "\x07" not in text
    assert "\x1b" not in text
    assert text.count("<bdi>") == text.count("</bdi>")


@settings(max_examples=12, deadline=None)
@given(st.lists(st.text(max_size=40), min_size=2, max_size=5))
def test_any_text_at_all_stays_text(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    clean = [word.encode("utf-8", "ignore").decode() for word in words]
    run = _hostile_run(tmp_path_factory.mktemp("any") / "run", [f"<b>{word}" for word in clean])
    run_report(run)
    assert not _page(run).named("b")


# ── charts ──────────────────────────────────────────────────────────────────────────────────────────────


def _series(*values: list[float]) -> list[Series]:
    return [
        Series(name=f"part {number}", ink="keep", values=np.array(part, dtype=np.float64))
        for number, part in enumerate(values)
    ]


@settings(deadline=None)
@given(
    st.lists(
        st.lists(
            st.floats(-1e12, 1e12) | st.integers(-50, 50).map(float) | st.just(float("nan")), max_size=40
        ),
        min_size=1,
        max_size=3,
    ),
    st.lists(st.floats(-1e6, 1e6), max_size=2),
)
def test_every_value_is_in_one_bar(parts: list[list[float]], limits: list[float]) -> None:
    series = _series(*parts)
    found = charts.bars(series, limits)
    known = [int(np.isfinite(part.values).sum()) for part in series]
    assert found.counts.sum(axis=1).tolist() == known
    assert (np.diff(found.edges) > 0).all()
    assert found.counts.shape[1] <= 40
    _Page(str(charts.histogram(series, title="t", thresholds=[("min", limit) for limit in limits])))


def test_few_whole_numbers_have_a_bar_each() -> None:
    found = charts.bars(_series([1, 1, 2, 4], [2]))
    assert found.edges.tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert found.counts.tolist() == [[2, 1, 0, 1], [0, 1, 0, 0]]


def test_a_long_tail_goes_into_the_last_bar() -> None:
    values = [*np.linspace(0, 10, 99).tolist(), 10_000.0]
    found = charts.bars(_series(values))
    assert found.edges[-1] < 20
    assert found.num_beyond == 1
    assert "and more" in charts.histogram(_series(values), title="t")
    # A limit out there keeps the axis.
    assert charts.bars(_series(values), [9_000.0]).edges[-1] > 9_000


def test_a_histogram_says_its_counts_and_limits_in_words() -> None:
    drawn = charts.histogram(
        [
            Series(name="kept", ink="keep", values=np.array([1.0, 2.0, 3.0])),
            Series(name="rejected", ink="drop", values=np.array([0.25])),
        ],
        title="Length <b>",
        unit="s",
        thresholds=[("min", 0.5)],
    )
    label = _Page(str(drawn)).named("svg")[0]["aria-label"]
    assert label == (
        "Length <b> in s: 3 kept, from 1 to 3, median 2; 1 rejected, from 0.25 to 0.25, median 0.25; min 0.5"
    )
    assert "<b>" not in drawn


@pytest.mark.parametrize(
    ("low", "high", "count", "wanted"),
    [
        (0, 10, 5, [0, 2, 4, 6, 8, 10]),
        (0.1, 0.35, 3, [0.1, 0.2, 0.3]),
        (3, 3, 4, [3]),
        (-5, 5, 2, [-5, 0, 5]),
        (0, 322, 3, [0, 200]),
    ],
)
def test_ticks_are_round(low: float, high: float, count: int, wanted: list[float]) -> None:
    assert charts.ticks(low, high, count) == wanted


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (1234567, "1,234,567"), (0.5625, "0.562"), (29.97, "30"), (12.0, "12"), (float("nan"), "–")],
)
def test_numbers_are_shown_without_idle_digits(value: float, words: str) -> None:
    assert charts.shown(value) == words


def test_levels_of_one_value_can_be_drawn() -> None:
    rows = [
        Span(name=f"level {n}", ink=f"level-{n}", low=2.0, high=2.0, mean=2.0, spread=0.0) for n in (1, 2)
    ]
    page = _Page(str(charts.spans(rows, title="nouns")))
    assert len(page.named("circle")) == 2
    assert page.named("svg")[0]["aria-label"] == "nouns: level 1: 2 to 2, mean 2; level 2: 2 to 2, mean 2"


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────


def test_what_cannot_be_reported_is_one_line(run: Path, demo: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="no table of any stage"):
        run_report(tmp_path)
    (tmp_path / "ingest.parquet").write_bytes((run / "ingest.parquet").read_bytes())
    with pytest.raises(InputError, match=r"nowhere: no such folder of videos"):
        run_report(tmp_path, videos=tmp_path / "nowhere")
    (tmp_path / "reconcile.json").write_text("{")
    with pytest.raises(TableError, match=r"reconcile\.json: cannot be read as JSON"):
        run_report(tmp_path)
    (tmp_path / "reconcile.json").unlink()
    (tmp_path / "report.html").mkdir()
    with pytest.raises(StorageError, match=r"report\.html: cannot be written"):
        run_report(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ingest.parquet", "report.html"]


def test_an_old_table_is_not_reported(run: Path, tmp_path: Path) -> None:
    for stage in ("ingest", "probe"):
        (tmp_path / f"{stage}.parquet").write_bytes((run / f"{stage}.parquet").read_bytes())
    write_table(tmp_path, [{"clip_id": "x", "source_id": "x", "source_dataset": "x"}], "ingest")
    with pytest.raises(StageError, match="made from an older"):
        run_report(tmp_path)
