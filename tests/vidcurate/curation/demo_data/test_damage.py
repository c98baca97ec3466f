"""Broken files that are broken in the way that was asked for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from vidcurate.curation.demo_data import damage
from vidcurate.curation.probe.stage import probe_file
from vidcurate.errors import MediaError
from vidcurate.media import decode

MakeVideo = Callable[..., Path]


@pytest.fixture(scope="module")
def mp4(make_video: MakeVideo) -> bytes:
    return make_video("damage.mp4", num_frames=48, gop=12).read_bytes()


def _status(tmp_path: Path, data: bytes, name: str = "x.mp4") -> str:
    path = tmp_path / name
    path.write_bytes(data)
    return str(probe_file(str(path))["probe_status"])


def test_a_moved_index_plays_the_same_frames(mp4: bytes) -> None:
    moved = damage.faststart(mp4)

    assert not damage.is_faststart(mp4)
    assert damage.is_faststart(moved)
    assert len(moved) == len(mp4)
    assert damage.faststart(moved) == moved
    wanted = range(0, 48, 5)
    before = decode.read_frames(mp4, wanted, height=64, width=96)
    assert (decode.read_frames(moved, wanted, height=64, width=96) == before).all()


def test_what_has_no_index_to_move_is_an_error() -> None:
    with pytest.raises(ValueError, match="no moov"):
        damage.faststart(b"\x00\x00\x00\x08mdat")
    with pytest.raises(ValueError, match="no moov"):
        damage.faststart(b"")


@pytest.mark.parametrize(
    ("fraction", "index_last", "index_first"),
    [
        (0.05, "unreadable", "no_video_stream"),
        (0.6, "unreadable", "truncated"),
        # What ends this file's index is a tag: every frame is still there, and the index is cut all the same.
        (0.99, "truncated", "truncated"),
    ],
)
def test_what_is_left_of_a_truncated_file_depends_on_where_its_index_lies(
    mp4: bytes, tmp_path: Path, fraction: float, index_last: str, index_first: str
) -> None:
    cut = damage.truncate(mp4, fraction)
    assert len(cut) == int(fraction * len(mp4))
    assert _status(tmp_path, cut) == index_last
    assert _status(tmp_path, damage.truncate(damage.faststart(mp4), fraction)) == index_first


def test_flipped_bytes_change_the_pictures_and_not_the_header(mp4: bytes, tmp_path: Path) -> None:
    flipped = damage.flip_bytes(mp4, seed=1, count=30)
    first, stop = damage.payload_range(mp4)
    changed = [number for number in range(len(mp4)) if mp4[number] != flipped[number]]

    assert len(flipped) == len(mp4)
    assert len(changed) == 30
    assert first <= changed[0]
    assert changed[-1] < stop
    assert damage.flip_bytes(mp4, seed=1, count=30) == flipped
    assert damage.flip_bytes(mp4, seed=2, count=30) != flipped
    assert _status(tmp_path, flipped) == "ok"
    with pytest.raises(MediaError):
        decode.read_frames(flipped, range(48), height=32, width=48)


def test_a_zeroed_block_lies_in_the_pictures(mp4: bytes, tmp_path: Path) -> None:
    zeroed = damage.zero_block(mp4, size_bytes=1000, within=(0.3, 1.0))
    first, stop = damage.payload_range(mp4)
    begin = first + int(0.3 * (stop - first))

    assert len(zeroed) == len(mp4)
    assert zeroed[begin : begin + 1000] == bytes(1000)
    assert (zeroed[:begin], zeroed[begin + 1000 :]) == (mp4[:begin], mp4[begin + 1000 :])
    assert _status(tmp_path, zeroed) == "ok"


def test_damage_larger_than_the_payload_stays_inside_it(mp4: bytes) -> None:
    first, stop = damage.payload_range(mp4)
    zeroed = damage.zero_block(mp4, size_bytes=10 * len(mp4), within=(0.0, 1.0))
    assert zeroed[first:stop] == bytes(stop - first)
    assert (zeroed[:first], zeroed[stop:]) == (mp4[:first], mp4[stop:])
    flipped = damage.flip_bytes(mp4, seed=0, count=10 * len(mp4), within=(0.0, 1.0))
    assert (flipped[:first], flipped[stop:]) == (mp4[:first], mp4[stop:])
    assert all(a != b for a, b in zip(flipped[first:stop], mp4[first:stop], strict=True))


def test_a_garbage_tail_leaves_every_frame(mp4: bytes, tmp_path: Path) -> None:
    tailed = damage.garbage_tail(mp4, seed=0, size_bytes=5000)
    assert tailed[: len(mp4)] == mp4
    assert len(tailed) == len(mp4) + 5000
    assert _status(tmp_path, tailed) == "ok"
    assert decode.count_decodable_frames(tailed) == 48


def test_the_head_of_another_container_is_spared(make_video: MakeVideo) -> None:
    data = make_video("damage.mkv", num_frames=24).read_bytes()
    first, stop = damage.payload_range(data)
    assert (first, stop) == (len(data) // 5, len(data))
    assert damage.flip_bytes(data, seed=0, count=9)[:first] == data[:first]
    assert not damage.is_faststart(data)


def test_empty_input_stays_empty() -> None:
    assert damage.truncate(b"", 0.5) == b""
    assert damage.flip_bytes(b"", seed=0, count=3) == b""
    assert damage.zero_block(b"", size_bytes=3) == b""
