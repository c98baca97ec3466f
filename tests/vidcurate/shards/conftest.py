"""An index with its shards."""

from pathlib import Path

import pytest

from tests.vidcurate.shards.index_rows import columns, write_shards
from vidcurate.shards import index_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = columns()
    write_shards(tmp_path, rows)
    index_file.write_index(tmp_path, rows)
    return tmp_path
