"""What may be asked of an ingest: the settings, strict and frozen."""

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, field_validator

from vidcurate.recipe.recipe import Recipe

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
    """the table, a folder of videos with captions beside them, or shards"""
    videos: Path | None = None
    """the folder that paths are relative to; null: metadata only"""
    schema_name: SchemaName = Field(default="auto", alias="schema")
    """the metadata's form; auto says what it recognised and why"""
    caption_column: str | None = None
    """which of several captions is the main one, whose nouns are counted: a column, or a caption's name"""
    caption_lines: bool = True
    """whether each line of a text beside a video is a caption; false: the whole text is one"""
    map: dict[str, str] = Field(default_factory=dict)
    """our column → the metadata's column, for `schema: table`; `video` is video_path, and caption_NAME adds a
    caption of that name"""
    files: Literal["clips", "sources"] | None = None
    """whether a file is a clip already or the source that holds it; null: as usual for the schema"""
    extension: str = ".mp4"
    """added to ids that stand for files without one"""
    encoding: str = "utf-8"
    """text encoding of the metadata"""
    separator: str | None = None
    """cell separator of a CSV; null: from the suffix"""
    dataset: str | None = None
    """name of the data set in the table; null: the schema's"""

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
