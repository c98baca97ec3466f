import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidcurate.errors import ShardError
from vidcurate.media.container import opened
from vidcurate.media.decode import count_decodable_frames, read_frames
from vidcurate.media.frame_map import FrameMap, parse
from vidcurate.media.headers import read_header_and_index
from vidcurate.media.packets import frame_map_of


@given(
    st.fractions(min_value=Fraction(1, 10**6), max_value=1, max_denominator=10**6),
    st.integers(-(10**12), 10**12),
    st.lists(st.integers(1, 10**6) | st.just(512), max_size=60),
    st.data(),
)
def test_a_map_reads_back_as_it_was_written(base: Fraction, first: int, steps: list[int], data) -> None:  # type: ignore[no-untyped-def]
    pts = np.cumsum(np.array([first, *steps], dtype=np.int64))
    keys = sorted(data.draw(st.sets(st.integers(0, len(pts) - 1), max_size=9)))

    read = parse(FrameMap(time_base=base, pts=pts, key_frames=np.array(keys, dtype=np.int64)).to_bytes())

    assert read.time_base == base
    assert read.pts.tolist() == pts.tolist()
    assert read.key_frames.tolist() == keys
    for number in range(len(pts)):
        assert read.key_before(number) == max([key for key in keys if key <= number], default=0)


def test_a_map_of_a_constant_rate_is_small_however_long_the_clip() -> None:
    pts = np.arange(20_000, dtype=np.int64) * 512

    data = FrameMap(time_base=Fraction(1, 12_288), pts=pts, key_frames=np.arange(0, 20_000, 48)).to_bytes()

    assert len(data) < 24


def test_damaged_bytes_are_no_map() -> None:
    whole = FrameMap(
        time_base=Fraction(1, 1000), pts=np.array([0, 33, 67, 100]), key_frames=np.array([0, 3])
    ).to_bytes()

    for data in (b"", b"\x02" + whole[1:], *(whole[:end] for end in range(1, len(whole))), whole + b"\x01"):
        with pytest.raises(ShardError, match="frame map"):
            parse(data)
    with pytest.raises(ShardError, match="too large"):
        parse(b"\xff" * 40)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.mp4", {"codec": "libx264"}),
        ("b.mp4", {"codec": "libx265"}),
        ("c.webm", {"codec": "libvpx-vp9"}),
        ("d.webm", {"codec": "libvpx"}),
        ("e.mkv", {"codec": "libx264"}),
        ("g.mp4", {"codec": "libx264", "container_options": {"movflags": "frag_keyframe+empty_moov"}}),
    ],
)
def test_a_map_of_a_file_is_found_without_decoding(make_video, name: str, options: dict) -> None:  # type: ignore[no-untyped-def, type-arg]
    path: Path = make_video(name, num_frames=30, gop=12, **options)

    found = frame_map_of(path)

    assert found is not None
    seconds = (found.pts - found.pts[0]) * float(found.time_base)
    assert np.abs(seconds - np.arange(30) / 24).max() < 0.002
    assert found.key_frames.tolist() == ([0, 12, 24])
    assert parse(found.to_bytes()).pts.tolist() == found.pts.tolist()
    assert np.array_equal(frame_map_of(path.read_bytes()).pts, found.pts)  # type: ignore[union-attr]


def test_what_cannot_be_sought_exactly_has_no_map(make_video) -> None:  # type: ignore[no-untyped-def]
    for name in ("stream.h264", "stream.ts"):
        assert frame_map_of(make_video(name, num_frames=6)) is None


@pytest.mark.engine
@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="PyAV cannot encode in two passes: needs ffmpeg")
def test_hidden_reference_pictures_are_no_frames(tmp_path: Path) -> None:
    path = tmp_path / "hidden.webm"
    picture = "-f lavfi -i testsrc2=size=96x64:rate=24:duration=2 -threads 1 -passlogfile log"
    codec = "-c:v libvpx -b:v 60k -auto-alt-ref 1 -lag-in-frames 16 -arnr-maxframes 5"
    for number in (1, 2):
        command = f"ffmpeg -v error -y {picture} {codec} -pass {number} {path.name}"
        subprocess.run(command.split(), check=True, cwd=tmp_path)
    with opened(path) as (container, stream):
        num_packets = sum(1 for packet in container.demux(stream) if packet.size)

    found = frame_map_of(path)

    assert num_packets > 48 == count_decodable_frames(path)
    assert found is not None
    assert len(found) == read_header_and_index(path)[1].num_frames == 48
    every = read_frames(path, range(48), height=32, width=48)
    for first in range(0, 46, 9):
        wanted = [first, first + 1]
        assert np.array_equal(read_frames(path, wanted, height=32, width=48, frame_map=found), every[wanted])
