"""Video files of the clips: the paths that stages read, each once."""

import polars as pl


def paths_to_read(clips: pl.DataFrame) -> pl.Series:
    """Return the `video_path` of each file to read, in the order of the clips.

    `clips` has video_path and ingest_problem. Left out are files that are missing or outside the video
    folder, and absolute paths: of a table that was ingested without a video folder.
    """
    there = clips.filter(
        pl.col("video_path").is_not_null()
        & ~pl.col("video_path").str.starts_with("/")
        & ~pl.col("ingest_problem").fill_null("").is_in(["missing_file", "path_outside_root"])
    )
    return there.select(path="video_path").unique(maintain_order=True)["path"]
