"""Twins by meaning: captions that say nearly the same, embeddings that lie near each other."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.vidcurate.curation.dedup.hashed_clips import copies, found_in, make_run
from vidcurate.curation.dedup.spec import DedupSpec
from vidcurate.curation.dedup.stage import run_dedup
from vidcurate.errors import InputError


def test_captions_that_say_nearly_the_same_are_twins_when_asked_for(tmp_path: Path) -> None:
    text = (
        "a man in a red jacket walks slowly along the empty beach at sunset while two dogs run ahead of him"
    )
    nearly = text.replace("two dogs", "three dogs")
    captions = [text, text.upper() + "!", nearly, "a cat", "A cat.", "a bird", None, "…"]
    rows = [{"clip_id": str(n), "caption": caption} for n, caption in enumerate(captions)]
    run = make_run(tmp_path / "run", rows)
    assert run_dedup(run, DedupSpec()).duplicates == 0
    run_dedup(run, DedupSpec(captions=0.6))
    assert copies(run) == {"1": "0", "2": "0", "4": "3"}
    found = found_in(run)
    assert found["1"]["duplicate_distance"] == 0
    # 19 runs of three words each, three of which hold the changed word.
    assert found["2"]["duplicate_distance"] == pytest.approx(1 - 16 / 22)
    run_dedup(run, DedupSpec(captions=0.8))
    assert copies(run) == {"1": "0", "4": "3"}


def test_embeddings_find_twins_by_meaning(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(6, 32))
    vectors[3] = 5 * vectors[1] + 0.01
    vectors[5] = 0  # has no direction
    run = make_run(tmp_path / "run", [{"clip_id": str(n)} for n in range(6)])
    spec = DedupSpec(semantic=0.97)
    with pytest.raises(InputError, match=r"embeddings\.parquet: no such file"):
        run_dedup(run, spec)
    held = pl.DataFrame({"clip_id": [str(n) for n in range(6)], "embedding": vectors.tolist()})
    held.write_parquet(run / "embeddings.parquet")
    run_dedup(run, spec)
    assert copies(run) == {"3": "1"}
    assert found_in(run)["3"]["duplicate_kind"] == "semantic"
    assert 0 <= found_in(run)["3"]["duplicate_distance"] < 0.03
    (run / "embeddings.parquet").write_bytes(b"no")
    with pytest.raises(InputError, match="no embeddings can be read"):
        run_dedup(run, spec)


def test_many_embeddings_are_compared_within_k_means_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    from vidcurate.curation.dedup import semantic

    monkeypatch.setattr(semantic, "ALL_WITH_ALL", 100)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(2000, 16))
    vectors[1000:1200] = vectors[:200] + rng.normal(size=(200, 16)) * 0.01
    run = make_run(tmp_path / "run", [{"clip_id": f"{n:04}"} for n in range(2000)])
    pl.DataFrame({"clip_id": [f"{n:04}" for n in range(2000)], "embedding": vectors.tolist()}).write_parquet(
        run / "embeddings.parquet"
    )
    monkeypatch.setattr(semantic, "CLIPS_PER_CLUSTER", 200)
    run_dedup(run, DedupSpec(semantic=0.99))
    found = copies(run)
    assert {name for name in found if found[name] == f"{int(name) - 1000:04}"} == set(found)
    assert len(found) > 190  # k-means parts few
