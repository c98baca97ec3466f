"""The noun counters: what counts, that no caption sees its neighbours, and how well on gold text."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidcurate.curation.caption_scores import nouns, nouns_builtin, nouns_spacy
from vidcurate.errors import InputError, TableError

ROOT = Path(__file__).resolve().parents[4]


def count(*captions: str | None) -> list[int | None]:
    return nouns_builtin.count(pl.Series(captions, dtype=pl.String)).to_list()


def cut(caption: str) -> list[str]:
    tokens = nouns_builtin.tokenise(pl.Series([caption]))
    return [tokens.distinct[int(code) - 1] for code in tokens.codes if code]


@pytest.mark.parametrize(
    ("caption", "nouns_in_it"),
    [
        ("A man is riding a horse on the beach.", 3),
        ("a man is riding a horse on the beach", 3),
        ("Two dogs", 1),
        ("The woman's hands hold a cup of coffee.", 4),
        ("It isn't moving and they don't stop.", 0),
        ("A red circle is moving and a blue square is turning.", 2),
        ("Paris, France", 2),
    ],
)
def test_nouns_of_plain_captions_are_counted(caption: str, nouns_in_it: int) -> None:
    assert count(caption) == [nouns_in_it]


def test_no_caption_has_no_count_and_an_empty_one_has_none() -> None:
    assert count(None, "", "   ", "a dog") == [None, 0, 0, 1]
    assert count() == []
    assert nouns_builtin.count(pl.Series([None, None])).to_list() == [None, None]


def test_tokens_follow_the_treebank() -> None:
    assert cut("The dog's owner isn't here.") == ["The", "dog", "'s", "owner", "isn't", "here", "."]
    assert cut("a close-up, an e-mail: 5mm") == ["a", "close", "-", "up", ",", "an", "e-mail", ":", "5", "mm"]
    assert cut("Mr. Lee (U.S.) at 7:30...") == ["Mr.", "Lee", "(", "U.S.", ")", "at", "7:30", "..."]
    assert cut("see www.a.org/b or me@b.com!") == ["see", "www.a.org/b", "or", "me@b.com", "!"]
    assert cut("tab\tand\nline\u00a0break") == ["tab", "and", "line", "break"]


@pytest.mark.parametrize(
    "caption", ["人在走路", "café", "🐕 🐈", "e\u0301te\u0301", "\x00", "\ud7ff", "ǅ İ ß"]
)
def test_any_text_is_counted(caption: str) -> None:
    (counted,) = count(caption)
    assert counted is not None
    assert 0 <= counted <= len(caption)


WORDS = ["the", "a", "dog", "runs", "Paris", ".", ",", "'s", "park", "watches", "red"]
TEXTS = st.lists(
    st.one_of(
        st.none(),
        st.text(max_size=40),
        st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(TEXTS)
def test_a_caption_is_counted_alone(captions: list[str | None]) -> None:
    assert count(*captions) == [count(caption)[0] for caption in captions]


def test_the_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    captions = [
        f"A {word} stands by the {other} ." for word in ("man", "red", "run") for other in ("sea", "big", "")
    ]
    whole = count(*captions, None, "")
    for size in (1, 30, 77):
        monkeypatch.setattr(nouns_builtin, "_BYTES_PER_PIECE", size)
        assert count(*captions, None, "") == whole


def test_no_sum_of_the_shipped_weights_leaves_16_bits() -> None:
    tables = nouns_builtin.load_tables()
    largest = sum(
        int(table.select(pl.max_horizontal(pl.col(way).abs().max() for way in nouns_builtin.WAYS)).item())
        for table in tables.singles.values()
    )
    assert 4 * largest + 4 * int(np.abs(tables.pairs.astype(np.int32)).max()) + abs(tables.bias) < 2**15


def test_the_licence_ships_with_the_tables() -> None:
    about = json.loads(pq.read_schema(nouns_builtin.TABLES).metadata[nouns_builtin.METADATA_KEY.encode()])
    assert "CC BY-SA 4.0" in about["licence"]
    assert about["engine"] == "builtin-ewt-2"
    assert "CC BY-SA 4.0" in nouns_builtin.TABLES.with_name("README.md").read_text(encoding="utf-8")
    assert nouns_builtin.TABLES.stat().st_size < 600_000


def test_damaged_tables_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"no parquet")
    with pytest.raises(TableError, match="noun tables cannot be read"):
        nouns_builtin.load_tables(tmp_path / "x.parquet")


@pytest.fixture(scope="module")
def training():  # type: ignore[no-untyped-def]
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import train_noun_tables

        yield train_noun_tables
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def test_the_gold_treebank_is_reached(shared: Path, training) -> None:  # type: ignore[no-untyped-def]
    # docs/nouns.md has the measured figures.
    texts = list(training.read_conllu(shared / "data/treebanks/en_ewt-ud-test.conllu"))
    found = training.measure(texts, nouns_builtin.load_tables())
    assert found.f1 >= 0.9476
    assert abs(found.num_found / found.num_gold - 1) < 0.01


CONLLU = """\
# sent_id = 1
# text = The dog's ball can't roll.
1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_
2-3\tdog's\t_\t_\t_\t_\t_\t_\t_\t_
2\tdog\tdog\tNOUN\tNN\t_\t4\tnmod\t_\t_
3\t's\t's\tPART\tPOS\t_\t2\tcase\t_\t_
4\tball\tball\tNOUN\tNN\t_\t7\tnsubj\t_\t_
5-6\tcan't\t_\t_\t_\t_\t_\t_\t_\t_
5\tca\tcan\tAUX\tMD\t_\t7\taux\t_\t_
6\tn't\tnot\tPART\tRB\t_\t7\tadvmod\t_\t_
7\troll\troll\tVERB\tVB\t_\t0\troot\t_\tSpaceAfter=No
8\t.\t.\tPUNCT\t.\t_\t7\tpunct\t_\t_

# sent_id = 2
# text = Balls roll.
1\tBalls\tball\tNOUN\tNNS\t_\t2\tnsubj\t_\t_
2\troll\troll\tVERB\tVBP\t_\t0\troot\t_\tSpaceAfter=No
3\t.\t.\tPUNCT\t.\t_\t2\tpunct\t_\t_

"""


def test_the_training_script_makes_the_same_tables_twice(  # type: ignore[no-untyped-def]
    tmp_path: Path, training, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("train", "dev"):
        (tmp_path / f"en_ewt-ud-{part}.conllu").write_text(
            CONLLU * (30 if part == "train" else 1), encoding="utf-8"
        )
    made = []
    for name in ("a.parquet", "b.parquet"):
        monkeypatch.setattr(sys, "argv", ["train", str(tmp_path), "--out", str(tmp_path / name)])
        training.main()
        made.append((tmp_path / name).read_bytes())
    assert made[0] == made[1]
    tables = nouns_builtin.load_tables(tmp_path / "a.parquet")
    found = training.measure(list(training.read_conllu(tmp_path / "en_ewt-ud-dev.conllu")), tables)
    assert (found.num_gold, found.num_found, found.f1) == (3, 3, 1.0)
    assert [
        tuple(token[2] for token in text.tokens)
        for text in training.read_conllu(tmp_path / "en_ewt-ud-dev.conllu")
    ] == [
        ("DET", "NOUN", "PART", "NOUN", "AUX", "PART", "VERB", "PUNCT"),
        ("NOUN", "VERB", "PUNCT"),
    ]


# ── spaCy ───────────────────────────────────────────────────────────────────────────────────────────────────

TAGGED = [
    ("a dog runs", ["DET", "NOUN", "VERB"]),
    ("the cat sees a dog", ["DET", "NOUN", "VERB", "DET", "NOUN"]),
    ("a horse jumps", ["DET", "NOUN", "VERB"]),
    ("the dog sees the horse", ["DET", "NOUN", "VERB", "DET", "NOUN"]),
]


def train_pipeline(folder: Path, factory: str, *, with_ruler: bool = False) -> Path:
    """Save a tiny pipeline that has learnt TAGGED, and a part of it that counting does not need."""
    spacy = pytest.importorskip("spacy")
    from spacy.training import Example

    nlp = spacy.blank("en")
    nlp.add_pipe(factory)
    key = "tags" if factory == "tagger" else "pos"
    values = (
        {"DET": "DT", "NOUN": "NN", "VERB": "VBZ"}
        if with_ruler
        else {name: name for name in ("DET", "NOUN", "VERB")}
    )
    examples = [
        Example.from_dict(nlp.make_doc(text), {key: [values[tag] for tag in tags]}) for text, tags in TAGGED
    ]
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(25):
        nlp.update(examples, sgd=optimizer)
    if with_ruler:
        ruler = nlp.add_pipe("attribute_ruler")
        for tag, pos in {"DT": "DET", "NN": "NOUN", "VBZ": "VERB"}.items():
            ruler.add([[{"TAG": tag}]], {"POS": pos})
    nlp.add_pipe("sentencizer")
    nlp.meta["name"], nlp.meta["version"] = "tiny", "1.2.3"
    nlp.to_disk(folder)
    return folder


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_pipeline(tmp_path_factory.mktemp("spacy") / "tiny", "tagger")


def test_a_spacy_pipeline_counts_the_same_columns(pipeline: Path) -> None:
    score = nouns.score(f"spacy:{pipeline}")
    captions = pl.Series(["the cat sees a dog", None, "", "a horse runs"])
    measured = score.measure(captions)
    assert measured["noun_count"].to_list() == [2, None, 0, 1]
    assert measured["noun_count"].dtype == pl.Int32
    (engine,) = measured["noun_engine"].unique()
    assert engine.startswith("spacy:en_tiny@1.2.3+")


@pytest.mark.parametrize(("factory", "with_ruler"), [("morphologizer", False), ("tagger", True)])
def test_parts_of_speech_come_from_what_the_pipeline_has(
    tmp_path: Path, factory: str, with_ruler: bool
) -> None:
    count_nouns = nouns_spacy.load(str(train_pipeline(tmp_path / "p", factory, with_ruler=with_ruler)))
    assert count_nouns(pl.Series(["the cat sees a dog"]))["noun_count"].to_list() == [2]


def test_another_model_in_the_same_folder_has_another_name(pipeline: Path, tmp_path: Path) -> None:
    other = shutil.copytree(pipeline, tmp_path / "other")
    assert nouns_spacy.engine(str(other)) == nouns_spacy.engine(str(pipeline))
    model = other / "tagger" / "model"
    model.write_bytes(model.read_bytes()[:-1] + b"\x01")
    assert nouns_spacy.engine(str(other)) != nouns_spacy.engine(str(pipeline))


def test_a_pipeline_that_is_not_installed_is_refused_with_the_command() -> None:
    with pytest.raises(InputError, match="python -m spacy download en_core_web_nope"):
        nouns.choose("spacy:en_core_web_nope")
    with pytest.raises(InputError, match=r"meta\.json"):
        nouns.choose("spacy:/no/such/folder")


def test_a_pipeline_without_a_tagger_is_refused(tmp_path: Path) -> None:
    spacy = pytest.importorskip("spacy")
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.to_disk(tmp_path / "p")
    with pytest.raises(InputError, match="no tagger and no morphologizer"):
        nouns_spacy.load(str(tmp_path / "p"))


def test_a_machine_without_spacy_is_reported_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nouns_spacy.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="spaCy is not installed"):
        nouns.choose("spacy:en_core_web_sm")
    chosen = nouns.choose("auto")
    assert chosen.name == "builtin-ewt-2+verbs-4"
    assert chosen.reason == "auto: en_core_web_sm is not installed"


def test_auto_takes_an_installed_pipeline(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A package as `spacy download` leaves it: a module beside its dist-info, on the import path.
    package = tmp_path / "en_core_web_sm"
    shutil.copytree(pipeline, package / "en_core_web_sm-9.8.7")
    shutil.copy(pipeline / "meta.json", package / "meta.json")
    (package / "__init__.py").write_text(
        "from pathlib import Path\nfrom spacy.util import load_model_from_init_py\n"
        "def load(**overrides):\n    return load_model_from_init_py(__file__, **overrides)\n"
    )
    about = tmp_path / "en_core_web_sm-9.8.7.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: en_core_web_sm\nVersion: 9.8.7\n")
    meta = json.loads((package / "meta.json").read_text())
    (package / "meta.json").write_text(json.dumps({**meta, "name": "core_web_sm", "version": "9.8.7"}))
    monkeypatch.syspath_prepend(str(tmp_path))
    chosen = nouns.choose("auto")
    assert chosen.name == "spacy:en_core_web_sm@9.8.7"
    assert chosen.reason == "auto: en_core_web_sm is installed"
    assert chosen.load()(pl.Series(["the cat sees a dog"]))["noun_count"].to_list() == [2]
    del sys.modules["en_core_web_sm"]  # it would count as installed in later tests


def test_scoring_without_spacy_does_not_import_it(run_python) -> None:  # type: ignore[no-untyped-def]
    loaded = run_python(
        "import sys, polars as pl\nfrom vidcurate.curation.caption_scores import nouns\n"
        "nouns.score('builtin').measure(pl.Series(['a dog']))\nprint('spacy' in sys.modules)"
    )
    assert loaded.strip() == "False"
