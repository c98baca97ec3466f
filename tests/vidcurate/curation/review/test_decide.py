"""Decisions made in the app: recorded with what was seen, undone, shared, and applied by the filter."""

import json
import shutil
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.vidcurate.curation.review.conftest import Server, served
from tests.vidcurate.curation.review.test_query import ids, page
from vidcurate.curation.clip_table import table
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.report import what_if
from vidcurate.curation.review import blind
from vidcurate.curation.review_decisions.decision import Decision
from vidcurate.curation.review_decisions.draw_sample import draw_sample
from vidcurate.curation.review_decisions.journal import append_decision, read_decisions

KEPT = {"words": {"is_kept": ["true"]}}


@pytest.fixture
def own(run: Path, tmp_path: Path) -> Iterator[Server]:
    """A server of a copy of the run, whose decisions are this test's."""
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns(".*"))
    yield from served(tmp_path / "run", run.parent / "data" / "videos")


def decide(server: Server, clip: dict[str, Any], verdict: str, **more: Any) -> httpx.Response:
    body = {"id": str(uuid.uuid4()), "row": clip["row"], "clip_id": clip["clip_id"], "verdict": verdict}
    return server.post("/api/decide", body | more)


def test_a_decision_is_in_the_journal_with_the_rule_and_the_scores_that_were_seen(own: Server) -> None:
    kept = page(own, KEPT)["rows"][0]
    rejected = page(own, {"words": {"reject_rule": ["min_num_frames"]}})["rows"][0]
    assert decide(own, kept, "reject", reason="too dark").json()["number"] == 1
    assert decide(own, rejected, "keep").json()["number"] == 2
    assert decide(own, kept, "caption", caption="A blue square.").json()["number"] == 3
    answer = decide(own, kept, "tag", tags=["night", "ok"]).json()
    assert answer["decision"] == {
        "verdict": "reject",
        "mine": "reject",
        "text": "rejected by ana: too dark (decision 1)",
        "caption": "A blue square.",
        "tags": ["night", "ok"],
        "my_tags": ["night", "ok"],
        "disputed": False,
    }
    assert answer["counts"] == {"keep": 1, "reject": 1, "caption": 1, "tag": 1, "disputed": 0}
    first, second, *_ = read_decisions(own.session.run)
    cells = table.scan(own.session.run, "split").collect().to_dicts()
    assert (first.reviewer, first.reason, first.seen.rule) == ("ana", "too dark", None)
    assert first.seen.scores["noun_count"] == cells[kept["row"]]["noun_count"]
    assert first.seen.scores["sharpness_mean"] == cells[kept["row"]]["sharpness_mean"]
    assert second.seen.rule == "min_num_frames"
    assert page(own, KEPT)["rows"][0]["decision"]["verdict"] == "reject"
    assert ids(own, {"decided": "reject"}) == [kept["clip_id"]]
    assert ids(own, {"decided": "any"}) == sorted(
        (kept["clip_id"], rejected["clip_id"]), key=[one["clip_id"] for one in cells].index
    )
    assert page(own, {"decided": "none"})["total"] == len(cells) - 2


def test_the_same_decision_sent_twice_is_one_line_and_undo_takes_the_last_back(own: Server) -> None:
    clip = page(own, KEPT)["rows"][0]
    same = {"id": "one-and-the-same", "row": clip["row"], "clip_id": clip["clip_id"], "verdict": "keep"}
    assert own.post("/api/decide", same).json() == own.post("/api/decide", same).json()
    decide(own, clip, "reject")
    assert own.post("/api/undo", {}).json()["decision"]["verdict"] == "keep"
    assert own.post("/api/undo", {}).json() | {"counts": 0} == {
        "number": 1, "clip_id": clip["clip_id"], "decision": None, "counts": 0,
    }  # fmt: skip
    nothing = own.post("/api/undo", {})
    assert nothing.status_code == 400
    assert "no decision to undo" in nothing.json()["error"]
    assert len(read_decisions(own.session.run)) == 2


def test_two_browsers_and_another_process_at_once_lose_nothing(own: Server) -> None:
    clips = page(own, {})["rows"]
    answers: list[int] = []

    def browser() -> None:
        answers.extend(decide(own, clip, "keep").json()["number"] for clip in clips[:10])

    threads = [threading.Thread(target=browser) for _ in range(2)]
    for thread in threads:
        thread.start()
    other = Decision(id="other-1", clip_id=clips[0]["clip_id"], reviewer="ben", verdict="reject")
    answers.append(append_decision(own.session.run, other))
    for thread in threads:
        thread.join()
    assert sorted(answers) == list(range(1, 22))
    assert len(read_decisions(own.session.run)) == 21
    seen = page(own, {})["rows"][0]["decision"]
    assert (seen["verdict"], seen["mine"], seen["disputed"]) == ("reject", "keep", True)
    assert ids(own, {"decided": "disputed"}) == [clips[0]["clip_id"]]


def test_a_row_that_is_another_clip_by_now_is_not_decided_on(own: Server) -> None:
    clip = page(own, {})["rows"][0]
    for wrong in ({"row": clip["row"] + 1}, {"row": 10**6}, {"row": -1}, {"clip_id": "no-such-clip"}):
        response = decide(own, clip | wrong, "keep")
        assert response.status_code == 409
        assert "Load the page again" in response.json()["error"]
    assert read_decisions(own.session.run) == ()


@pytest.mark.parametrize(
    ("verdict", "more"),
    [
        ("caption", {}), ("caption", {"caption": " "}), ("tag", {"tags": ["a,b"]}), ("like", {}),
        ("keep", {"caption": "x"}), ("reject", {"reason": "a\nb"}), ("keep", {"reviewer": "ben"}),
        ("caption", {"caption": "x" * 10_001}), ("keep", {"id": "../x"}),
    ],
)  # fmt: skip
def test_a_wrong_decision_is_refused_and_writes_nothing(
    own: Server, verdict: str, more: dict[str, Any]
) -> None:
    response = decide(own, page(own, {})["rows"][0], verdict, **more)
    assert response.status_code == 400
    assert not (own.session.run / "reviews.jsonl").exists()


def test_a_forged_journal_is_named_by_its_line(own: Server) -> None:
    decide(own, page(own, {})["rows"][0], "keep")
    path = own.session.run / "reviews.jsonl"
    path.write_text(path.read_text().replace('"ana"', '"bob"'))
    response = own.client.get("/api/clips")
    assert response.status_code == 400
    assert "line 1 was not written by vidcurate" in response.json()["error"]


def test_the_filter_applies_what_was_decided_and_a_trial_counts_it_before(own: Server) -> None:
    run = own.session.run
    kept = page(own, KEPT)["rows"][0]
    short = page(own, {"words": {"reject_rule": ["min_num_frames"]}})["rows"][0]
    decide(own, kept, "reject", reason="too dark")
    decide(own, short, "keep")
    decide(own, page(own, KEPT)["rows"][1], "caption", caption="One square and two more words.")
    limits = {"noun_count": {"min": None, "max": 5}}
    trial = own.post("/api/trial", {"limits": limits}).json()
    spec = what_if.spec_of(run, settings=["limits.noun_count.max=5"])
    assert trial == what_if.what_if(run, spec)
    own_limits = what_if.spec_of(run)
    summary = run_filter(run, own_limits)
    (run / "split.parquet").unlink()
    rows = {one["clip_id"]: one for one in page(own, {})["rows"]}
    assert rows[kept["clip_id"]]["reject_rule"] == "review"
    assert rows[kept["clip_id"]]["reject_value"] == "rejected by ana: too dark (decision 1)"
    assert rows[short["clip_id"]]["is_kept"]
    assert page(own, KEPT)["total"] == summary.rows_kept


def test_a_blind_review_shows_the_sample_in_its_order_and_nothing_of_the_filter(
    run: Path, tmp_path: Path
) -> None:
    home = tmp_path / "run"
    shutil.copytree(run, home, ignore=shutil.ignore_patterns(".*"))
    sample = draw_sample(home, 12, name="first")
    other = Decision(
        id="b-1", clip_id=sample.clip_ids[0], reviewer="ben", verdict="reject", blind_sample="first"
    )
    append_decision(home, other)
    for server in served(home, run.parent / "data" / "videos", "first"):
        found = page(server, {})
        assert [one["clip_id"] for one in found["rows"]] == list(sample.clip_ids)
        described = server.client.get("/api/run").json()
        first = found["rows"][0]
        texts = [
            json.dumps([found, described]),
            server.client.get(f"/api/clip/{first['row']}").text,
            server.client.get("/api/facets").text,
        ]
        for word in (
            "is_kept",
            "reject",
            "min_num_frames",
            "duplicate",
            "level",
            "noun_count",
            "ben",
            "fold",
        ):
            assert not any(f'"{word}' in text.replace('"reject":0', "") for text in texts), word
        for query in ({"sort": "is_kept"}, {"words": {"is_kept": ["true"]}}, {"limits": {}}, {"near": 0}):
            response = server.client.get("/api/clips", params={"q": json.dumps(query)})
            assert response.status_code == 400
            assert "blind review" in response.json()["error"]
        assert server.client.get("/api/histogram", params={"column": "noun_count"}).status_code == 400
        assert server.post("/api/trial", {"limits": {}}).status_code == 400
        assert server.post("/api/recipe", {"limits": {}}).status_code == 400
        assert decide(server, first, "keep").json()["decision"]["disputed"] is False
        recorded = read_decisions(home)[-1]
        assert (recorded.blind_sample, recorded.seen.rule) == ("first", None)
        assert set(recorded.seen.scores) <= set(blind.SHOWN)
        assert ids(server, {"decided": "keep"}) == [first["clip_id"]]
