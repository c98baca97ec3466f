"""Files that the rows of a metadata table name."""

from pathlib import Path

import pytest


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """A folder with videos of one byte at three depths, a note and a hidden file."""
    root = tmp_path / "videos"
    for name in ("a.mp4", "part/b.mp4", "part/c.mp4", "other/c.mp4", "extra.MP4", "notes.txt", ".hidden.mp4"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return root
