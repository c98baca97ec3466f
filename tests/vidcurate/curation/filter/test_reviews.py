"""Review decisions in the filter: the rule `review`, clips kept by eye, edited captions."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.vidcurate.curation.filter.test_filter import KEPT, clip, scored, verdicts
from vidcurate.curation.caption_scores.stage import ScoreSpec, run_score
from vidcurate.curation.clip_table import rejection_ledger, table
from vidcurate.curation.filter.spec import FilterSpec, Limit, OutlierRule
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.report.what_if import what_if
from vidcurate.curation.review_decisions.journal import append_decision, undo_decision
from vidcurate.errors import InputError, TableError

NOUNS = FilterSpec(limits={"noun_count": Limit(min=4)})


def decide(run: Path, clip_id: str, verdict: str, reviewer: str = "ana", **fields: Any) -> int:
    count = len((run / "reviews.jsonl").read_bytes().splitlines()) if (run / "reviews.jsonl").exists() else 0
    given = {"id": f"id-{count}", "clip_id": clip_id, "reviewer": reviewer, "verdict": verdict, **fields}
    return append_decision(run, given)


def test_a_clip_rejected_by_eye_has_reviewer_and_reason_in_table_and_ledger(tmp_path: Path) -> None:
    run = scored(tmp_path, clip("a"), clip("b", noun_count=1), clip("c"))
    plain = run_filter(run, NOUNS)
    assert plain.reviewed == {}
    decide(run, "a", "reject", reason="too dark")
    decide(run, "a", "reject", "bo")
    decide(run, "b", "reject", reason="blurred")
    found = run_filter(run, NOUNS)
    assert not found.up_to_date
    assert verdicts(run) == {
        "a": (
            "review",
            "rejected by ana: too dark (decision 1); bo: no reason given (decision 2)",
            "not rejected by eye",
        ),
        "b": ("review", "rejected by ana: blurred (decision 3)", "not rejected by eye"),
        "c": KEPT,
    }
    assert [(step.rule, step.stage, step.rejected) for step in found.funnel] == [("review", "filter", 2)]
    assert found.reviewed["rejected_by_eye"] == 2
    ledger = rejection_ledger.read_ledger(run).select("clip_id", "rule", "is_verdict").collect()
    assert ledger.rows() == [("a", "review", True), ("b", "review", True), ("b", "min_noun_count", False)]
    assert rejection_ledger.check_ledger(run)["rows_rejected"] == 2
    assert run_filter(run, NOUNS).up_to_date


def test_a_clip_kept_by_eye_overrides_numbers_and_copies_but_not_damage(tmp_path: Path) -> None:
    run = scored(
        tmp_path,
        clip("few", noun_count=1),
        clip("cut", noun_count=1, probe_status="truncated", probe_problem="cut"),
        clip("gone", ingest_problem="missing_file"),
        clip("far", motion_score=1000.0),
        clip("plain", noun_count=1),
    )
    for clip_id in ("few", "cut", "gone", "far", "not here"):
        decide(run, clip_id, "keep", reason="fine")
    spec = NOUNS.model_copy(
        update={"outliers": (OutlierRule(column="motion_score", method="absolute", value=10),)}
    )
    found = run_filter(run, spec)
    assert {clip_id: verdict[0] for clip_id, verdict in verdicts(run).items()} == {
        "few": None,
        "cut": "truncated",
        "gone": "missing_file",
        "far": None,
        "plain": "min_noun_count",
    }
    assert found.reviewed == {
        "rejected_by_eye": 0,
        "kept_against_rules": 2,
        "damaged_but_kept_by_eye": 2,
        "captions_edited": 0,
        "clips_not_in_table": 1,
    }
    entries = rejection_ledger.read_ledger(run).filter(pl.col("clip_id").is_in(["few", "far"])).collect()
    assert [row[:2] for row in entries.select("clip_id", "rule", "is_verdict").rows()] == [
        ("few", "min_noun_count"),
        ("far", "outlier_motion_score_absolute"),
    ]
    assert not entries["is_verdict"].any()
    rejection_ledger.check_ledger(run)
    kept = table.scan(run, "filter").filter(pl.col("clip_id") == "few").select("review").collect().item()
    assert kept == "kept by ana: fine (decision 1)"
    assert what_if(run, spec)["kept"]["clips"] == found.rows_kept


def test_the_copy_kept_by_eye_is_the_best_of_its_copies(tmp_path: Path) -> None:
    rows = pl.DataFrame([clip("a"), clip("b"), clip("c")]).with_columns(
        duplicate_cluster=pl.lit("a"), duplicate_rank=pl.Series([1, 2, 3], dtype=pl.Int32)
    )
    table.write(rows, tmp_path / "dedup.parquet", table.Provenance(stage="dedup", settings={}, inputs={}))
    decide(tmp_path, "c", "keep")
    run_filter(tmp_path, FilterSpec())
    assert [name for name, verdict in verdicts(tmp_path).items() if verdict == KEPT] == ["c"]
    decide(tmp_path, "c", "reject")
    run_filter(tmp_path, FilterSpec())
    assert [name for name, verdict in verdicts(tmp_path).items() if verdict == KEPT] == ["a"]


def test_undone_decisions_leave_the_very_bytes_of_a_filter_without_any(tmp_path: Path) -> None:
    run = scored(tmp_path, clip("a"), clip("b", noun_count=1))
    run_filter(run, NOUNS)
    names = ("filter.parquet", "ledger.parquet", "funnel.json")
    plain = [(run / name).read_bytes() for name in names]
    number = decide(run, "a", "reject")
    run_filter(run, NOUNS)
    assert [(run / name).read_bytes() for name in names] != plain
    undo_decision(run, number, "ana")
    run_filter(run, NOUNS)
    assert [(run / name).read_bytes() for name in names] == plain


def text(caption: str, name: str) -> dict[str, str]:
    return {"name": name, "text": caption}


def captioned(run: Path) -> Path:
    captions = ["A dog.", "A cat sits on a mat beside a lamp, a book and a chair.", "A bird."]
    frame = pl.DataFrame(
        {
            "clip_id": ["a", "b", "c"],
            "caption": captions,
            "captions": pl.Series([[text(captions[0], "long"), text("Dog.", "short")], None, None]),
            "caption_name": ["long", None, None],
            "matching_score": [0.2, 0.9, 0.9],
            "ingest_problem": pl.Series([None] * 3, dtype=pl.String),
            "video_path": ["a.mp4", "b.mp4", "c.mp4"],
        }
    )
    table.write(frame, run / "ingest.parquet", table.Provenance(stage="ingest", settings={}, inputs={}))
    run_score(run, ScoreSpec(noun_engine="builtin"))
    return run


def test_an_edited_caption_replaces_the_caption_and_its_scores(tmp_path: Path) -> None:
    run = captioned(tmp_path)
    spec = FilterSpec(limits={"noun_count": Limit(min=3), "matching_score": Limit(min=0.5)})
    run_filter(run, spec)
    assert {name: verdict[0] for name, verdict in verdicts(run).items()} == {
        "a": "min_noun_count",
        "b": None,
        "c": "min_noun_count",
    }
    edited = "A dog runs over a meadow beside a river and a house."
    decide(run, "a", "caption", caption="A dog and a cat.")
    decide(run, "a", "caption", "bo", caption=edited)  # the newest counts
    decide(run, "b", "tag", tags=["night", "indoor"])
    found = run_filter(run, spec)
    rows = {row["clip_id"]: row for row in table.scan(run, "filter").collect().iter_rows(named=True)}
    assert rows["a"]["caption"] == edited
    assert rows["a"]["caption_original"] == "A dog."
    assert rows["a"]["captions"] == [text(edited, "long"), text("Dog.", "short")]
    assert rows["b"]["captions"] is None
    assert rows["a"]["noun_count"] == 4
    assert rows["a"]["caption_num_words"] == 12
    assert rows["a"]["matching_score"] is None
    assert rows["a"]["is_kept"]
    assert rows["b"]["review_tags"] == "indoor, night"
    assert rows["b"]["caption_original"] is None
    assert rows["b"]["matching_score"] == 0.9
    assert rows["c"]["noun_count"] == 1
    assert not rows["c"]["is_kept"]
    assert found.reviewed["captions_edited"] == 1
    assert what_if(run, spec)["kept"]["clips"] == 2


def test_a_caption_that_cannot_be_scored_like_the_others_stops_the_filter(tmp_path: Path) -> None:
    run = scored(tmp_path, clip("a"))  # its noun counts name no engine
    frame = pl.read_parquet(run / "score.parquet").with_columns(caption=pl.lit("A dog."))
    table.write(frame, run / "score.parquet", table.Provenance(stage="score", settings={}, inputs={}))
    decide(run, "a", "caption", caption="A cat.")
    with pytest.raises(InputError, match="edited captions cannot be scored like the others"):
        run_filter(run, NOUNS)


def test_a_forged_decision_stops_the_filter(tmp_path: Path) -> None:
    run = scored(tmp_path, clip("a"))
    (run / "reviews.jsonl").write_text('{"clip_id": "a", "verdict": "reject"}\n')
    with pytest.raises(TableError, match=r"reviews\.jsonl: line 1 was not written by vidcurate"):
        run_filter(run, NOUNS)
    assert not (run / "filter.parquet").exists()
