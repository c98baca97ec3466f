"""What may be asked of an ingest: the settings, strict and frozen."""

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, field_validator

from vidcurate.recipe import Recipe

SchemaName = Literal[
    "auto",
    "openvid",
    "miradata-v0",
    "miradata-v1",
    "panda70m",
    "koala36m",
    "opensora",
    "table",
    "folder",
    "webdataset",
]


class IngestSpec(Recipe):
    """Which rows to take in, and how to read them.

    `metadata` is a CSV, TSV, Parquet or JSON Lines file, a folder of videos with captions beside them, or
    finished WebDataset shards (a tar or a folder of tars). `videos` is the folder that the paths in the
    metadata are relative to; without it nothing is said about files. `map` names, for `schema: table`, the
    source column of a column of ours (`{caption: prompt}`). `files` says whether a file is a clip that was
    cut already or the source video that holds it; null leaves that to the schema.
    """

    # `schema` is a method of pydantic's models: the setting has that name, the attribute another.
    model_config = ConfigDict(populate_by_name=True)

    metadata: Path
    videos: Path | None = None
    schema_name: SchemaName = Field(default="auto", alias="schema")
    caption_column: str | None = None
    map: dict[str, str] = Field(default_factory=dict)
    files: Literal["clips", "sources"] | None = None
    extension: str = ".mp4"
    encoding: str = "utf-8"
    separator: str | None = None
    dataset: str | None = None
    source_pattern: str | None = None

    @field_validator("extension")
    @classmethod
    def _extension_has_a_dot(cls, value: str) -> str:
        if len(value) < 2 or not value.startswith(".") or "/" in value:
            raise ValueError(f"an extension begins with a dot, such as .mp4, not {value!r}")
        return value

    @field_validator("separator")
    @classmethod
    def _separator_is_one_byte(cls, value: str | None) -> str | None:
        if value is not None and (len(value.encode()) != 1 or value in '\n\r"'):
            raise ValueError(f"a separator is one ASCII character, not {value!r}")
        return value
