"""The score stage: its columns, its provenance, and one noun engine a table."""

from pathlib import Path

import polars as pl
import pytest

from vidcurate.curation.caption_scores import stage as caption_scores_stage
from vidcurate.curation.caption_scores import text_scores
from vidcurate.curation.caption_scores.stage import ScoreSpec, run_score
from vidcurate.curation.clip_table import table
from vidcurate.curation.clip_table.table import Provenance
from vidcurate.errors import ColumnError, RecipeError, StageError
from vidcurate.recipe.recipe import parse

BUILTIN = ScoreSpec(noun_engine="builtin")
CAPTIONS = ["A man rides a horse.", None, "", "two dogs, one cat", "人在走路"]


def make_run(folder: Path, **columns: list[object]) -> Path:
    """Write an ingest table with CAPTIONS (or other columns) into `folder`."""
    rows: dict[str, list[object]] = {"caption": list(CAPTIONS), **columns}
    frame = pl.DataFrame({"clip_id": [f"{n}.10" for n in range(len(rows["caption"]))], **rows})
    table.write(
        frame.cast({"caption": pl.String}),
        table.stage_path(folder, "ingest"),
        Provenance(stage="ingest", settings={}, inputs={}),
    )
    return folder


def test_every_row_gets_its_scores(tmp_path: Path) -> None:
    summary = run_score(make_run(tmp_path), BUILTIN)
    scored = table.scan(tmp_path, "score").collect()
    assert scored["clip_id"].to_list() == ["0.10", "1.10", "2.10", "3.10", "4.10"]
    assert scored["caption"].to_list() == CAPTIONS
    assert scored["noun_count"].to_list()[:4] == [2, None, 0, 2]
    assert scored["noun_engine"].unique().to_list() == ["builtin-ewt-2+verbs-4"]
    assert scored["caption_num_words"].to_list() == [5, None, 0, 4, 1]
    assert scored["caption_num_characters"].to_list() == [20, None, 0, 17, 4]
    assert {scored.schema[name] for name in ("noun_count", "caption_num_words")} == {pl.Int32()}
    assert (summary.rows_in, summary.rows_scored, summary.up_to_date) == (5, 4, False)
    assert summary.noun_engine == "builtin-ewt-2+verbs-4"
    assert summary.noun_engine_reason == "asked for as builtin"


def test_a_second_run_is_up_to_date_and_a_changed_table_is_scored_again(tmp_path: Path) -> None:
    first = run_score(make_run(tmp_path), BUILTIN)
    before = table.stage_path(tmp_path, "score").read_bytes()
    again = run_score(tmp_path, BUILTIN)
    assert again.up_to_date
    assert (again.nouns, again.nouns_per_caption) == (first.nouns, first.nouns_per_caption)
    make_run(tmp_path, caption=["a dog"])
    changed = run_score(tmp_path, BUILTIN)
    assert (changed.up_to_date, changed.rows_in, changed.nouns) == (False, 1, 1)
    make_run(tmp_path)
    run_score(tmp_path, BUILTIN)
    assert table.stage_path(tmp_path, "score").read_bytes() == before


def test_the_slices_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        make_run(tmp_path / name, caption=[f"a dog and {n} cats" for n in range(25)])
    run_score(tmp_path / "a", BUILTIN)
    monkeypatch.setattr(caption_scores_stage, "_ROWS_PER_SLICE", 4)
    seen: list[tuple[int, int, str]] = []
    run_score(tmp_path / "b", BUILTIN, progress=lambda *step: seen.append(step))
    assert seen[0] == (4, 25, "captions")
    assert seen[-1] == (25, 25, "captions")
    assert (tmp_path / "a/score.parquet").read_bytes() == (tmp_path / "b/score.parquet").read_bytes()


def test_an_empty_table_is_scored(tmp_path: Path) -> None:
    summary = run_score(make_run(tmp_path, caption=[]), BUILTIN)
    assert (summary.rows_in, summary.rows_scored, summary.nouns, summary.nouns_per_caption) == (0, 0, 0, None)


@pytest.mark.parametrize(
    ("engines", "reported"),
    [
        (["spacy:x@1", None, None, "spacy:x@1", None], "2 rows by spacy:x@1"),
        (["builtin-ewt-2+verbs-4", None, None, "builtin-ewt-0", None], "1 rows by builtin-ewt-0"),
        (None, "2 rows by an unnamed engine"),
    ],
)
def test_counts_of_another_engine_are_refused(
    tmp_path: Path, engines: list[object] | None, reported: str
) -> None:
    columns: dict[str, list[object]] = {"noun_count": [3, None, None, 2, None]}
    if engines is not None:
        columns["noun_engine"] = engines
    with pytest.raises(ColumnError, match=f"{reported}, and this run counts by builtin-ewt-2\\+verbs-4"):
        run_score(make_run(tmp_path, **columns), BUILTIN)
    assert not table.stage_path(tmp_path, "score").exists()


def test_counts_of_the_same_engine_are_counted_again(tmp_path: Path) -> None:
    engines = ["builtin-ewt-2+verbs-4", None, None, None, None]
    run_score(make_run(tmp_path, noun_count=[99, None, None, None, None], noun_engine=engines), BUILTIN)
    assert table.scan(tmp_path, "score").collect()["noun_count"].to_list()[0] == 2


def test_another_engine_scores_the_whole_table_again(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    spacy = pytest.importorskip("spacy")
    nlp = spacy.blank("en")
    nlp.add_pipe("tagger").add_label("X")
    nlp.initialize()
    ruler = nlp.add_pipe("attribute_ruler")
    ruler.add([[{"LOWER": {"IN": ["man", "dogs"]}}]], {"POS": "NOUN"})
    nlp.meta["name"], nlp.meta["version"] = "rules", "0.1"
    folder = tmp_path_factory.mktemp("spacy") / "rules"
    nlp.to_disk(folder)
    run_score(make_run(tmp_path), BUILTIN)
    summary = run_score(tmp_path, ScoreSpec(noun_engine=f"spacy:{folder}"))
    scored = table.scan(tmp_path, "score").collect()
    assert not summary.up_to_date
    assert scored["noun_count"].to_list() == [1, None, 0, 1, None]
    assert scored["noun_engine"].unique().to_list() == [summary.noun_engine]
    assert summary.noun_engine.startswith("spacy:en_rules@0.1+")


def test_a_run_without_tables_or_captions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="Run `vidcurate ingest` first"):
        run_score(tmp_path, BUILTIN)
    make_run(tmp_path)
    no_captions = pl.DataFrame({"clip_id": ["1"]})
    table.write(
        no_captions,
        table.stage_path(tmp_path, "ingest"),
        Provenance(stage="ingest", settings={}, inputs={}),
    )
    with pytest.raises(ColumnError, match="caption"):
        run_score(tmp_path, BUILTIN)


def test_an_engine_is_one_of_three_kinds() -> None:
    assert parse("noun_engine: spacy:en_core_web_sm", ScoreSpec).noun_engine == "spacy:en_core_web_sm"
    with pytest.raises(RecipeError, match="noun_engine"):
        parse("noun_engine: nltk", ScoreSpec)
    with pytest.raises(RecipeError, match="Did you mean noun_engine"):
        parse("noun_engin: builtin", ScoreSpec)


def test_words_stand_between_white_space() -> None:
    measured = text_scores.length(pl.Series([" a  b\tc\nd\u3000e ", "", None, "été 🐕"]))
    assert measured.rows() == [(5, 12), (0, 0), (None, None), (2, 5)]


def test_the_real_captions_are_scored(shared: Path, tmp_path: Path) -> None:
    captions = pl.read_parquet(shared / "data/captions/dense_captions.parquet")["caption"]
    summary = run_score(make_run(tmp_path, caption=captions.to_list()), BUILTIN)
    scored = table.scan(tmp_path, "score").collect()
    assert summary.rows_scored == summary.rows_in == len(captions)
    # A caption of a video is about a quarter to a third nouns.
    assert 0.2 < summary.nouns / scored["caption_num_words"].sum() < 0.4
    ranks = scored.select(pl.corr("noun_count", "caption_num_words", method="spearman")).item()
    assert 0.9 < ranks < 1
