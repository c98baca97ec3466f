"""Own columns and captions go from the metadata to table, filter, report, shards, index and loader, equal."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.loader_runs import plan_of, spec
from vidcurate.curation.clip_table import table
from vidcurate.curation.clip_table.own_columns import captions_of, own_columns
from vidcurate.curation.filter.spec import FilterSpec, Limit
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.curation.probe.stage import ProbeSpec, run_probe
from vidcurate.curation.report import distributions
from vidcurate.curation.report.build import run_report
from vidcurate.curation.report.what_if import what_if
from vidcurate.loader.loader import Loader
from vidcurate.media import encode
from vidcurate.recipe.recipe import parse
from vidcurate.sampler.buckets import BucketSpec
from vidcurate.sampler.build_plan import plan_from
from vidcurate.shards.build import run_build_shards
from vidcurate.shards.index import check_index, find_clip, read_index
from vidcurate.shards.layout import ShardSpec
from vidcurate.shards.read_clip import read_clip_facts

CLIPS = ("a", "b", "c", "d")
FACTS = {"width": 48, "height": 48, "fps": 8.0, "num_frames": 9}
NAMES = {"views": "views", "level": "own_level", "is ok": "is ok", "notes ☂": "notes ☂", "ünï.x": "ünï.x"}
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=20)
# A text whose column no reader takes for numbers, or for nothing.
WORDS = TEXT.map(lambda text: f"t {text}")
CAPTION = TEXT.map(lambda text: f"A {text.strip()} x")


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for number, name in enumerate(CLIPS):
        frames = np.full((9, 48, 48, 3), 40 * number, dtype=np.uint8)
        encode.write_video(folder / f"{name}.mp4", frames, fps=8.0)
    return folder


def rows_of(draw: Callable[..., Any], *, lists: bool) -> list[dict[str, Any]]:
    """Return metadata: known facts, three captions and six own columns, some cells of them null."""
    some: dict[str, st.SearchStrategy[Any]] = {
        "views": st.integers(-(2**63), 2**63 - 1),
        "level": st.floats(allow_nan=False, allow_infinity=False),
        "is ok": st.booleans(),
        "notes ☂": WORDS,
        "ünï.x": WORDS,
        "tags": st.lists(st.none() | st.integers(-(2**53), 2**53), min_size=1, max_size=3)
        if lists
        else WORDS,
    }
    rows = []
    for number, name in enumerate(CLIPS):
        own = {key: draw(value if number == 0 else st.none() | value) for key, value in some.items()}
        said = {"caption": draw(CAPTION), "caption_short": draw(CAPTION), "dense_caption": draw(CAPTION)}
        rows.append({"video": f"{name}.mp4", **FACTS, **said, **own})
    return rows


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), quoting=csv.QUOTE_NONNUMERIC)
        writer.writeheader()
        for row in rows:
            exact = {key: repr(value) if isinstance(value, float) else value for key, value in row.items()}
            writer.writerow(exact)
    return path


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def write_json(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(path)
    return path


# An example takes half a second: a failing one is shown as it was found.
FAST = (Phase.explicit, Phase.reuse, Phase.generate)
WRITERS = {".csv": write_csv, ".jsonl": write_jsonl, ".parquet": write_parquet}


def typed(value: Any) -> tuple[type, Any]:
    return type(value), value


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), phases=FAST)
@given(st.data(), st.sampled_from(sorted(WRITERS)))
def test_values_and_captions_arrive_as_they_were(
    videos: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, suffix: str
) -> None:
    folder = tmp_path_factory.mktemp("run")
    rows = rows_of(data.draw, lists=suffix != ".csv")
    metadata = WRITERS[suffix](folder / f"m{suffix}", rows)
    run = folder / "run"

    summary = run_ingest(run, IngestSpec(metadata=metadata, videos=videos))

    names = {key: NAMES.get(key, key) for key in rows[0] if key in NAMES or key == "tags"}
    assert summary.own_columns == tuple(names.values())
    assert {name: own.source for name, own in own_columns(run).items()} == {v: k for k, v in names.items()}
    by_id = {row["video"].removesuffix(".mp4"): row for row in rows}
    for row in table.scan(run, "ingest").collect().to_dicts():
        wanted = {name: by_id[row["clip_id"]][key] for key, name in names.items()}
        assert {name: typed(row[name]) for name in wanted} == {n: typed(value) for n, value in wanted.items()}

    run_probe(run, ProbeSpec(videos=videos, level="header"))
    least = sorted(row["views"] for row in rows if row["views"] is not None)[-1]
    limits = {"views": Limit(min=least, missing="keep")}
    run_filter(run, FilterSpec(limits=limits))
    checked = table.scan(run, "filter")
    kept = {row["video"].removesuffix(".mp4") for row in rows if row["views"] in (None, least)}
    assert set(checked.filter("is_kept").collect()["clip_id"]) >= kept
    drawn = {one["name"] for one in distributions.histograms(checked, [], own_columns(run))}
    assert {"views", "own_level", "is ok"} <= drawn
    words = [row["notes ☂"] for row in rows]
    shown = {one["name"]: one["values"] for one in distributions.own_texts(checked, own_columns(run))}
    common = {word for word in words if word is not None and words.count(word) > 1}
    assert common <= {value for value, _, _ in shown.get("notes ☂", [])}

    run_build_shards(run, ShardSpec(), videos=videos, out=folder / "shards")
    opened = read_index(folder / "shards")
    check_index(opened)
    assert opened.own_columns == {name: key for key, name in names.items()}
    assert opened.caption_names == ("caption", "dense", "short")
    said = {}
    for clip_id in opened.words("clip_id").to_pylist():
        row, place = by_id[clip_id], find_clip(opened, clip_id)
        facts = read_clip_facts(opened, place)
        for key, name in names.items():
            assert typed(opened.at(name, place)) == typed(facts.get(name)) == typed(row[key])
        captions = {"caption": row["caption"], "short": row["caption_short"], "dense": row["dense_caption"]}
        captions = {name: text.strip() for name, text in captions.items()}
        assert captions_of(facts) == captions
        named = {one["name"]: one["text"] for one in opened.at("captions", place)}
        assert (named, opened.at("caption_name", place)) == (captions, "caption")
        said[clip_id] = captions

    plan = plan_of(opened, micro_batches_per_step=1)
    for name in opened.caption_names:
        with Loader(opened, plan, spec(num_workers=0), captions=[name]) as loader:
            (batch,) = loader.step(0)
        assert batch.captions == tuple(said[clip_id][name] for clip_id in batch.clip_ids)

    for out in (".parquet", ".jsonl"):
        table.export(table.scan(run, "filter"), folder / f"back{out}")
        run_ingest(folder / f"again{out}", IngestSpec(metadata=folder / f"back{out}", videos=videos))
        for row in table.scan(folder / f"again{out}", "ingest").collect().to_dicts():
            wanted = {name: typed(by_id[row["clip_id"]][key]) for key, name in names.items()}
            assert {name: typed(row[name]) for name in wanted} == wanted
            assert captions_of(row) == said.get(row["clip_id"], captions_of(row)), (out, row)


@pytest.mark.parametrize("suffix", sorted(WRITERS))
def test_a_run_that_is_exported_and_read_again_has_the_same_columns_and_captions(
    tmp_path: Path, suffix: str
) -> None:
    rows = [
        {"video": "a.mp4", "caption": "A", "short_caption": "a", "n": 7, "level": 0.5, "ok": True},
        {
            "video": "b.mp4",
            "caption": ["B", "b"],
            "short_caption": None,
            "n": None,
            "level": 2.0,
            "ok": False,
        },
    ]
    run_ingest(tmp_path / "1", IngestSpec(metadata=write_jsonl(tmp_path / "m.jsonl", rows)))
    first = table.scan(tmp_path / "1", "ingest")
    table.export(first, tmp_path / f"t{suffix}")

    summary = run_ingest(tmp_path / "2", IngestSpec(metadata=tmp_path / f"t{suffix}"))

    assert sorted(summary.own_columns) == ["n", "ok", "own_level"]
    again = table.scan(tmp_path / "2", "ingest").collect()
    assert again.select(first.collect_schema().names()).equals(first.collect())


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp"])
def test_an_image_with_a_caption_reaches_the_loader_as_one_frame(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(4):
        colour = np.zeros((48, 48, 3), dtype=np.uint8)
        colour[:] = (60 * number, 40, 200)
        Image.fromarray(colour).save(folder / f"{number}.{suffix}")
        (folder / f"{number}.txt").write_text(f"picture {number}")
    run = tmp_path / "run"

    assert run_ingest(run, IngestSpec(metadata=folder)).rows_kept == 4
    assert run_probe(run, ProbeSpec(videos=folder)).rows_ok == 4  # type: ignore[union-attr]
    run_build_shards(run, ShardSpec(), videos=folder, out=tmp_path / "shards")

    opened = read_index(tmp_path / "shards")
    assert opened.num_frames.tolist() == [1] * 4
    buckets = parse("sizes: {32px: {'1.00': [32, 32]}}\ntable: {32px: {1: [1.0, 2]}}", BucketSpec)
    plan = plan_from(opened, buckets, seed=1, micro_batches_per_step=2)
    with Loader(opened, plan, spec(num_workers=0)) as loader:
        batches = loader.step(0)
    for batch in batches:
        assert batch.frames.shape == (2, 1, 32, 32, 3)
        for frames, caption in zip(batch.frames, batch.captions, strict=True):
            expected = (60 * int(caption.removeprefix("picture ")), 40, 200)
            assert np.abs(frames.astype(int) - expected).max() < 12


def test_the_report_and_what_if_show_own_columns(tmp_path: Path) -> None:
    rows = "a.mp4,A,cat,1,x1\nb.mp4,B,cat,2,x2\nc.mp4,C,<b>dog</b>,3,x3\n"
    (tmp_path / "m.csv").write_text(f"video,caption,kind,stars,notes\n{rows}")
    run = tmp_path / "run"
    run_ingest(run, IngestSpec(metadata=tmp_path / "m.csv"))
    kinds = {"kind": Limit(allowed=("cat", "bird")), "stars": Limit(min=2)}
    assert run_filter(run, FilterSpec(limits=kinds)).rows_kept == 1
    counted = what_if(run, FilterSpec(limits={"stars": Limit(min=3)}))
    assert counted["kept"]["clips"] == 1

    run_report(run)

    page = (run / "report.html").read_text(encoding="utf-8")
    assert 'id="of-stars"' in page
    assert "<bdi>cat</bdi> (1, 1); <bdi>&lt;b&gt;dog&lt;/b&gt;</bdi> (0, 1)" in page
    assert "Own columns: kind, stars, notes." in page
    assert "<bdi>x1</bdi>" not in page  # a text that no two clips share is no group


HOSTILE = (
    *("*", "^.*$", "^a", "row", "order", "value", "_size", "note", "bad", "base_id", "is_empty", "said"),
    *(
        "clip_id",
        "Clip ID ",
        "level",
        "own_level",
        "shard",
        "json_offset",
        "captions",
        "caption_name",
        "fold",
    ),
    *(
        "is_kept",
        "frame",
        "a.b",
        "a\nb",
        "a,b",
        '"',
        "'; drop",
        "{x}",
        "<b>",
        "日本",
        "e\u0301",
        "\u202e",
        "own:0",
    ),
    *("structure_hash", "short_side", "probe_status", "x" * 300, "", "index", "__index__"),
)


def test_hostile_names_of_columns_go_all_the_way(videos: Path, tmp_path: Path) -> None:
    header = ["video", "caption", *(name for name in HOSTILE if name not in ("clip_id", "captions"))]
    with (tmp_path / "m.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for number, clip in enumerate(CLIPS, start=1):
            writer.writerow(
                [f"{clip}.mp4", f"clip {clip}", *(f"{number}{n}" for n in range(len(header) - 2))]
            )
    run, out = tmp_path / "run", tmp_path / "shards"

    summary = run_ingest(run, IngestSpec(metadata=tmp_path / "m.csv", videos=videos))
    run_probe(run, ProbeSpec(videos=videos))
    own = own_columns(run)
    limits = {name: Limit(max=10_000) for name, column in own.items() if column.dtype == pl.Int64()}
    run_filter(run, FilterSpec(limits=limits))
    run_report(run)
    run_build_shards(run, ShardSpec(), videos=videos, out=out)

    taken = {"video", "caption", "Clip ID ", "frame", "probe_status"}  # an id, frames; the rest is own
    assert set(summary.own_columns) == set(own)
    assert {column.source for column in own.values()} >= set(header) - taken
    opened = read_index(out)
    assert opened.own_columns == {name: column.source for name, column in own.items()}
    for place in range(len(opened)):
        facts = read_clip_facts(opened, place)
        number = 1 + CLIPS.index(facts["caption"].removeprefix("clip "))
        for name, column in own.items():
            expected = f"{number}{header.index(column.source) - 2}"
            assert str(facts[name]) == str(opened.at(name, place)) == expected, name
