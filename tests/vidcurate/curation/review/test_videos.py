"""Videos as browsers ask for them: ranges, transcoding on demand, its limits."""

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import pytest

from tests.vidcurate.curation.review.conftest import Server
from tests.vidcurate.curation.review.test_query import page
from vidcurate.curation.review.transcode_cache import BusyError, TranscodeCache
from vidcurate.curation.review.video_files import Posters, how_played, poster
from vidcurate.errors import MediaError


def row_of(server: Server, played: str) -> dict[str, Any]:
    rows = page(server, {"words": {"is_kept": ["true"]}})["rows"]
    found: dict[str, Any] = next(one for one in rows if one["video"] == played)
    return found


def test_any_range_of_a_file_is_served_as_it_is(server: Server) -> None:
    clip = row_of(server, "file")
    assert server.session.videos is not None
    data = (server.session.videos / clip["video_path"]).read_bytes()
    url = f"/media/file/{clip['row']}"
    whole = server.client.get(url)
    assert (whole.status_code, whole.content) == (200, data)
    assert whole.headers["accept-ranges"] == "bytes"
    assert whole.headers["content-type"].startswith("video/")
    for asked, part in (("bytes=0-9", data[:10]), ("bytes=100-", data[100:]), ("bytes=-7", data[-7:])):
        response = server.client.get(url, headers={"range": asked})
        assert (response.status_code, response.content) == (206, part)
    beyond = server.client.get(url, headers={"range": f"bytes={len(data)}-"})
    assert beyond.status_code == 416


def test_a_format_that_browsers_do_not_play_comes_as_mp4_with_the_same_frames(server: Server) -> None:
    clip = row_of(server, "transcode")
    assert server.client.get(f"/media/file/{clip['row']}").status_code == 404
    made = server.client.get(f"/media/transcoded/{clip['row']}")
    assert made.status_code == 200
    assert made.headers["content-type"] == "video/mp4"
    with av.open(io.BytesIO(made.content)) as container:
        assert container.streams.video[0].codec_context.name == "h264"
        assert sum(1 for _ in container.decode(video=0)) == clip["num_frames"]
    part = server.client.get(f"/media/transcoded/{clip['row']}", headers={"range": "bytes=0-3"})
    assert (part.status_code, part.content) == (206, made.content[:4])


def test_a_poster_is_a_jpeg_and_a_broken_file_says_so(server: Server, tmp_path: Path) -> None:
    found = server.client.get(f"/media/poster/{row_of(server, 'file')['row']}")
    assert found.headers["content-type"] == "image/jpeg"
    assert found.content[:2] == b"\xff\xd8"
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video" * 99)
    with pytest.raises(MediaError):
        poster(broken, {})


def test_a_posters_file_that_changes_is_read_again(make_video: Callable[..., Path], tmp_path: Path) -> None:
    path, posters = tmp_path / "clip.mp4", Posters()
    path.write_bytes(make_video(num_frames=8).read_bytes())
    first = posters.of(path, {"num_frames": 8, "width": 96, "height": 64})
    assert posters.of(path, {"num_frames": 8, "width": 96, "height": 64}) is first
    path.write_bytes(b"")
    with pytest.raises(MediaError):
        posters.of(path, {"num_frames": 8, "width": 96, "height": 64})


def test_which_files_are_played_as_they_are() -> None:
    good = {"video_path": "a.mp4", "codec": "h264", "pixel_format": "yuv420p"}
    assert how_played(good) == "file"
    assert how_played({"video_path": "a.WEBM"}) == "file"  # not probed: the browser tries, and falls back
    for change in ({"video_path": "a.mkv"}, {"codec": "hevc"}, {"pixel_format": "yuv420p10le"}):
        assert how_played(good | change) == "transcode"


def test_the_cache_makes_a_clip_once_and_stays_within_its_bytes(
    make_video: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_video(num_frames=24)

    async def work() -> None:
        cache = TranscodeCache(tmp_path / "cache")
        one, same = await asyncio.gather(cache.clip(source, None, None), cache.clip(source, None, None))
        assert one == same
        made = one.stat()
        assert (await cache.clip(source, None, None)).stat().st_ino == made.st_ino
        small = TranscodeCache(tmp_path / "cache", most_bytes=made.st_size + 10)
        part = await small.clip(source, 0.25, 0.75)
        assert part.is_file()
        assert not one.exists()
        assert [path.name for path in (tmp_path / "cache").iterdir()] == [part.name]
        with av.open(str(part)) as container:
            assert sum(1 for _ in container.decode(video=0)) == 12

    asyncio.run(work())


def test_a_failed_clip_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "broken.mp4"
    source.write_bytes(b"\0" * 4000)

    async def work() -> None:
        cache = TranscodeCache(tmp_path / "cache")
        with pytest.raises(MediaError, match=r"broken\.mp4: cannot be transcoded"):
            await cache.clip(source, None, None)
        assert list((tmp_path / "cache").iterdir()) == []

    asyncio.run(work())


def test_more_than_32_waiting_clips_are_refused_and_closing_ends_all(
    make_video: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_video(num_frames=24)

    async def work() -> None:
        cache = TranscodeCache(tmp_path / "cache", jobs=1)
        waiting = [asyncio.create_task(cache.clip(source, 0.0, 0.5 + one / 100)) for one in range(32)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await cache.clip(source, 0.0, 0.99)
        await asyncio.sleep(0)
        await cache.close()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended)

    asyncio.run(work())
