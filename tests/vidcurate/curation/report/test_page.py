"""A page that stands alone and says what the tables say."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.shard_runs import write_table
from tests.vidcurate.curation.report.made import read_page, text_of
from vidcurate.curation import demo_data
from vidcurate.curation.clip_table import costs, table
from vidcurate.curation.difficulty.spec import SplitSpec
from vidcurate.curation.difficulty.stage import run_split
from vidcurate.curation.filter.spec import FilterSpec
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.report import contact_sheet, facts, funnel
from vidcurate.curation.report.build import run_report
from vidcurate.errors import InputError, StageError, StorageError, TableError


def test_the_page_asks_nobody_for_anything(run: Path) -> None:
    text = (run / "report.html").read_text(encoding="utf-8")
    page = read_page(run)

    assert not page.named("script")
    assert not page.named("link")
    assert not page.named("iframe")
    assert not re.search(r"https?://|url\(|@import", text)
    assert all((image["src"] or "").startswith("data:image/jpeg;base64,") for image in page.named("img"))
    assert all((link["href"] or "").startswith(("#", "review.html#")) for link in page.named("a"))
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    policies = [meta["content"] for meta in page.named("meta") if "http-equiv" in meta]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_every_link_inside_the_page_has_its_place(run: Path) -> None:
    page = read_page(run)
    places = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(places) == len(set(places))
    inside = {link["href"][1:] for link in page.named("a") if link["href"][0] == "#"}
    assert inside <= set(places)
    assert (run / "review.html").is_file()  # where the others lead


def test_the_page_names_the_command_that_plays_the_clips(run: Path) -> None:
    assert f"vidcurate review {run.name}" in read_page(run).words()


def test_every_picture_says_as_text_what_it_shows(run: Path) -> None:
    page = read_page(run)
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
    blocks = re.findall(r":root \{(.*?)\}", text, flags=re.DOTALL)  # the charts' colours, then the page's
    light, dark = "".join(blocks[0::2]), "".join(blocks[1::2])
    names = re.findall(r"(--[\w-]+):", light)
    assert names
    assert names == re.findall(r"(--[\w-]+):", dark), "a colour has no dark twin"
    assert set(re.findall(r"var\((--[\w-]+)\)", text)) <= set(names)


def test_the_numbers_are_those_of_the_tables(run: Path, demo: Path) -> None:
    clips = table.scan(run, "split").collect()
    kept = int(clips["is_kept"].sum())
    summary = run_report(run, videos=demo / "videos")
    words = read_page(run).words()

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
    left = re.findall(r'<td class="n">[\d,]+</td><td class="n">([\d,]+)</td></tr>', text_of(run))
    assert [int(number) for number in left[: len(steps)]] == [step["kept"] for step in steps]
    assert steps[-1]["kept"] == clips["is_kept"].sum()


def test_what_the_split_drops_is_a_step_of_the_funnel(run: Path, demo: Path, tmp_path: Path) -> None:
    for stage in ("ingest", "probe", "score", "filter"):
        (tmp_path / f"{stage}.parquet").write_bytes((run / f"{stage}.parquet").read_bytes())
    split = run_split(tmp_path, SplitSpec(levels=2, drop_hardest=0.2))
    assert split.rows_dropped_here

    summary = run_report(tmp_path, videos=demo / "videos")

    assert summary.rows_kept == split.rows_kept
    found = re.search(r"<code>drop_hardest</code>.*?</tr>", text_of(tmp_path), flags=re.DOTALL)
    assert found
    assert f'<td class="n">{split.rows_dropped_here}</td><td class="n">{split.rows_kept}</td>' in found[0]


def test_the_reconciliation_names_what_was_planted(run: Path) -> None:
    words = read_page(run).words()
    for meaning in ("rows whose file is not there", "files that no row names", "rows that stand twice"):
        assert f"1 {meaning}" in words
    assert demo_data.write.MISSING_NAME in words


def test_limits_of_the_filter_are_drawn_into_the_histograms(run: Path) -> None:
    text = text_of(run)
    for label in ("min 32", "min 8", "min 0.5", "max 2"):
        assert re.search(rf'<text class="limit"[^>]*>{label}</text>', text), label


def test_a_measure_that_is_the_same_for_every_clip_is_a_line_and_no_histogram(run: Path) -> None:
    assert "The same for every clip of which it is known:" in read_page(run).words()
    assert '<span id="of-proper_noun_count">proper noun count 0 nouns</span>' in text_of(run)
    assert 'class="panel" id="of-proper_noun_count"' not in text_of(run)


def test_a_score_that_the_filter_limits_has_a_histogram(run: Path, tmp_path: Path, demo: Path) -> None:
    for stage in ("ingest", "probe", "score"):
        (tmp_path / f"{stage}.parquet").write_bytes((run / f"{stage}.parquet").read_bytes())
    spec = FilterSpec.model_validate_json('{"limits": {"aesthetic_score": {"min": 4.5}}}')
    run_filter(tmp_path, spec)
    run_report(tmp_path, videos=demo / "videos")
    assert "Aesthetic score" in read_page(tmp_path).words()
    assert re.search(r'<text class="limit"[^>]*>min 4.5</text>', text_of(tmp_path))


def test_a_report_is_written_after_each_stage(run: Path, demo: Path, tmp_path: Path) -> None:
    pages = []
    for stage in ("ingest", "probe", "score", "filter", "split"):
        (tmp_path / f"{stage}.parquet").write_bytes((run / f"{stage}.parquet").read_bytes())
        if stage == "split":
            (tmp_path / "levels.json").write_bytes((run / "levels.json").read_bytes())
        summary = run_report(tmp_path, videos=demo / "videos")
        assert summary.rows_in == summary.rows_kept + summary.rows_rejected
        pages.append(read_page(tmp_path).words())

    assert all("No filter has been run yet" in words for words in pages[:3])
    assert not any("No filter has been run yet" in words for words in pages[3:])
    # The funnel is counted from the table where the ledger is not there.
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
    checked = table.scan(tmp_path, "filter")

    found = funnel.failures(checked, steps)
    assert [[clip["clip_id"] for clip in one["clips"]] for one in found] == [["a", "b"], ["c"]]
    assert [one["more"] for one in found] == [0, 0]
    assert [row["rejected"] for row in funnel.by_stage(tmp_path, checked, steps, 4)] == [2, 1, 0]
    assert contact_sheet.choose_rejected(checked, [step["rule"] for step in steps], 9) == ["a", "b", "c"]
    run_report(tmp_path)
    assert read_page(tmp_path).words().count("c at frames") == 3  # an example, a failure, a card


def test_what_cannot_be_reported_is_one_line(run: Path, demo: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="no table of any stage"):
        run_report(tmp_path)
    (tmp_path / "ingest.parquet").write_bytes((run / "ingest.parquet").read_bytes())
    with pytest.raises(InputError, match=r"nowhere: no such video folder"):
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


def test_a_table_of_many_columns_names_each_cell_for_a_narrow_screen(run: Path) -> None:
    text = text_of(run)
    tables = re.findall(r"<table.*?</table>", text, flags=re.DOTALL)
    assert len(tables) > 5
    for one in tables:
        is_funnel = 'class="bar"' in one
        assert is_funnel or 'class="stack"' in one
        heads = [
            re.sub(r"<[^>]+>", "", head) for head in re.findall(r"<th scope=\"col\"[^>]*>(.*?)</th>", one)
        ]
        for row in re.findall(r"<tr>(.*?)</tr>", one.split("<tbody>")[1], flags=re.DOTALL):
            names = re.findall(r'data-label="([^"]*)"', row)
            assert names == ([] if is_funnel else heads)
    style = re.findall(r"@media \(max-width: 40rem\) \{(.*?)@media print", text, flags=re.DOTALL)[0]
    assert "attr(data-label)" in style


def test_the_page_shows_what_each_model_takes(run: Path) -> None:
    section = text_of(run).partition('<section id="fit">')[2].partition("</section>")[0]
    counts = json.loads((run / "fit.json").read_text(encoding="utf-8"))["models"]
    for row, record in zip(re.findall(r"<tr><th data-label.*?</tr>", section), counts, strict=True):
        cells = dict(re.findall(r'data-label="([^"]+)"[^>]*>(.*?)</t', row))
        assert cells["model"] == record["title"]
        assert cells["taken"] == str(record["taken_clips"])
        assert cells["too small"] == str(record["too_small_clips"])
    assert counts[0]["taken_clips"] > counts[1]["taken_clips"] == 0


def test_settings_are_words_and_hashes_are_whole_or_cut_on_purpose(run: Path) -> None:
    assert facts._settings(
        {"limits": {"motion": {"min": 2, "max": None}}, "reject": ["a", "b"], "x": {}}
    ) == [
        "limits.motion.min: 2",
        "reject: a, b",
    ]
    page = text_of(run).partition('<section id="provenance">')[2]
    assert not re.search(r"[{}]", page)
    assert 'class="hash"' in page
    assert ".hash { white-space: nowrap" in text_of(run)


@pytest.mark.parametrize(("rows", "said"), [(999, "–"), (1000, "0.28")])
def test_the_cost_of_a_million_clips_is_not_said_from_a_few(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, said: str
) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    cost = {"command": "ingest", "calls": 1, "rows": rows, "seconds": 1.0, "cpu_seconds": 1.0}
    found = [cost | {"cpu_hours_per_million_clips": 1 / rows * 1e6 / 3600}]
    monkeypatch.setattr(costs, "read_costs", lambda _: found)

    run_report(copy)

    page = (copy / "report.html").read_text()
    cells = re.findall(r'<td data-label="CPU hours per million clips"[^>]*>([^<]*)</td>', page)
    assert cells == [said]
