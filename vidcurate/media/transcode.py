"""Transcode or trim a clip out of its file.

`trim_video` copies the coded packets, `transcode_video` decodes and encodes again. Neither ever shows a frame
from outside the interval (a frame belongs to the interval that contains its middle), as that frame may belong
to the neighbouring scene. Both drop sound. The same file, interval and FFmpeg give the same bytes: one
thread, no clock, no random ids.
"""

import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vidcurate.errors import MediaError
from vidcurate.media.container import codec_of, opened, packets_of, reason_of
from vidcurate.media.display_times import DisplayTimes, are_guessed
from vidcurate.media.packet_times import set_times
from vidcurate.media.packets import SEEKABLE
from vidcurate.media.scale import ClipOrientation, Orientation, cover, frame_with_message
from vidcurate.recipe.recipe import Recipe

# Codecs that mp4 carries; `trim_video` writes others to Matroska.
MP4_CODECS = {"h264", "hevc", "av1", "vp9", "mpeg4"}
_FORMATS = {"mp4": "mp4", "mkv": "matroska"}
# Rates above are time bases that a header gives for a frame rate (FLV says 1000).
_MAX_FPS = 240
_MOST_HELD = 2  # frames
# x264's macroblock tree (AVX-512) reads uninitialized memory when the width is not a multiple of 64: the
# same frames gave other bytes in 34 of 40 trials, and in none without the macroblock tree.
_X264 = "mbtree=0"


class TranscodeSpec(Recipe):
    """Encoder settings of clips: H.264 in MP4, 4:2:0, constant rate, upright, square pixels."""

    crf: int = Field(default=18, ge=0, le=51, description="quality; lower is better and larger")
    gop_frames: int = Field(default=48, ge=1, description="most frames from one key frame to the next")
    short_side_px: int | None = Field(
        default=None,
        ge=16,
        description="scale larger clips down so that their shorter side is this; never up",
    )
    fps: float | None = Field(
        default=None,
        gt=0,
        le=_MAX_FPS,
        description="frame rate: each frame is the one shown at its time; null: the file's average",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Clip cut out of its file. `facts` are the table columns whose values the cut changes."""

    payload: bytes
    extension: str
    facts: dict[str, int | float] = field(default_factory=dict)


def ffmpeg_version() -> str:
    """Return the versions of PyAV and FFmpeg, on which the bytes of a cut depend."""
    return f"PyAV {av.__version__} (FFmpeg {av.ffmpeg_version_info})"


def frame_rate(container: Any, stream: Any) -> Fraction:
    """Return the frame rate of the header, else of the packets.

    Raises MediaError, kind cannot_cut, when both are unknown.
    """
    rate = stream.average_rate
    if rate and rate <= _MAX_FPS:
        return Fraction(rate)
    stamps = np.sort([packet.pts for packet in packets_of(container, stream) if packet.pts is not None])
    container.seek(0)
    step = float(np.median(np.diff(stamps))) * float(stream.time_base) if len(stamps) > 1 else 0.0
    if step < 1 / _MAX_FPS:
        raise MediaError("its frame rate is not known.", kind="cannot_cut")
    return Fraction(1 / step).limit_denominator(1001)


def origin_seconds(stream: Any) -> float:
    """Return the first time stamp of the file: times of clips count from there."""
    return float((stream.start_time or 0) * stream.time_base)


def seek_before(container: Any, stream: Any, start: float | None) -> Any:
    """Seek to a key frame at or before `start` seconds; do nothing in containers without exact seeks.

    Returns the file's first frame where its packet has an orientation message, which holds behind the seek.
    """
    if not start or container.format.name.split(",")[0] not in SEEKABLE or are_guessed(container, stream):
        return None
    first = frame_with_message(container, stream)
    target = int((start + origin_seconds(stream)) / stream.time_base)
    container.seek(max(target, stream.start_time or 0), stream=stream, backward=True)
    return first


def _wanted_packets(
    container: Any, stream: Any, rate: Fraction, start: float, end: float
) -> tuple[list[Any], NDArray[np.float64]]:
    """Return the packets to copy in decoding order, and their times in seconds after the file's start."""
    half, origin = float(1 / rate) / 2, origin_seconds(stream)
    packets: list[Any] = []
    times: list[float] = []
    for packet in packets_of(container, stream):
        if not packet.size or packet.is_discard:
            continue
        if packet.pts is None or are_guessed(container, stream):
            raise MediaError(
                "its packets have no time stamps to cut at; use mode: transcode.", kind="cannot_cut"
            )
        time = float(packet.pts * stream.time_base) - origin
        if not packets and not (packet.is_keyframe and time + half >= start):
            continue
        # Leading frames of an open GOP reference frames before the cut.
        if packets and time < times[0]:
            continue
        # Frames may reference the first packet after the end: stop there.
        if time + half >= end:
            break
        packets.append(packet)
        times.append(time)
    if not packets:
        raise MediaError(
            f"no key frame between {start:g} s and {end:g} s; use mode: transcode.", kind="cannot_cut"
        )
    return packets, np.asarray(times)


def trim_video(source: Path, start_seconds: float | None, end_seconds: float | None) -> Cut:
    """Return the part from the first key frame in the interval to its end (exclusive), without re-encoding.

    The part begins at a key frame, so up to one key-frame interval after `start_seconds`; with B-frames it
    may end up to one group of frames early. None means the start or the end of the file. Raises MediaError,
    kind cannot_cut when the interval has no key frame or the packets have no times.
    """
    start, end = start_seconds or 0.0, float("inf") if end_seconds is None else end_seconds
    target = io.BytesIO()
    with opened(source) as (container, stream):
        extension = "mp4" if codec_of(stream) in MP4_CODECS else "mkv"
        try:
            rate = frame_rate(container, stream)
            seek_before(container, stream, start)
            packets, times = _wanted_packets(container, stream, rate, start, end)
            output = av.open(target, "w", format=_FORMATS[extension], options={"fflags": "+bitexact"})
            try:
                copy = output.add_stream_from_template(stream)
                copy.time_base = set_times(packets, stream.time_base, rate)
                first = min(packet.pts for packet in packets)
                for packet in packets:
                    packet.pts, packet.dts = packet.pts - first, packet.dts - first
                    packet.stream = copy
                    output.mux(packet)
            finally:
                output.close()
        except (av.FFmpegError, OSError, ValueError) as error:
            raise MediaError(f"cannot be trimmed ({reason_of(error)}).", kind="cannot_cut") from error
    begin, finish = float(times.min()), float(times.max()) + float(1 / rate)
    steps = np.diff(np.sort(times))
    is_constant = len(steps) == 0 or float(np.ptp(steps)) < 0.1 / rate
    return Cut(
        payload=target.getvalue(),
        extension=extension,
        facts={
            "num_frames": len(packets),
            "fps": float(rate) if is_constant else round(len(packets) / (finish - begin), 6),
            "duration_seconds": round(finish - begin, 6),
            "start_seconds": round(begin, 6),
            "end_seconds": round(finish, 6),
        },
    )


def _frames_in(
    container: Any, stream: Any, rate: Fraction, start: float, end: float, turn: ClipOrientation
) -> Iterator[tuple[float, Any]]:
    """Yield (seconds after the file's start, frame) of the frames in the interval, in display order.

    `turn` receives the first frame decoded, which may lie before the interval.
    """
    half, origin = float(1 / rate) / 2, origin_seconds(stream)
    times = DisplayTimes(container, stream)
    for packet in packets_of(container, stream):
        times.add(packet)
        for frame in packet.decode():
            turn.of(frame)
            shown = times.of(frame)
            if shown is None:
                raise MediaError("a frame has no time stamp.", kind="cannot_cut")
            time = shown - origin
            if time + half >= end:
                return
            if time + half >= start:
                if frame.is_corrupt:
                    raise MediaError(f"the frame at {time:.3f} s is damaged.", kind="corrupt_frame")
                yield time, frame


def first_frame(
    source: Path, start_seconds: float, end_seconds: float, *, height: int, width: int
) -> NDArray[np.uint8]:
    """Return the interval's first frame as uint8 RGB (height, width, 3), as `decode.read_frames` does.

    Seeks by time, without reading the rest of a long file. Raises MediaError, kind no_frames, corrupt_frame
    or unreadable.
    """
    with opened(source) as (container, stream):
        aspect, turn = float(stream.sample_aspect_ratio or 1), ClipOrientation()
        try:
            rate = frame_rate(container, stream)
            turn.take(seek_before(container, stream, start_seconds))
            for _, frame in _frames_in(container, stream, rate, start_seconds, end_seconds, turn):
                return np.ascontiguousarray(cover(frame, height, width, aspect, turn.of(frame)))
        except (av.FFmpegError, OSError, ValueError) as error:
            raise MediaError(f"cannot be read ({reason_of(error)}).", kind="unreadable") from error
    raise MediaError(f"no frame between {start_seconds:g} s and {end_seconds:g} s.", kind="no_frames")


def _held(frames: Iterator[tuple[float, Any]], rate: Fraction, fps: Fraction) -> Iterator[tuple[float, Any]]:
    """Yield (time, frame) for each output frame at the constant rate `fps`: the frame shown in its middle.

    Repeats frames that last longer than an output frame, and may skip shorter ones.
    """
    slot, origin = 0, 0.0
    shown: tuple[float, Any] | None = None
    for time, frame in frames:
        if shown is None:
            origin = time
        else:
            while (slot + 0.5) / fps <= time - origin:
                yield shown
                slot += 1
        shown = (time, frame)
    if shown is not None:
        while (slot + 0.5) / fps <= shown[0] - origin + float(1 / rate):
            yield shown
            slot += 1


def _held_at_end(frames: Iterator[tuple[float, Any]], wanted: int | None) -> Iterator[tuple[float, Any]]:
    """Yield the frames; of one or two fewer than `wanted`, the last frame again."""
    count, last = 0, None
    for last in frames:
        count += 1
        yield last
    if last is not None and wanted is not None and 0 < wanted - count <= _MOST_HELD:
        yield from itertools.repeat(last, wanted - count)


def _even_size(frame: Any, aspect: float, turn: Orientation, short_side: int | None) -> tuple[int, int]:
    """Return (height, width) as displayed, both even, scaled down to `short_side` if given."""
    height, width = float(frame.height), frame.width * aspect
    if turn[0]:
        height, width = width, height
    scale = min(1.0, short_side / min(height, width)) if short_side else 1.0
    return max(2, round(height * scale) // 2 * 2), max(2, round(width * scale) // 2 * 2)


def transcode_video(
    source: Path,
    start_seconds: float | None,
    end_seconds: float | None,
    spec: TranscodeSpec,
    *,
    size: tuple[int, int] | None = None,
    num_frames: int | None = None,
) -> Cut:
    """Decode and re-encode the interval, exact to the frame. None means the file's start or end.

    Applies rotation and pixel shape; the frame rate becomes constant: `spec.fps` or the file's average.
    `size` is the (height, width) to crop and scale to, both even, instead of `spec.short_side_px`;
    `num_frames` ends the clip after so many frames;
    where the file ends up to two frames early, as uneven frame times make of an average rate, its last frame
    is held.
    Raises MediaError, kind cannot_cut when the interval holds no frame, corrupt_frame when one is damaged.
    """
    start, end = start_seconds or 0.0, float("inf") if end_seconds is None else end_seconds
    target = io.BytesIO()
    number, first_time, height, width = 0, 0.0, 0, 0
    with opened(source) as (container, stream):
        aspect, turn = float(stream.sample_aspect_ratio or 1), ClipOrientation()
        output = av.open(target, "w", format="mp4", options={"fflags": "+bitexact"})
        try:
            rate = frame_rate(container, stream).limit_denominator(1001)
            fps = rate if spec.fps is None else Fraction(spec.fps).limit_denominator(1001)
            turn.take(seek_before(container, stream, start))
            options = {"crf": str(spec.crf), "x264-params": _X264}
            encoder: Any = output.add_stream("libx264", rate=fps, options=options)
            held = _held(_frames_in(container, stream, rate, start, end, turn), rate, fps)
            for time, frame in itertools.islice(_held_at_end(held, num_frames), num_frames):
                if number == 0:
                    first_time = time
                    height, width = size or _even_size(frame, aspect, turn.of(frame), spec.short_side_px)
                    encoder.height, encoder.width, encoder.pix_fmt = height, width, "yuv420p"
                    encoder.codec_context.gop_size = spec.gop_frames
                    encoder.codec_context.thread_count = 1
                    encoder.codec_context.flags |= av.codec.context.Flags.bitexact
                image = np.ascontiguousarray(cover(frame, height, width, aspect, turn.of(frame)))
                picture = av.VideoFrame.from_ndarray(image, format="rgb24")
                picture.pts, picture.time_base = number, 1 / fps
                output.mux(encoder.encode(picture))
                number += 1
            if not number:
                raise MediaError(f"no frame between {start:g} s and {end:g} s.", kind="cannot_cut")
            output.mux(encoder.encode(None))
        except (av.FFmpegError, OSError, ValueError) as error:
            raise MediaError(f"cannot be transcoded ({reason_of(error)}).", kind="cannot_cut") from error
        finally:
            output.close()
    duration = float(number / fps)
    return Cut(
        payload=target.getvalue(),
        extension="mp4",
        facts={
            "num_frames": number,
            "fps": float(fps),
            "width": width,
            "height": height,
            "duration_seconds": round(duration, 6),
            "start_seconds": round(first_time, 6),
            "end_seconds": round(first_time + duration, 6),
        },
    )
