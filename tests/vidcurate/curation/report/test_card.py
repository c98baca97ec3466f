import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from tests.vidcurate.curation.filter.test_filter import clip, scored
from vidcurate.curation.clip_table import table
from vidcurate.curation.difficulty import stage as difficulty_stage
from vidcurate.curation.difficulty.spec import SplitSpec
from vidcurate.curation.filter import stage as filter_stage
from vidcurate.curation.filter.spec import FilterSpec, Limit
from vidcurate.curation.report import card
from vidcurate.curation.report.card import CardSpec
from vidcurate.errors import StageError


def checked(run: Path) -> Path:
    scored(
        run,
        *(clip(f"o{n}", noun_count=n, duration_seconds=float(n)) for n in range(20)),
        *(clip(f"m{n}", noun_count=n, source_dataset="my | own", height=2160, width=3840) for n in range(4)),
        clip("bad", ingest_problem="missing_file"),
    )
    filter_stage.run_filter(run, FilterSpec(limits={"noun_count": Limit(max=17)}))
    difficulty_stage.run_split(run, SplitSpec(levels=2, validation_fraction=0))
    return run


def section(text: str, title: str) -> str:
    return text.split(f"## {title}", 1)[1].split("\n## ")[0]


def test_a_card_counts_what_is_kept_and_states_each_licence(tmp_path: Path) -> None:
    run = checked(tmp_path)

    text = card.text(run, CardSpec(name="Ours", description="What it is.", licences={"my | own": "MIT"}))

    assert text.startswith("# Ours\n\nWhat it is.\n\n22 clips kept of 25, 0.04694 hours.\n")
    sources = section(text, "Sources")
    assert "| openvid | 21 | 18 | 0.0425 | unknown (its publisher states CC-BY-4.0) |" in sources
    assert "| my \\| own | 4 | 4 | 0.004444 | MIT |" in sources
    assert "| 1 | 11 |" in section(text, "Levels by noun_count")
    assert "| max_noun_count | filter | <= 17 | 2 | 22 |" in section(text, "Rules")
    recipes = section(text, "Recipe, versions and hashes")
    assert 'limits: {"noun_count": {' in recipes
    assert '"max": 17.0' in recipes


def test_the_histograms_of_a_card_count_every_kept_clip(tmp_path: Path) -> None:
    reported = card.facts(checked(tmp_path), CardSpec())

    for bins in (reported["durations"], reported["short_sides"]):
        assert sum(one["clips"] for one in bins) == reported["rows_kept"] == 22
    assert {one["range"]: one["clips"] for one in reported["durations"]}[
        "4 to 8 s"
    ] == 8  # 4 to 7 and the four m
    assert {one["range"]: one["clips"] for one in reported["short_sides"]}["2160 px and more"] == 4
    assert sum(one["clips"] for one in reported["buckets"].values()) == 22


def test_a_card_names_the_hash_of_every_stage_and_what_it_read(tmp_path: Path) -> None:
    run = checked(tmp_path)

    text = card.text(run, CardSpec())

    for stage in ("score", "filter", "split"):
        assert f"sha256 {table.digest(run / f'{stage}.parquet')}  {stage}.parquet" in text
    assert f"read   {table.digest(run / 'filter.parquet')}  filter" in text


def test_the_same_run_gives_the_same_bytes_in_another_process_and_folder(tmp_path: Path) -> None:
    for name in ("one", "two"):
        checked(tmp_path / name)
    first = card.run_card(tmp_path / "one", CardSpec()).read_bytes()

    subprocess.run(
        [sys.executable, "-m", "vidcurate", "card", str(tmp_path / "two")], check=True, capture_output=True
    )

    assert (tmp_path / "two" / "card.md").read_bytes() == first
    assert str(tmp_path).encode() not in first


def test_a_card_can_be_written_at_any_stage(tmp_path: Path) -> None:
    scored(tmp_path, clip("a"), clip("b", ingest_problem="missing_file"))

    text = card.run_card(tmp_path, CardSpec(licences={"elsewhere": "MIT"}), tmp_path / "x.md").read_text()

    assert "1 clip without an ingest problem (no filter has been run) of 2" in text
    assert "Licences without a row: elsewhere." in text
    assert "## Levels" not in text
    with pytest.raises(StageError, match="no table of any stage"):
        card.text(tmp_path / "none", CardSpec())


def test_a_clip_of_no_source_is_reported_as_unknown(tmp_path: Path) -> None:
    scored(tmp_path, clip("a", source_dataset=None))
    filter_stage.run_filter(tmp_path, FilterSpec())

    assert "| unknown | 1 | 1 |" in card.text(tmp_path, CardSpec())
    assert pl.read_parquet(tmp_path / "filter.parquet")["is_kept"].all()
