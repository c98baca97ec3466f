"""Files of the clips: which are probed, and their keys in the cache."""

from pathlib import Path

import polars as pl

from vidcurate.curation.clip_table.video_files import paths_to_read
from vidcurate.curation.probe.cache import KEY

_FILES_PER_SLICE = 65_536
_KEY_SCHEMA = dict(zip(KEY, (pl.String, pl.Int64, pl.Int64), strict=True))


def list_files(clips: pl.DataFrame, videos: Path | str) -> pl.DataFrame:
    """Return the files to probe, each once, in the order of the clips.

    Columns: path as in the table, and KEY (absolute path, size, modification time), null for a file that is
    inaccessible or at a URL.
    """
    paths = paths_to_read(clips)
    slices = [pl.DataFrame(schema={"path": pl.String, **_KEY_SCHEMA})]
    for start in range(0, len(paths), _FILES_PER_SLICE):
        some = paths.slice(start, _FILES_PER_SLICE)
        keys = pl.DataFrame(_keys(some.to_list(), videos), schema=_KEY_SCHEMA, orient="row")
        slices.append(keys.insert_column(0, some))
    return pl.concat(slices)


def _keys(paths: list[str], folder: Path | str) -> list[tuple[str | None, int | None, int | None]]:
    if isinstance(folder, str):
        return [(None, None, None)] * len(paths)
    place = folder.resolve()
    keys: list[tuple[str | None, int | None, int | None]] = []
    for path in paths:
        try:
            facts = (folder / path).stat()
        except OSError:
            keys.append((None, None, None))
        else:
            keys.append((str(place / path), facts.st_size, facts.st_mtime_ns))
    return keys
