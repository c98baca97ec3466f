"""A run with kept clips, the zips that hold them, and a server of these."""

import functools
import http.server
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from tests.vidcurate.curation.fetch.made import (
    NAMES,
    Handler,
    split,
    write_zip,
)
from vidcurate.curation.clip_table import table
from vidcurate.curation.filter import stage as filter_stage
from vidcurate.curation.filter.spec import FilterSpec, Limit
from vidcurate.storage import ranges


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Three parts in OpenVid's form: whole, in two pieces, whole; one member twice, one that no row names."""
    folder = tmp_path / "parts"
    write_zip(folder / "OpenVid_part0.zip", NAMES[:6], method=zipfile.ZIP_STORED)
    write_zip(folder / "OpenVid_part2.zip", NAMES[6:14], prefix="video/")
    split(folder / "OpenVid_part2.zip", 2, "{stem}_part{letter}")
    write_zip(folder / "OpenVid_part10.zip", [*NAMES[14:18], NAMES[0], "nobody.mp4"])
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of 20 clips whose odd ones are kept; clips 18 and 19 are in no part."""
    folder = tmp_path / "run"
    clips = pl.DataFrame(
        {
            "clip_id": [name[:-4] for name in NAMES],
            "video_path": NAMES,
            "file_size_bytes": pl.Series([None] * 20, dtype=pl.Int64),
            "ingest_problem": pl.Series([None] * 20, dtype=pl.String),
            "noun_count": [n % 2 for n in range(20)],
        }
    )
    table.write(clips, folder / "score.parquet", table.Provenance(stage="score", settings={}, inputs={}))
    filter_stage.run_filter(folder, FilterSpec(limits={"noun_count": Limit(min=1)}))
    return folder


@pytest.fixture
def server(parts: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Handler]]]:
    """Serve the parts; gives the address and the handler, whose `asked` lists the requests."""
    monkeypatch.setattr(ranges.time, "sleep", lambda _: None)

    class Asked(Handler):
        asked: list[str] = []  # noqa: RUF012

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Asked, directory=str(parts))
    ) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}", Asked
        httpd.shutdown()
        thread.join()
