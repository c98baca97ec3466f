"""The stage `caption` against a server that the test starts: what is asked, kept, refused and written."""

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import av
import numpy as np
import polars as pl
import pytest

from tests.chat_server import ChatServer, chatting, completion, plain
from tests.vidcurate.curation.captioning.conftest import ASKED, BROKEN, MISSING, NO_CAPTION
from vidcurate.cli import main as cli_main
from vidcurate.curation.caption_scores.stage import ScoreSpec, run_score
from vidcurate.curation.captioning.answers import ANSWERS, read_answers
from vidcurate.curation.captioning.spec import CaptionSpec, PromptSpec
from vidcurate.curation.captioning.stage import CaptionSummary, run_caption
from vidcurate.curation.clip_table import rejection_ledger, table
from vidcurate.curation.clip_table.own_columns import caption_names, captions_of
from vidcurate.curation.filter.spec import FilterSpec
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.frame_scores.sample import read_sample
from vidcurate.errors import InputError, StorageError, TableError
from vidcurate.shards.index import read_index
from vidcurate.shards.read_clip import read_clip_facts

PROMPTS = {
    name: PromptSpec(text=f"{name} paragraph" if name == "long" else name) for name in ("long", "short")
}


def call(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as left:
        cli_main.main([str(argument) for argument in arguments])
    code = left.value.code
    assert code is None or isinstance(code, int)
    return code or 0


def spec_for(server: ChatServer, **fields: Any) -> CaptionSpec:
    return CaptionSpec(
        **{"endpoint": server.url, "model": "tiny", "prompts": PROMPTS, "retry_seconds": 0.01, **fields}
    )


def caption(home: Path, spec: CaptionSpec, **options: Any) -> CaptionSummary:
    return run_caption(home / "run", spec, videos=home / "videos", **options)


def rows(home: Path) -> dict[str, dict[str, Any]]:
    return {row["clip_id"]: row for row in table.scan(home / "run", "caption").collect().to_dicts()}


def test_every_clip_with_a_readable_file_gets_both_captions_beside_its_own(home: Path) -> None:
    with chatting() as server:
        summary = caption(home, spec_for(server))
    assert (summary.new_answers, summary.captions) == (12, {"long": 6, "short": 6})
    found = rows(home)
    assert len(server.asked) == 12
    for name in ASKED:
        texts = captions_of(found[name])
        assert list(texts) == (["long", "short"] if name == NO_CAPTION else ["caption", "long", "short"])
        assert texts["long"].startswith("A longer account of ")
        assert found[name]["caption_status"] == "ok"
        assert found[name]["caption_models"] == "long: tiny; short: tiny"
    assert found["c0"]["caption"] == "old caption 0"
    assert found["c0"]["caption_name"] == "caption"
    assert found[NO_CAPTION]["ingest_problem"] is None
    assert (found[NO_CAPTION]["caption_name"], found[NO_CAPTION]["caption"]) == (
        "long",
        captions_of(found[NO_CAPTION])["long"],
    )
    for name in (BROKEN, MISSING):
        assert found[name]["caption_status"] == "not_captioned"
        assert found[name]["captions"] is None
    assert caption_names(home / "run", "caption") == ["caption", "long", "short"]


def test_later_stages_read_the_captions(home: Path) -> None:
    run_score(home / "run", ScoreSpec(noun_engine="builtin"))
    with chatting(lambda question: "Two dogs and a cat run past a tree.") as server:
        summary = caption(home, spec_for(server, main="long"))
    assert summary.run_again == (f"vidcurate score {home / 'run'}",)
    run_score(home / "run", ScoreSpec(noun_engine="builtin"))
    with chatting() as server:
        assert caption(home, spec_for(server, main="long")).run_again == ()
        assert server.asked == []
    scored = table.scan(home / "run", "score").collect()
    assert set(scored.filter(pl.col("clip_id").is_in(ASKED))["noun_count"]) == {3}
    assert run_filter(home / "run", FilterSpec()).rows_kept == len(ASKED)
    assert call("split-by-difficulty", home / "run", "--levels", "1") == 0
    assert call("build-shards", home / "run", "--videos", home / "videos", "--workers", "1") == 0
    clips = read_index(home / "run" / "shards")
    for row in range(len(clips)):
        facts = read_clip_facts(clips, row)
        assert next(iter(captions_of(facts))) == "long"
        assert {"caption_status", "caption_problem"}.isdisjoint(facts)
        assert facts["caption_models"] == "long: tiny; short: tiny"


def test_the_model_sees_the_middles_of_equal_parts_at_the_stated_size(home: Path) -> None:
    with chatting() as server:
        caption(home, spec_for(server, num_frames=4, short_side_px=17))
    sizes = set()
    for question in server.asked:
        assert len(question.frames) == 4
        for frame in question.frames:
            with av.open(io.BytesIO(frame), format="jpeg_pipe") as container:
                image = next(container.decode(video=0)).to_ndarray(format="rgb24")
            sizes.add(image.shape[:2])
    assert sizes == {(17, 25)}
    expected = read_sample(
        home / "videos" / "c7.mp4", None, None, height=34, width=50, positions=(0.125, 0.375, 0.625, 0.875)
    )
    with chatting() as server:
        caption(home, spec_for(server, num_frames=4, model="other", replace=True))
    seen = {question.frames_hash: question.frames for question in server.asked}
    close = []
    for frames in seen.values():
        images = []
        for frame in frames:
            with av.open(io.BytesIO(frame), format="jpeg_pipe") as container:
                images.append(next(container.decode(video=0)).to_ndarray(format="rgb24"))
        close.append(float(np.abs(np.stack(images).astype(int) - expected).mean()))
    assert min(close) < 4 < sorted(close)[1]


def test_a_caption_stays_unless_it_is_to_be_replaced(home: Path) -> None:
    with chatting() as server:
        caption(home, spec_for(server))
        before = rows(home)
        asked = len(server.asked)
        assert caption(home, spec_for(server, model="better")).new_answers == 0
        assert (len(server.asked), rows(home)) == (asked, before)
        server.answer = lambda question: f"Better: {plain(question)}"
        only_long = {"long": PROMPTS["long"]}
        caption(home, spec_for(server, model="better", prompts=only_long, replace=True))
        again = caption(home, spec_for(server, model="better", prompts=only_long, replace=True))
        assert (again.new_answers, again.up_to_date) == (0, True)
    after = rows(home)
    assert len(server.asked) == asked + len(ASKED)
    for name in ASKED:
        assert captions_of(after[name])["long"].startswith("Better: ")
        assert captions_of(after[name])["short"] == captions_of(before[name])["short"]
        assert after[name]["caption_models"] == "long: better; short: tiny"


def test_a_caption_of_the_metadata_is_replaced_on_demand_alone(home: Path) -> None:
    own = {"caption": PromptSpec(text="what")}
    with chatting(lambda question: "a new text") as server:
        caption(home, spec_for(server, prompts=own))
        assert len(server.asked) == 1
        assert rows(home)["c0"]["caption"] == "old caption 0"
        caption(home, spec_for(server, prompts=own, replace=True))
    found = rows(home)
    assert {found[name]["caption"] for name in ASKED} == {"a new text"}
    assert found["c0"]["captions"] is None


ANSWERED: list[tuple[Any, str]] = [
    ("I'm sorry, but I can't help with that.", "refused"),
    ("I cannot view images.", "refused"),
    ("As an AI language model, I see nothing.", "refused"),
    ("Unfortunately, I am unable to see the frames.", "refused"),
    (completion(None, refusal="I won't."), "refused"),
    (completion("A dog", finish="content_filter"), "refused"),
    (completion("A dog runs over the", finish="length"), "cut"),
    ("<think>A dog. Or is it", "cut"),
    ("", "empty"),
    (completion(None), "empty"),
    ("  \n\t ", "empty"),
    ("The video shows a dog.", "boilerplate"),
    ("\x1b[31mred\x1b[0m", "bad_text"),
    ("a\x00b", "bad_text"),
    ("\ud800", "bad_text"),
    ("x" * 10_001, "bad_text"),
    ("<think>\nhm\n</think>\n\nA dog\nruns  on.", "ok"),
    ("'; DROP TABLE clips; -- <script>alert(1)</script> {{7*7}} ${HOME} \u202e", "ok"),
]


@pytest.fixture(scope="module")
def verdicts(probed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Each of ANSWERED as the answer to a prompt of its own, in one run."""
    home = tmp_path_factory.mktemp("verdicts")
    shutil.copytree(probed / "run", home / "run")
    prompts = {f"p{place}": PromptSpec(text=str(place)) for place in range(len(ANSWERED))}
    with chatting(lambda question: ANSWERED[int(question.prompt)][0]) as server:
        run_caption(home / "run", spec_for(server, prompts=prompts), videos=probed / "videos")
    return rows(home)[NO_CAPTION]


@pytest.mark.parametrize("place", range(len(ANSWERED)))
def test_what_is_no_caption_becomes_none_with_the_reason(verdicts: dict[str, Any], place: int) -> None:
    row, name, status = verdicts, f"p{place}", ANSWERED[place][1]
    problem = re.search(rf"(?:^|; ){name}: (\w+): ", row["caption_problem"])
    assert (name in captions_of(row)) == (status == "ok")
    assert (problem[1] if problem else "ok") == status


def test_a_caption_is_one_line_without_thoughts(verdicts: dict[str, Any]) -> None:
    assert captions_of(verdicts)["p16"] == "A dog runs on."
    assert captions_of(verdicts)["p17"] == ANSWERED[17][0]


def test_boilerplate_is_a_caption_where_it_is_allowed_and_nothing_is_asked_again(home: Path) -> None:
    with chatting(lambda question: "The video shows a dog.") as server:
        summary = caption(home, spec_for(server))
        assert summary.captions == {}
        assert summary.by_status["boilerplate"] == len(ASKED)
        asked = len(server.asked)
        summary = caption(home, spec_for(server, allow_boilerplate=True))
        assert (summary.captions, len(server.asked)) == ({"long": 6, "short": 6}, asked)


def test_the_ledger_names_the_refusals_of_clips_without_a_caption(home: Path) -> None:
    with chatting(lambda question: "I'm sorry, I can't describe people.") as server:
        caption(home, spec_for(server))
    run_filter(home / "run", FilterSpec())
    entries = rejection_ledger.read_ledger(home / "run").collect()
    (entry,) = entries.filter((pl.col("clip_id") == NO_CAPTION) & pl.col("is_verdict")).to_dicts()
    assert (entry["stage"], entry["rule"], entry["threshold"]) == ("caption", "refused", "ok")
    assert "I'm sorry, I can't describe people." in entry["value"]
    assert rejection_ledger.check_ledger(home / "run")["rows_rejected"] == 3  # c0 keeps its old caption


def test_an_estimate_asks_about_few_clips_and_keeps_their_answers(home: Path) -> None:
    from vidcurate.curation.captioning import stage

    lines: list[str] = []
    with chatting() as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "_MEASURED", 2)
        first = caption(home, spec_for(server), price=(2.0, 10.0), only_estimate=True)
        assert first.estimate is not None
        assert (first.estimate.num_answers, first.estimate.tokens_in, first.estimate.tokens_out) == (
            8,
            8000,
            400,
        )
        assert first.estimate.price == pytest.approx((8000 * 2 + 400 * 10) / 1e6)
        assert not (home / "run" / "caption.parquet").exists()
        assert len(server.asked) == 4
        whole = caption(home, spec_for(server), price=(2.0, 10.0), say=lines.append)
    assert len(server.asked) == 12
    assert whole.price == pytest.approx((8000 * 2 + 400 * 10) / 1e6)
    assert lines[0].startswith("estimate from 4 answers: 4 left, 4,000 tokens in, 200 out, price 0.01")


def test_a_journal_line_has_all_that_decided_the_answer_and_half_a_line_is_cut_off(home: Path) -> None:
    path = home / "run" / ANSWERS
    with chatting() as server:
        caption(home, spec_for(server))
        table_bytes = (home / "run" / "caption.parquet").read_bytes()
        line = json.loads(path.read_bytes().splitlines()[0])
        assert (line["model"], line["tokens_in"], line["tokens_out"]) == ("tiny", 1000, 50)
        assert all(len(line[name]) == 16 for name in ("id", "source", "prompt", "request", "frames"))
        whole = path.read_bytes()
        path.write_bytes(whole[:-20])
        assert caption(home, spec_for(server)).new_answers == 1
        assert len(server.asked) == 13
    assert (home / "run" / "caption.parquet").read_bytes() == table_bytes
    assert len(read_answers(home / "run")) == 12
    path.write_bytes(whole.replace(b"A square", b"A cuboid", 1))
    with chatting() as server, pytest.raises(TableError, match=r"was not written by vidcurate"):
        caption(home, spec_for(server))


def test_an_answer_about_another_file_does_not_count(home: Path) -> None:
    with chatting() as server:
        caption(home, spec_for(server))
        frame = pl.read_parquet(home / "run" / "ingest.parquet")
        bigger = pl.when(pl.col("clip_id") == "c0").then(pl.lit("c1.mp4")).otherwise("video_path")
        origin = table.provenance(home / "run" / "ingest.parquet")
        for path in (home / "run").glob("[cp]*.parquet"):
            path.unlink()
        table.write(frame.with_columns(video_path=bigger), home / "run" / "ingest.parquet", origin)
        asked = len(server.asked)
        caption(home, spec_for(server))
        assert len(server.asked) > asked


def test_main_names_a_caption_that_there_is(home: Path) -> None:
    with (
        chatting() as server,
        pytest.raises(InputError, match=r"main=dense: no caption"),
    ):
        caption(home, spec_for(server, main="dense"))


def test_a_server_that_is_not_there_is_one_line(home: Path) -> None:
    with chatting() as server:
        spec = spec_for(server, tries=2)
    with pytest.raises(StorageError, match=r"no answer .*asks only for what is missing"):
        caption(home, spec.model_copy(update={"concurrency": 1}))
    assert not (home / "run" / "caption.parquet").exists()
