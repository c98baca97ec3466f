"""README of shards for the Hugging Face hub: YAML front matter, then data card.

The front matter has what the hub and `datasets` read: licence, size, splits by level, and the features, so
that no reader has to guess them from the first five samples (huggingface/datasets, webdataset.py). The same
run and shards give the same bytes.
"""

from pathlib import Path
from typing import Any

import polars as pl
import yaml

from vidcurate.curation.clip_table import table
from vidcurate.curation.report.card import CardSpec, facts, text
from vidcurate.shards.index import Index, read_index
from vidcurate.shards.read_clip import read_clip_facts
from vidcurate.shards.verify import README
from vidcurate.storage import atomic_file

_SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B")
# Facts of a cut clip, which its source's row in the table may lack.
_OF_CUTS = {"start_seconds": "float64", "end_seconds": "float64"}


def run_readme(run: Path, shards: Path, spec: CardSpec) -> Path:
    """Write the README of a run's shards into their folder; return its path.

    Raises ShardError (no shards), StageError, StorageError.
    """
    target = shards / README
    atomic_file.write_text(target, readme_text(run, shards, spec))
    return target


def readme_text(run: Path, shards: Path, spec: CardSpec) -> str:
    """Return the README: front matter and card. Raises ShardError, StageError, TableError."""
    index = read_index(shards)
    reported = facts(run, spec)
    front: dict[str, Any] = {
        "pretty_name": spec.name,
        **_licence(reported["sources"]),
        "task_categories": ["text-to-video"],
        "tags": ["video", "webdataset"],
        "size_categories": [_size(len(index))],
        "configs": _configs(index),
    }
    extensions = extensions_of(index)
    if len(extensions) == 1:
        named = features(run, index, extensions[0])
        front["dataset_info"] = [
            {"config_name": config["config_name"], "features": named} for config in front["configs"]
        ]
    return f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---\n\n{text(run, spec)}"


def _size(num_clips: int) -> str:
    return next((_SIZES[i] for i in range(len(_SIZES)) if num_clips < 10 ** (3 + i)), "n>1B")


def _licence(sources: list[dict[str, Any]]) -> dict[str, str]:
    """Return the licence that all sources have, in the hub's lower case; other for several."""
    named = {str(source["licence"] or "unknown") for source in sources if source["clips"]}
    if len(named) == 1:
        return {"license": named.pop().lower()}
    return {"license": "other", "license_name": "by-source"}


def _configs(index: Index) -> list[dict[str, Any]]:
    """Return the hub's configurations: all levels, and each level where there are several."""
    groups = sorted(set(zip(index.words("fold").to_pylist(), index.level.tolist(), strict=True)))
    levels = sorted({level for _, level in groups})

    def config(name: str, kept: list[int]) -> dict[str, Any]:
        files = [
            {"split": fold, "path": [f"{fold}-level{n}-*.tar" if n else f"{fold}-*.tar" for n in numbers]}
            for fold in sorted({fold for fold, _ in groups})
            if (numbers := [n for f, n in groups if f == fold and n in kept])
        ]
        return {"config_name": name, "data_files": files}

    every = {**config("default", levels), "default": True}
    return [every] + ([config(f"level{n}", [n]) for n in levels] if len(levels) > 1 else [])


def extensions_of(index: Index) -> list[str]:
    """Return the extensions of the videos; `datasets` reads sets of one."""
    return sorted(set(index.words("video_extension").to_pylist()))


def features(run: Path, index: Index, extension: str) -> list[dict[str, Any]]:
    """Return the features of a sample as `datasets` writes them in YAML.

    A clip's JSON has the same keys in every sample; their types are those of the clip table.
    """
    schema = table.scan(run, table.newest_stage(run)).collect_schema()
    fields = [_field(name, schema.get(name)) for name in read_clip_facts(index, 0)]
    return [
        {"name": "json", "struct": fields},
        {"name": extension, "dtype": "video"},
        {"name": "txt", "dtype": "string"},
        {"name": "__key__", "dtype": "string"},
        {"name": "__url__", "dtype": "string"},
    ]


def _field(name: str, dtype: pl.DataType | None) -> dict[str, Any]:
    if dtype is None:
        return {"name": name, "dtype": _OF_CUTS.get(name, "string")}
    return {"name": name, **_feature(dtype)}


def _feature(dtype: Any) -> dict[str, Any]:
    if isinstance(dtype, pl.List):
        inner = _feature(dtype.inner)
        return {"list": inner.get("dtype") or inner.get("struct") or inner}
    if isinstance(dtype, pl.Struct):
        return {"struct": [{"name": one.name, **_feature(one.dtype)} for one in dtype.fields]}
    if dtype == pl.UInt64:  # hex digits
        return {"dtype": "string"}
    if dtype.is_integer():
        return {"dtype": "int64"}
    if dtype.is_float():
        return {"dtype": "float64"}
    return {"dtype": "bool" if dtype == pl.Boolean else "string"}
