"""Reading and writing video: with `transcode`, `integrity` and `faults`, the only files that know FFmpeg.

Rules kept here, each for a documented freeze or leak (PyAV 1117, 1962, 2276; hpcaitech/Open-Sora 526): one
container open at a time and closed by hand, no codec threads, no log callback, one scaler reused, stop at the
last wanted frame, pixels copied out before the container closes.
"""

import io
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.logging
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from vidcurate import matroska, mp4
from vidcurate.errors import MediaError
from vidcurate.filebytes import FileBytes

av.logging.set_level(None)  # an integer level installs a callback that takes the GIL (PyAV 751, 909)

_BUFFER_BYTES = 1 << 20
# Containers whose header holds the index of every packet; elsewhere the packets are read one by one.
_INDEXED = {"mov", "avi"}
# Containers in which a seek lands on the key frame that was asked for; in the others (MPEG program and
# transport streams) the clip is decoded from its start.
SEEKABLE = {"mov", "avi", "matroska", "flv"}
_REFORMATTER = VideoReformatter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What the container and the first video stream say of themselves.

    `width` and `height` are as displayed, after rotation; `sample_aspect_ratio` is a pixel's width over its
    height as coded. None means that the header does not say.
    """

    container: str
    codec: str
    pixel_format: str | None
    coded_width: int
    coded_height: int
    width: int
    height: int
    rotation_degrees: int
    sample_aspect_ratio: float
    fps: float | None
    num_frames: int | None
    duration_seconds: float | None
    audio_duration_seconds: float | None
    bit_rate: int | None
    has_audio: bool
    audio_codec: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketIndex:
    """The video packets that a player would show, counted without decoding.

    `num_hidden` counts the packets that an edit list hides. `end_offset_bytes` is where the file ends by its
    own index or header (None where it does not say): behind the real end it proves a truncation.
    `num_missing_frames` are holes in otherwise even times, None where the times are not even or not known;
    `num_repeated_times` packets are shown at the same time as another.
    """

    num_frames: int
    num_hidden: int
    num_keyframes: int
    duration_seconds: float | None
    is_variable_fps: bool
    end_offset_bytes: int | None
    num_missing_frames: int | None
    num_repeated_times: int


def reason_of(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(text.split()).rstrip(".")


@contextmanager
def opened(source: Path | bytes) -> Iterator[tuple[Any, Any]]:
    """Yield (container, first real video stream), without codec threads; close on the way out."""
    name = source.name if isinstance(source, Path) else f"{len(source)} bytes"
    if isinstance(source, Path):
        try:
            if os.path.getsize(source) == 0:
                raise MediaError(f"{name}: the file is empty.", kind="empty")
        except FileNotFoundError as error:
            raise MediaError(f"{name}: no such file.", kind="missing") from error
        except OSError as error:
            raise MediaError(f"{name}: cannot be read ({error.strerror}).", kind="unreadable") from error
    try:
        container = av.open(
            os.fspath(source) if isinstance(source, Path) else io.BytesIO(source), buffer_size=_BUFFER_BYTES
        )
    except (av.FFmpegError, OSError, ValueError) as error:
        raise MediaError(
            f"{name}: not a video that FFmpeg opens ({reason_of(error)}).", kind="unreadable"
        ) from error
    try:
        streams = [s for s in container.streams.video if s.codec_context is not None and not _is_cover(s)]
        if not streams:
            raise MediaError(f"{name}: holds no video stream.", kind="no_video_stream")
        stream = streams[0]
        stream.codec_context.thread_count = 1
        stream.codec_context.thread_type = "NONE"
        yield container, stream
    finally:
        container.close()


def _is_cover(stream: Any) -> bool:
    return bool(stream.disposition & type(stream.disposition).attached_pic)


def _seconds(value: int | None, base: Fraction | None) -> float | None:
    return float(value * base) if value is not None and base else None


def _from_entries(entries: Any, base: Fraction | None, sound_end: int) -> PacketIndex:
    timestamps: list[int] = []
    ends: list[int] = []
    keys = 0
    for entry in entries:
        ends.append(entry.pos + entry.size)
        if not entry.is_discard:  # an edit list hides it
            timestamps.append(entry.timestamp)
            keys += entry.is_keyframe
    hidden = len(ends) - len(timestamps)
    return _index(timestamps, keys, base, max([*ends, sound_end]), num_hidden=hidden)


def _from_packets(container: Any, stream: Any, end: int | None) -> PacketIndex:
    timestamps: list[int] = []
    keys = 0
    try:
        for packet in container.demux(stream):
            if packet.size and not packet.is_discard:
                stamp = packet.pts if packet.pts is not None else packet.dts
                timestamps.append(stamp if stamp is not None else len(timestamps))
                keys += packet.is_keyframe
    except (av.FFmpegError, OSError):
        # What was read before the damage counts; the probe compares it with the header.
        return _index(timestamps, keys, stream.time_base, end)
    return _index(timestamps, keys, stream.time_base, end)


def _holes(steps: NDArray[np.int64], usual: float) -> int | None:
    """Return how many frames are missing between others that are evenly spaced, None if they are not.

    Even means that three of four steps are the usual one (within a fiftieth, or a tick of a coarse clock) and
    that the others are whole multiples of it. The first step is left out: some encoders begin late.
    """
    steps = steps[1:]
    if usual <= 0 or not len(steps):
        return None
    slack = max(1.0, usual / 50)
    multiples = np.round(steps / usual)
    if (np.abs(steps - usual) <= slack).mean() < 0.75 or (
        np.abs(steps - multiples * usual) > slack * np.maximum(multiples, 1)
    ).any():
        return None
    return int((multiples - 1).clip(0).sum())


def _index(
    timestamps: list[int], keys: int, base: Fraction | None, end: int | None, num_hidden: int = 0
) -> PacketIndex:
    stamps = np.sort(np.asarray(timestamps, dtype=np.int64))
    steps = np.diff(stamps)
    duration = None
    missing: int | None = None
    is_variable = False
    if len(stamps) > 1 and base:
        usual = float(np.median(steps))
        missing = _holes(steps, usual)
        # The last frame lasts as long as the usual one.
        duration = float((float(stamps[-1] - stamps[0]) + usual) * float(base))
        is_variable = bool(np.any(np.abs(steps - usual) > max(usual / 2, 1)))
    return PacketIndex(
        num_frames=len(stamps),
        num_hidden=num_hidden,
        num_keyframes=keys,
        duration_seconds=duration,
        is_variable_fps=is_variable,
        end_offset_bytes=end,
        num_missing_frames=missing,
        num_repeated_times=int((steps == 0).sum()),
    )


def header_of(path: Path, container: Any, stream: Any) -> Header:
    """Return what the header of an opened file says."""
    codec = stream.codec_context
    family = container.format.name.split(",")[0]
    rotation = 0
    if family == "mov":
        with path.open("rb") as file:
            rotation = mp4.rotation_degrees(file, os.path.getsize(path))
    turned = rotation % 180 == 90
    audio = container.streams.audio[0] if container.streams.audio else None
    duration = container.duration
    return Header(
        container=family,
        codec=codec.name,
        pixel_format=codec.pix_fmt,
        coded_width=codec.width,
        coded_height=codec.height,
        width=codec.height if turned else codec.width,
        height=codec.width if turned else codec.height,
        rotation_degrees=rotation,
        sample_aspect_ratio=float(stream.sample_aspect_ratio or 1),
        fps=float(stream.average_rate) if stream.average_rate else None,
        num_frames=stream.frames or None,
        duration_seconds=_seconds(stream.duration, stream.time_base)
        or (duration / av.time_base if duration else None),
        audio_duration_seconds=_seconds(audio.duration, audio.time_base) if audio is not None else None,
        bit_rate=container.bit_rate or None,
        has_audio=audio is not None,
        audio_codec=audio.codec_context.name if audio is not None and audio.codec_context else None,
    )


def has_index(container: Any, stream: Any) -> bool:
    """Say whether the header of an opened file holds the index of all its packets.

    A fragmented file counts no frames in its header and indexes only what was read so far.
    """
    family = container.format.name.split(",")[0]
    return family in _INDEXED and len(stream.index_entries) > 0 and bool(stream.frames)


def index_of(path: Path, container: Any, stream: Any) -> PacketIndex:
    """Return the packets of an opened file: from its index, or by reading them through."""
    family = container.format.name.split(",")[0]
    if has_index(container, stream):
        entries = stream.index_entries
        last = [other.index_entries[-1] for other in container.streams.audio if len(other.index_entries)]
        sound_end = max((entry.pos + entry.size for entry in last), default=0)
        return _from_entries(entries, stream.time_base, sound_end)
    end = None
    if family == "matroska":
        with path.open("rb") as file:
            end = matroska.segment_end_bytes(FileBytes(file, os.path.getsize(path)))
    return _from_packets(container, stream, end)


def read_header_and_index(path: Path) -> tuple[Header, PacketIndex]:
    """Return what the file at `path` says of itself, without decoding a frame on our side.

    mp4, mov and avi carry an index of their packets; of other containers the packets are read through.
    Raises MediaError, whose `kind` is one of missing, empty, unreadable, no_video_stream.
    """
    with opened(path) as (container, stream):
        return header_of(path, container, stream), index_of(path, container, stream)


def _decoded(container: Any, stream: Any, deadline: float | None) -> Iterator[Any]:
    for packet in container.demux(stream):
        if deadline is not None and time.monotonic() > deadline:
            raise MediaError("decoding took longer than its limit.", kind="too_slow")
        yield from packet.decode()


def _start_near(container: Any, stream: Any, first: int) -> list[int] | None:
    """Seek to the key frame before display frame `first`; return all timestamps, or None if at the start.

    Frame numbers are ranks of presentation time: pts x rate is wrong for variable rates, edit lists and
    B-frames. Reading the packets costs no decoding and makes the seek exact.
    """
    if container.format.name.split(",")[0] not in SEEKABLE:
        return None
    stamps: list[int] = []
    keys: list[int] = []
    for packet in container.demux(stream):
        if packet.size and not packet.is_discard:
            if packet.pts is None:
                container.seek(0)
                return None
            stamps.append(packet.pts)
            if packet.is_keyframe:
                keys.append(packet.pts)
    stamps.sort()
    before = [key for key in keys if first < len(stamps) and key <= stamps[first]]
    if not before or before == [stamps[0]]:
        container.seek(stamps[0] if stamps else 0, stream=stream, backward=True)
        return None
    container.seek(max(before), stream=stream, backward=True)
    return stamps


def cover(frame: Any, height: int, width: int, sample_aspect_ratio: float) -> NDArray[np.uint8]:
    """Return the frame upright, scaled to cover (height, width) in one pass, and its centre."""
    turn = int(frame.rotation) % 360  # counter-clockwise, as FFmpeg has it
    if turn % 180 == 90:
        height, width = width, height
    shown_width = frame.width * sample_aspect_ratio
    scale = max(height / frame.height, width / shown_width)
    scaled_height = max(height, round(frame.height * scale))
    scaled_width = max(width, round(shown_width * scale))
    shrinks = scaled_height * scaled_width < frame.height * frame.width
    image: NDArray[Any] = _REFORMATTER.reformat(
        frame,
        width=scaled_width,
        height=scaled_height,
        format="rgb24",
        interpolation=Interpolation.AREA if shrinks else Interpolation.BICUBIC,
    ).to_ndarray()
    top, left = (scaled_height - height) // 2, (scaled_width - width) // 2
    image = image[top : top + height, left : left + width]
    return np.rot90(image, turn // 90) if turn else image


def read_frames(
    source: Path | bytes,
    frame_numbers: Sequence[int],
    *,
    height: int,
    width: int,
    time_limit_seconds: float | None = None,
    accept_corrupt: bool = False,
) -> NDArray[np.uint8]:
    """Return the frames with these display-order numbers (rising, from 0) as uint8 RGB (T, height, width, 3).

    Rotation and sample aspect ratio are applied; the picture is scaled to cover the size and its centre kept.
    Raises MediaError, kind unreadable, too_few_frames, corrupt_frame (the decoder concealed damage in a
    wanted frame; `accept_corrupt` takes it), too_slow, or those of `read_header_and_index`.
    """
    wanted = list(frame_numbers)
    if not wanted or wanted != sorted(set(wanted)) or wanted[0] < 0:
        raise ValueError(f"frame_numbers must rise from 0 or more, got {wanted[:8]}")
    deadline = None if time_limit_seconds is None else time.monotonic() + time_limit_seconds
    out = np.empty((len(wanted), height, width, 3), dtype=np.uint8)
    name = source.name if isinstance(source, Path) else "clip"
    filled = 0
    with opened(source) as (container, stream):
        aspect = float(stream.sample_aspect_ratio or 1)
        try:
            stamps = _start_near(container, stream, wanted[0]) if wanted[0] else None
            number_of = {stamp: number for number, stamp in enumerate(stamps)} if stamps else None
            for number, frame in enumerate(_decoded(container, stream, deadline)):
                if number_of is not None:
                    number = number_of.get(frame.pts, -1)
                if number != wanted[filled]:
                    continue
                if frame.is_corrupt and not accept_corrupt:
                    raise MediaError(f"{name}: frame {number} is damaged.", kind="corrupt_frame")
                out[filled] = cover(frame, height, width, aspect)
                filled += 1
                if filled == len(wanted):
                    return out
        except (av.FFmpegError, OSError, ValueError) as error:
            raise MediaError(
                f"{name}: decoding failed after {filled} of {len(wanted)} frames ({reason_of(error)}).",
                kind="unreadable",
            ) from error
    raise MediaError(
        f"{name}: frame {wanted[filled]} does not exist; {filled} of {len(wanted)} wanted frames decoded.",
        kind="too_few_frames",
    )


def count_decodable_frames(source: Path | bytes) -> int:
    """Return how many frames decode from start to end. Raises MediaError when decoding fails on the way."""
    with opened(source) as (container, stream):
        try:
            return sum(1 for _ in _decoded(container, stream, None))
        except (av.FFmpegError, OSError, ValueError) as error:
            raise MediaError(f"decoding failed ({reason_of(error)}).", kind="unreadable") from error


def write_video(
    path: Path,
    frames: NDArray[np.uint8],
    *,
    fps: float,
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    gop: int = 48,
    crf: int | None = 18,
    container_options: dict[str, str] | None = None,
    rotation_degrees: int = 0,
) -> None:
    """Encode uint8 RGB frames (T, H, W, 3) to `path`, whose suffix picks the container.

    The same frames give the same bytes.

    H and W must be even for 4:2:0 formats. The file appears whole or not at all. `rotation_degrees` is
    written as display rotation (clockwise); the pixels stay as given.
    """
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    options = {"crf": str(crf)} if crf is not None else {}
    if codec == "libx264":
        # Macroblock trees read memory that nothing wrote where a picture is narrow (seen at 64 px, 8 of 24
        # encodings): the same frames then give other bytes.
        options["x264-params"] = "mbtree=0"
    if codec == "libx265":
        # The same fault in x265 where a picture is one coding unit of 64 px.
        options["x265-params"] = "log-level=none:pools=none:frame-threads=1:ctu=32"
    container = av.open(os.fspath(partial), "w", options={"fflags": "+bitexact", **(container_options or {})})
    try:
        stream: Any = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1001), options=options)
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], pixel_format
        stream.codec_context.gop_size = gop
        stream.codec_context.thread_count = 1
        stream.codec_context.flags |= av.codec.context.Flags.bitexact
        if rotation_degrees:
            stream.set_display_rotation(-rotation_degrees)
        for image in frames:
            for packet in stream.encode(
                av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            ):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
    finally:
        container.close()
    partial.replace(path)


def encode_image(image: NDArray[np.uint8], codec: str = "mjpeg") -> bytes:
    """Return one RGB image (H, W, 3) as the bytes of a JPEG (`mjpeg`) or a PNG (`png`)."""
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
    encoder: Any = av.CodecContext.create(codec, "w")
    encoder.width, encoder.height = frame.width, frame.height
    encoder.time_base = Fraction(1, 1)
    encoder.pix_fmt = "yuvj420p" if codec == "mjpeg" else "rgb24"
    encoder.thread_count = 1
    if codec == "mjpeg":
        encoder.options = {"qmin": "2", "qmax": "4"}
        frame = frame.reformat(format="yuvj420p")
    packets = [*encoder.encode(frame), *encoder.encode(None)]
    return b"".join(bytes(packet) for packet in packets)
