"""Clean clips of unusual containers that the probe must not reject, with the same verdict at every level."""

import os
import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest

from tests.conftest import moving_square
from tests.field_pictures import write_field_pictures
from vidcurate.curation.probe.stage import probe_file
from vidcurate.errors import MediaError
from vidcurate.media import decode, encode
from vidcurate.media.coded_units.field_pictures import FieldPairs

Make = Callable[..., Path]
LEVELS = ("index", "keyframes", "full")


def verdicts(path: Path) -> list[tuple[str, str | None, int]]:
    rows = [probe_file(str(path), level) for level in LEVELS]
    return [(row["probe_status"], row["probe_findings"], row["num_frames"]) for row in rows]


@pytest.mark.parametrize("flags", ["frag_keyframe", "frag_keyframe+empty_moov", "frag_keyframe+faststart"])
def test_a_fragmented_mp4_has_the_frames_of_all_its_fragments(make_video: Make, flags: str) -> None:
    path = make_video("clip.mp4", num_frames=96, gop=12, container_options={"movflags": flags})

    assert verdicts(path) == [("ok", None, 96)] * 3
    row = probe_file(str(path))
    assert row["duration_seconds"] == pytest.approx(4.0)
    assert row["num_frames_from_header"] is None


def trimmed(path: Path, target: Path, *, start: int, count: int) -> Path:
    """Copy an MP4 of 24 fps with an edit list that shows `count` frames from frame `start`."""
    data = bytearray(path.read_bytes())
    at = data.find(b"elst") + 12
    media_time = struct.unpack(">i", data[at + 4 : at + 8])[0]
    movie, media = data.find(b"mvhd") + 16, data.find(b"mdhd") + 16
    ticks = [struct.unpack(">I", data[place : place + 4])[0] for place in (movie, media)]
    edit = (round(count / 24 * ticks[0]), media_time + round(start / 24 * ticks[1]))
    data[at : at + 8] = struct.pack(">Ii", *edit)
    target.write_bytes(data)
    return target


@pytest.mark.parametrize(("start", "count"), [(0, 96), (30, 40), (24, 24), (50, 46), (0, 12)])
def test_an_mp4_trimmed_by_its_edit_list_has_the_frames_that_are_shown(
    tmp_path: Path, make_video: Make, start: int, count: int
) -> None:
    source = make_video("clip.mp4", num_frames=96, gop=24)

    path = trimmed(source, tmp_path / "trimmed.mp4", start=start, count=count)

    for level in LEVELS:
        row = probe_file(str(path), level)
        assert row["probe_status"] == "ok", row["probe_problem"]
        assert abs(row["num_frames"] - count) <= 2  # FFmpeg rounds an edit's ends to frames
    assert row["num_frames_from_index"] == row["num_frames_from_decode"]


def test_a_cut_mp4_with_an_edit_list_is_still_truncated(tmp_path: Path, make_video: Make) -> None:
    options = {"container_options": {"movflags": "+faststart"}}
    path = trimmed(
        make_video("clip.mp4", num_frames=96, gop=24, **options), tmp_path / "a.mp4", start=30, count=60
    )
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.8)])

    assert probe_file(str(path))["probe_status"] == "truncated"


def hidden_pictures(path: Path) -> int:
    """Write 60 shown pictures of VP9, and put hidden ones into packets of their own; return how many."""
    whole = path.with_name("whole.webm")
    encoding = {"lag-in-frames": "25", "deadline": "realtime", "cpu-used": "8", "b": "300k"}
    with av.open(os.fspath(whole), "w") as container:
        stream: Any = container.add_stream("libvpx-vp9", rate=24, options=encoding)
        stream.width, stream.height, stream.pix_fmt = 640, 360, "yuv420p"
        for image in moving_square(60, 360, 640):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    count = 0
    with (
        av.open(os.fspath(whole)) as source,
        av.open(os.fspath(path), "w", options={"fflags": "-autobsf"}) as output,
    ):
        stream = source.streams.video[0]
        target = output.add_stream_from_template(stream)
        split = av.BitStreamFilterContext("vp9_superframe_split", stream)
        for packet in source.demux(stream):
            for part in split.filter(packet if packet.size else None):
                if path.suffix == ".mp4":
                    part.pts = part.dts = count * 40
                part.stream = target
                output.mux(part)
                count += 1
    return count - 60


@pytest.mark.parametrize("name", ["clip.webm", "clip.mkv", "clip.mp4"])
def test_hidden_pictures_in_packets_of_their_own_are_not_missing(tmp_path: Path, name: str) -> None:
    path = tmp_path / name

    assert hidden_pictures(path) >= 2

    for level in LEVELS:
        row = probe_file(str(path), level)
        assert (row["probe_status"], row["probe_findings"]) == ("ok", None), row["probe_problem"]
        assert row["num_frames"] == row["num_frames_from_index"] == 60
    assert row["num_frames_from_decode"] == 60
    assert probe_file(str(path), "header")["num_frames"] is None


def without_times(source: Path, target: Path) -> Path:
    """Copy the packets as a muxer does that knows no times: one tick of its clock apart."""
    with av.open(os.fspath(source)) as given, av.open(os.fspath(target), "w") as output:
        stream = given.streams.video[0]
        copy = output.add_stream_from_template(stream)
        for number, packet in enumerate(part for part in given.demux(stream) if part.size):
            packet.stream = copy
            packet.pts = packet.dts = number
            packet.time_base = Fraction(1, 90_000 if target.suffix == ".ts" else 1000)
            packet.duration = 0
            output.mux(packet)
    return target


@pytest.mark.parametrize("name", ["clip.mkv", "clip.ts"])
def test_packets_without_times_have_the_rate_of_their_header_and_a_note(
    tmp_path: Path, make_video: Make, name: str
) -> None:
    path = without_times(make_video("clip.mp4", num_frames=48), tmp_path / name)

    for level in LEVELS:
        row = probe_file(str(path), level)
        assert (row["probe_status"], row["probe_findings"]) == ("ok", "no_timestamps")
        assert row["num_frames"] == 48
        assert row["fps"] == pytest.approx(24.0)
        assert row["duration_seconds"] == pytest.approx(2.0)
        assert row["duration_seconds_from_index"] is row["duration_seconds_from_decode"] is None


def written(path: Path, *, begins: float, sound: tuple[float, float] | None) -> Path:
    """Write two seconds of pictures from `begins` on, and sound between two times, all in seconds."""
    codecs = ("libvpx", "libopus") if path.suffix == ".webm" else ("libx264", "aac")
    with av.open(os.fspath(path), "w") as output:
        video: Any = output.add_stream(codecs[0], rate=24)
        video.width, video.height, video.pix_fmt = 96, 64, "yuv420p"
        audio: Any = output.add_stream(codecs[1], rate=48_000) if sound else None
        for number, image in enumerate(moving_square(48, 64, 96)):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = number + round(24 * begins), Fraction(1, 24)
            output.mux(video.encode(frame))
        output.mux(video.encode(None))
        for number in range(*(round(50 * seconds) for seconds in sound or (0, 0))):
            piece = av.AudioFrame(
                format="flt" if path.suffix == ".webm" else "fltp", layout="mono", samples=960
            )
            for plane in piece.planes:
                plane.update(bytes(plane.buffer_size))
            piece.sample_rate, piece.pts, piece.time_base = 48_000, 960 * number, Fraction(1, 48_000)
            output.mux(audio.encode(piece))
        if audio:
            output.mux(audio.encode(None))
    return path


@pytest.mark.parametrize("name", ["clip.mkv", "clip.webm", "clip.flv"])
@pytest.mark.parametrize(
    ("begins", "sound"), [(0, (0, 6)), (0, (3, 6)), (4, (0, 6)), (3, None), (0, (0, 1)), (0, (0, 2))]
)
def test_a_clip_whose_sound_is_longer_or_begins_elsewhere_is_whole(
    tmp_path: Path, name: str, begins: float, sound: tuple[float, float] | None
) -> None:
    path = written(tmp_path / name, begins=begins, sound=sound)

    found = {row[1] for row in verdicts(path)}

    assert {row[::2] for row in verdicts(path)} == {("ok", 48)}
    length = sound[1] - sound[0] if sound else 2
    assert found == {"audio_duration_differs"} if abs(length - 2) > 0.5 else {None}
    assert probe_file(str(path))["duration_seconds"] == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize("codec", ["mjpeg", "png"])
def test_a_picture_with_a_videos_name_is_noted(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(encode.encode_image(moving_square(1)[0], codec))

    assert [found for _, found, _ in verdicts(path)] == ["still_image"] * 3


@pytest.mark.parametrize("brand", [b"avif", b"heic"])
def test_a_picture_in_an_mp4_is_noted(tmp_path: Path, make_video: Make, brand: bytes) -> None:
    data = make_video("clip.mp4", num_frames=1).read_bytes()
    path = tmp_path / "picture.mp4"
    path.write_bytes(data[:8] + brand + data[12:])

    assert [found for _, found, _ in verdicts(path)] == ["still_image"] * 3


@pytest.mark.parametrize("num_frames", [1, 12])
def test_a_gif_is_a_still_image_where_it_has_one_picture(tmp_path: Path, num_frames: int) -> None:
    with av.open(str(tmp_path / "clip.gif"), "w") as container:
        stream: Any = container.add_stream("gif", rate=10)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "rgb8"
        for image in moving_square(num_frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    path = (tmp_path / "clip.gif").rename(tmp_path / "clip.mp4")

    note = "still_image" if num_frames == 1 else None
    assert verdicts(path) == [("ok", note, num_frames)] * 3


def test_a_row_of_pictures_is_a_video_without_times(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"".join(encode.encode_image(image, "png") for image in moving_square(12)))

    assert verdicts(path) == [("ok", "no_timestamps", 12)] * 3


def test_an_mp4_whose_pictures_are_a_tick_apart_has_no_rate(tmp_path: Path, make_video: Make) -> None:
    data = make_video("clip.mp4", num_frames=48, codec="mpeg4", crf=None).read_bytes()
    at = data.find(b"stts") + 8
    assert data[at : at + 4] == (1).to_bytes(4, "big")
    path = tmp_path / "ticks.mp4"
    path.write_bytes(data[: at + 8] + (1).to_bytes(4, "big") + data[at + 12 :])

    for level in LEVELS:
        row = probe_file(str(path), level)
        assert (row["probe_status"], row["num_frames"]) == ("ok", 48)
        assert "no_timestamps" in row["probe_findings"]
        assert row["fps"] is row["duration_seconds"] is None


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("clip.mp4", "libx264"),
        ("clip.avi", "mpeg4"),
        ("clip.mkv", "mpeg4"),
        ("clip.webm", "libvpx-vp9"),
        ("clip.flv", "libx264"),
    ],
)
def test_two_movies_in_one_file_are_noted(tmp_path: Path, make_video: Make, name: str, codec: str) -> None:
    one = make_video(name, num_frames=24, codec=codec, crf=None)
    path = tmp_path / name
    path.write_bytes(one.read_bytes() * 2)

    assert probe_file(str(one), "full")["probe_findings"] is None
    for level in LEVELS:
        row = probe_file(str(path), level)
        assert row["probe_status"] == "ok"
        assert "several_movies" in (row["probe_findings"] or "")
        assert row["num_frames_from_index"] in (24, 48)  # FFmpeg reads on in Matroska
        assert row["fps"] == pytest.approx(24)


@pytest.mark.parametrize("name", ["clip.mts", "clip.mkv"])
def test_two_fields_in_two_packets_are_one_frame_at_every_level(tmp_path: Path, name: str) -> None:
    path = write_field_pictures(tmp_path / name, num_frames=24, gop=8)

    rows = [probe_file(str(path), level) for level in LEVELS]
    first = probe_file(str(path), "header")

    assert [(row["probe_status"], row["probe_findings"]) for row in [first, *rows]] == [("ok", None)] * 4
    assert [(row["num_frames"], row["fps"]) for row in rows] == [(24, pytest.approx(25.0))] * 3
    assert (first["num_frames"], first["fps"]) == (None, pytest.approx(25.0))
    assert first["fps_from_header"] == pytest.approx(50.0)  # FFmpeg counts packets
    assert rows[2]["num_frames_from_index"] == rows[2]["num_frames_from_decode"]
    assert rows[0]["duration_seconds"] == pytest.approx(0.96)


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mov"])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_an_mp4_of_fields_has_no_rate_and_no_count_by_its_header_alone(
    tmp_path: Path, name: str, is_mixed: bool
) -> None:
    path = write_field_pictures(tmp_path / ("clip.mkv" if is_mixed else name), num_frames=24, gop=8)
    if is_mixed:  # packets of one field after packets of two
        path = with_frames_at_the_start(path, tmp_path / name, num_frames=8)

    first, *rows = (probe_file(str(path), level) for level in ("header", *LEVELS))

    assert first["num_frames"] is first["fps"] is None
    assert [(row["num_frames"], row["fps"]) for row in rows] == [(24, pytest.approx(25.0))] * 3


def with_frames_at_the_start(source: Path, target: Path, *, num_frames: int) -> Path:
    """Copy field pictures; the first frames have both fields in one packet."""
    with av.open(os.fspath(source)) as given, av.open(os.fspath(target), "w") as output:
        stream = given.streams.video[0]
        copy = output.add_stream_from_template(stream)
        packets = [packet for packet in given.demux(stream) if packet.size]
        while packets:
            first = packets.pop(0)
            joined = av.Packet(bytes(first) + (bytes(packets.pop(0)) if num_frames > 0 else b""))
            joined.pts, joined.dts, joined.time_base = first.pts, first.dts, first.time_base
            joined.duration = round(Fraction(1, 50) / first.time_base)
            joined.stream, joined.is_keyframe = copy, first.is_keyframe
            output.mux(joined)
            num_frames -= 1
    return target


@pytest.mark.parametrize("name", ["clip.mts", "clip.mkv", "clip.mp4"])
def test_interlaced_frames_in_one_packet_keep_the_rate_of_the_header(tmp_path: Path, name: str) -> None:
    with av.open(str(tmp_path / name), "w") as container:
        options = {"x264-params": "interlaced=1:bframes=2:log-level=none"}
        stream: Any = container.add_stream("libx264", rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for picture in moving_square(24, 64, 64):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    with av.open(str(tmp_path / name)) as container:
        assert FieldPairs(container.streams.video[0]).may_occur

    assert [probe_file(str(tmp_path / name), level)["fps"] for level in ("header", *LEVELS)] == [25.0] * 4


def test_frames_of_field_pictures_are_found_by_their_number(tmp_path: Path) -> None:
    path = write_field_pictures(tmp_path / "clip.mkv", num_frames=24, gop=8)

    frames = decode.read_frames(path, [3, 20], height=32, width=32)

    assert frames[:, 16, 16, 0].tolist() == pytest.approx(
        [(46 - 16) * 255 / 219, (80 - 16) * 255 / 219], abs=3
    )
    with pytest.raises(MediaError, match="frame 24 does not exist"):
        decode.read_frames(path, [24], height=32, width=32)


def test_a_lone_field_is_a_frame_and_a_broken_header_is_none() -> None:
    class Stream:
        class codec_context:
            extradata = b"\0\0\1\x67\xff"

            class codec:
                canonical_name = "h264"

    pairs = FieldPairs(Stream)
    assert not pairs.may_occur
