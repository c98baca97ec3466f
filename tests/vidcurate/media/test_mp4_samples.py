"""The tables of an MP4 say what FFmpeg finds out by reading every packet, or nothing at all."""

import io
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vidcurate.errors import MediaError
from vidcurate.media import mp4_samples
from vidcurate.media.container import opened
from vidcurate.media.mp4_samples import Samples
from vidcurate.storage.file_window import FileBytes


def tables(data: bytes) -> Samples | None:
    return mp4_samples.read_sample_table(FileBytes(io.BytesIO(data), len(data)))


def reported(samples: Samples) -> tuple[list[int], list[int], int]:
    return sorted(samples.shown.tolist()), sorted(samples.shown[samples.is_key].tolist()), samples.timescale


def packets(path: Path) -> tuple[list[int], list[int], int]:
    """Return (times, times of key frames, 1 / time base) of the packets that FFmpeg shows."""
    with opened(path) as (container, stream):
        found = [p for p in container.demux(stream) if p.size and not p.is_discard]
        keys = sorted(p.pts for p in found if p.is_keyframe)
        return sorted(p.pts for p in found), keys, int(1 / stream.time_base)


@pytest.mark.parametrize(
    ("codec", "gop", "fps"), [("libx264", 12, 24.0), ("libx264", 250, 29.97), ("mpeg4", 5, 25.0)]
)
def test_what_we_write_is_read_from_its_tables(
    make_video: Callable[..., Path], codec: str, gop: int, fps: float
) -> None:
    path = make_video("clip.mp4", num_frames=40, codec=codec, gop=gop, fps=fps)
    found = tables(path.read_bytes())
    assert found is not None
    assert reported(found) == packets(path)
    assert len(found.shown) == 40
    assert found.shown.min() == 0


def test_real_clips_say_the_same_as_their_packets_or_nothing(shared: Path) -> None:
    said = 0
    for path in sorted((shared / "data" / "clips").iterdir()):
        found = tables(path.read_bytes())
        if found is not None:
            assert reported(found) == packets(path), path.name
            said += 1
    assert said > 15


def test_fragments_other_edits_and_cut_files_say_nothing(
    make_video: Callable[..., Path], tmp_path: Path
) -> None:
    whole = make_video("clip.mp4", num_frames=40).read_bytes()
    assert tables(whole) is not None
    fragments = make_video(
        "clip.mp4", num_frames=40, container_options={"movflags": "frag_keyframe+empty_moov"}
    )
    assert tables(fragments.read_bytes()) is None
    assert tables(whole[:-1]) is None
    assert tables(whole + b"x") is None
    assert tables(b"") is None
    assert tables(make_video("clip.mkv", num_frames=40).read_bytes()) is None
    at = whole.index(b"elst") + 4 + 12  # media_time of the first edit
    later = (
        whole[:at] + (int.from_bytes(whole[at : at + 4], "big") + 512).to_bytes(4, "big") + whole[at + 4 :]
    )
    assert tables(later) is None
    shorter = whole[: at - 4] + (500).to_bytes(4, "big") + whole[at:]
    assert tables(shorter) is None


def test_no_damage_of_the_tables_makes_them_raise(make_video: Callable[..., Path], tmp_path: Path) -> None:
    """A flipped byte gives nothing, or times that FFmpeg would give too: it reads the same numbers."""
    whole = make_video("clip.mp4", num_frames=40).read_bytes()
    first, draw = whole.index(b"moov") - 4, random.Random(0)
    said = 0
    for _ in range(600):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(first, len(whole))] ^= 1 << draw.randrange(8)
        found = tables(bytes(data))
        said += found is not None
        if found is not None:
            assert len(found.shown) == len(found.is_key) == 40
            assert np.abs(found.shown).max() < 1 << 48
    assert 0 < said < 600


def test_a_damaged_table_never_says_other_times_than_ffmpeg(
    make_video: Callable[..., Path], tmp_path: Path
) -> None:
    whole = make_video("clip.mp4", num_frames=40).read_bytes()
    draw, same = random.Random(1), 0
    for box in (b"stts", b"ctts", b"stss", b"stsz", b"stsc", b"stco", b"elst"):
        at = whole.index(box) + 4
        for _ in range(4):
            data = bytearray(whole)
            data[at + draw.randrange(4, 16)] ^= 1 << draw.randrange(8)
            found = tables(bytes(data))
            if found is None:
                continue
            path = tmp_path / "damaged.mp4"
            path.write_bytes(data)
            try:
                assert reported(found)[0] == packets(path)[0]
                same += 1
            except MediaError:
                continue
    assert same
