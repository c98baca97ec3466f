"""Headers: codec, size, frame rate and duration of a video, without decoding."""

import os
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av

from vidcurate.errors import MediaError
from vidcurate.media import matroska, mp4_boxes, mp4_samples
from vidcurate.media.coded_units import display_orientation
from vidcurate.media.coded_units.field_pictures import FieldPairs
from vidcurate.media.coded_units.units import CODECS
from vidcurate.media.container import codec_of, opened
from vidcurate.media.first_packets import first_packet_of, may_begin_open
from vidcurate.media.packets import FAST_CLOCK, PacketIndex, index_of
from vidcurate.storage.file_window import FileBytes

# Brands of ISO files that hold a picture: HEIF (ISO/IEC 23008-12, annex E) and AVIF.
_PICTURE_BRANDS = ("mif1", "heic", "heix", "avif")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Header of a container and its first video stream.

    `width` and `height` are as displayed: the coded width times `sample_aspect_ratio` (a pixel's width over
    its height as coded), then the rotation. `codec` and `audio_codec` name codecs, `audio_decoder` the
    decoder, which FFmpeg's messages name. `is_trimmed`: an edit list hides frames that `num_frames` counts.
    `counts_shown_frames`: false there, for AVI, whose `num_frames` counts frame times, dropped frames too,
    where leading pictures may not decode, and where packets may be fields (H.264) or hidden pictures (VP8,
    VP9). `is_picture`: the file is HEIF or AVIF. None means that the header has no value.
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
    is_trimmed: bool
    counts_shown_frames: bool
    is_picture: bool
    is_encrypted: bool
    duration_seconds: float | None
    audio_duration_seconds: float | None
    bit_rate: int | None
    has_audio: bool
    audio_codec: str | None
    audio_decoder: str | None


def _seconds(value: int | None, base: Fraction | None) -> float | None:
    return float(value * base) if value is not None and base else None


def header_of(path: Path, container: Any, stream: Any) -> Header:
    """Return the header of an opened file.

    Raises MediaError, kind unreadable, for a stream without a size: no parameter sets are in the file.
    """
    codec = stream.codec_context
    if codec.width < 1 or codec.height < 1:
        raise MediaError(
            f"{path.name}: the video stream has no size; its parameter sets are missing or damaged.",
            kind="unreadable",
        )
    family = container.format.name.split(",")[0]
    rotation, num_frames, is_trimmed, is_encrypted = 0, stream.frames or None, False, False
    if family == "ivf":
        num_frames = None  # FFmpeg's remux writes ticks there
    duration = _seconds(stream.duration, stream.time_base)
    if family in ("mov", "matroska"):
        size = os.path.getsize(path)
        with path.open("rb") as file:
            if family == "mov":
                rotation = mp4_boxes.rotation_degrees(file, size)
                is_encrypted = mp4_boxes.is_encrypted(file, size)
                times = mp4_samples.read_display_times(FileBytes(file, size))
                is_trimmed = times[1] if times else mp4_boxes.is_trimmed(file, size)
                if num_frames and mp4_boxes.is_fragmented(file, size):
                    num_frames = duration = None  # they count the frames before the first fragment
            else:
                rotation = matroska.rotation_degrees(FileBytes(file, size))
    if codec_of(stream) in CODECS:
        first = first_packet_of(path, container, stream)
        in_stream = display_orientation.rotation_degrees(stream, first)
        rotation = rotation if in_stream is None else in_stream
    pixel_shape = float(stream.sample_aspect_ratio or 1)
    width, height = max(1, round(codec.width * pixel_shape)), codec.height
    if rotation % 180 == 90:
        width, height = height, width
    audio = container.streams.audio[0] if container.streams.audio else None
    decoder = audio.codec_context.name if audio is not None and audio.codec_context is not None else None
    has_others = codec_of(stream) in ("vp8", "vp9") or FieldPairs(stream).may_occur
    is_uncounted = is_trimmed or family == "avi" or has_others or may_begin_open(path, container, stream)
    has_duration = container.duration and (num_frames or not stream.frames)
    return Header(
        container=family,
        codec=codec_of(stream),
        pixel_format=codec.pix_fmt,
        coded_width=codec.width,
        coded_height=codec.height,
        width=width,
        height=height,
        rotation_degrees=rotation,
        sample_aspect_ratio=pixel_shape,
        fps=float(stream.average_rate) if stream.average_rate else None,
        num_frames=num_frames,
        is_trimmed=is_trimmed,
        counts_shown_frames=not is_uncounted,
        is_picture=container.metadata.get("major_brand") in _PICTURE_BRANDS,
        is_encrypted=is_encrypted,
        duration_seconds=duration or (container.duration / av.time_base if has_duration else None),
        audio_duration_seconds=_seconds(audio.duration, audio.time_base) if audio is not None else None,
        bit_rate=container.bit_rate or None,
        has_audio=audio is not None,
        audio_codec=codec_of(audio) if decoder else None,
        audio_decoder=decoder,
    )


def frame_rate(header: Header, index: PacketIndex) -> float | None:
    """Return the frame rate: the header's, unless the packets differ by a tenth.

    None where neither says it.
    """
    fps = header.fps
    if index.duration_seconds and index.num_frames > 1:
        from_index = index.num_frames / index.duration_seconds
        if fps is None or abs(fps - from_index) > 0.1 * from_index:
            fps = from_index
    is_guessed = not index.has_times and fps is not None and fps >= FAST_CLOCK  # from the ticks
    return None if is_guessed else fps


def read_header_and_index(path: Path) -> tuple[Header, PacketIndex]:
    """Return header and packet index of the file at `path`, without decoding a frame.

    mp4, mov and avi carry an index of their packets; for other containers this reads all packets.
    Raises MediaError, whose `kind` is one of missing, empty, unreadable, no_video_stream.
    """
    with opened(path) as (container, stream):
        return header_of(path, container, stream), index_of(path, container, stream)
