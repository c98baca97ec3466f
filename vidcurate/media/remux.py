"""Remux: move a video's coded packets into MP4, without re-encoding.

The same file and FFmpeg give the same bytes: one thread, no clock, no random ids.
"""

import io
from pathlib import Path
from typing import Any

import av

from vidcurate.errors import MediaError
from vidcurate.media import mp4_boxes
from vidcurate.media.container import codec_of, opened, packets_of
from vidcurate.media.headers import header_of
from vidcurate.media.packet_times import set_times
from vidcurate.media.packets import frame_map_of
from vidcurate.media.transcode import MP4_CODECS

_MP4_SOUND = {"aac", "mp3", "ac3", "eac3", "opus", "flac", "alac"}


def remux_to_mp4(source: Path) -> bytes | None:
    """Return the file's video and sound as MP4 bytes, or None where MP4 does not carry all of it.

    None as well where the MP4 would show another picture: packets without times, a rotation or pixel shape
    that the muxer loses, another number of frames. Raises MediaError when FFmpeg cannot open the file.
    """
    target = io.BytesIO()
    with opened(source) as (container, stream):
        sounds = list(container.streams.audio)
        header = header_of(source, container, stream)
        if header.codec not in MP4_CODECS or any(_sound_codec(sound) not in _MP4_SOUND for sound in sounds):
            return None
        try:
            packets = [packet for packet in packets_of(container, stream, *sounds) if packet.size]
            shown = [packet for packet in packets if packet.stream_index == stream.index]
            if not shown or any(packet.pts is None for packet in packets):
                return None
            time_base = set_times(shown, stream.time_base, stream.average_rate)
            with av.open(target, "w", format="mp4", options={"fflags": "+bitexact"}) as output:
                copies = {one.index: output.add_stream_from_template(one) for one in (stream, *sounds)}
                copies[stream.index].time_base = time_base
                for packet in packets:
                    packet.stream = copies[packet.stream_index]
                    output.mux(packet)
        except (av.FFmpegError, OSError, ValueError):
            return None
        look = header.rotation_degrees, header.sample_aspect_ratio
    payload = target.getvalue()
    return payload if _shows_the_same(source, payload, look) else None


def _sound_codec(stream: Any) -> str | None:
    return codec_of(stream) if stream.codec_context is not None else None


def _shows_the_same(source: Path, payload: bytes, look: tuple[int, float]) -> bool:
    """Say whether the MP4 has the source's number of frames, and its (rotation, pixel shape)."""
    try:
        frames, made = frame_map_of(source), frame_map_of(payload)
        with opened(payload) as (_, stream):
            pixel_shape = float(stream.sample_aspect_ratio or 1)
    except MediaError:
        return False
    rotation = mp4_boxes.rotation_degrees(io.BytesIO(payload), len(payload))
    if made is None or (rotation, pixel_shape) != look:
        return False
    return frames is None or len(frames) == len(made)
