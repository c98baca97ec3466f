"""Decoding check: read packets, decode key frames or all, count hidden damage.

FFmpeg conceals damage: most broken frames raise no error. The signs are `is_corrupt` of a frame (an error
flag or a concealment), a packet that raises, and decoder log messages at the level `error` (as `ffmpeg -v
error` prints). Log messages go through PyAV's callback, which takes the GIL: run this in a process with one
thread that may be killed (PyAV 751, 909), never in a loader.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import av.logging
import numpy as np

from vidcurate.curation.probe.payload import checker
from vidcurate.media.coded_units.field_pictures import FieldPairs
from vidcurate.media.coded_units.leading_pictures import LeadingPictures
from vidcurate.media.coded_units.units import I_SLICE, length_bytes_of, slice_types
from vidcurate.media.container import codec_of, packets_of, reason_of
from vidcurate.storage.checksum import sha256_file

_MOST_COMPLAINTS = 100


@dataclass(slots=True, kw_only=True)
class Complaints:
    """FFmpeg's log messages at the level `error` so far, as (source, message), in order."""

    heard: list[tuple[int, str, str]] = field(default_factory=list)

    @property
    def lines(self) -> list[tuple[str, str]]:
        return [(name, " ".join(text.split())) for _, name, text in self.heard[:_MOST_COMPLAINTS]]

    def of(self, *who: str) -> list[str]:
        return [f"{name}: {text}" for name, text in self.lines if name in who]

    def not_of(self, *who: str) -> list[str]:
        return [f"{name}: {text}" for name, text in self.lines if name not in who]


@contextmanager
def listening() -> Iterator[Complaints]:
    """Collect FFmpeg's error messages. Do not use while other threads decode."""
    av.logging.set_level(av.logging.ERROR)
    av.logging.set_skip_repeated(False)  # else FFmpeg logs the last file's repetitions with the next file
    try:
        with av.logging.Capture() as lines:
            yield Complaints(heard=lines)
    finally:
        av.logging.set_level(None)


@dataclass(slots=True, kw_only=True)
class Decoded:
    """Result of reading and decoding; frames and packets are those of the video stream.

    Of the `num_keys` key frames that are shown, `num_predicted_keys` refer to other pictures (H.264's intra
    refresh) behind an intra one and were not given to the decoder. `first_packet` and `first_frame` describe
    the first damaged one as text; `sha256` is the digest of the whole file.
    """

    num_packets: int = 0
    num_keys: int = 0
    num_predicted_keys: int = 0
    num_damaged_packets: int = 0
    num_frames: int = 0
    num_corrupt_frames: int = 0
    num_undecodable_packets: int = 0
    num_damaged_audio_packets: int = 0
    duration_seconds: float | None = None
    first_packet: str | None = None
    first_frame: str | None = None
    read_error: str | None = None
    sha256: str = ""


def _packets(container: Any, streams: list[Any], found: Decoded) -> Iterator[Any]:
    try:
        yield from packets_of(container, *streams)
    except (av.FFmpegError, OSError, ValueError) as error:
        found.read_error = reason_of(error)


def _span(times: list[int], base: Any) -> float | None:
    """Return the seconds from the first picture to the end of the last, None for fewer than two."""
    stamps = np.sort(np.asarray(times, dtype=np.int64))
    if len(stamps) < 2 or not base:
        return None
    usual = float(np.median(np.diff(stamps)))
    return float((float(stamps[-1] - stamps[0]) + usual) * float(base))


def decode(
    path: Path, container: Any, stream: Any, *, keyframes_only: bool, is_joined: bool = False
) -> Decoded:
    """Read all packets of an opened file and decode its key frames, or all of its video and sound.

    Damage is counted, never raised. FFmpeg's mark of a packet does not count where movies are joined: it
    marks the jump between them. Raises OSError.
    """
    found = Decoded(sha256=sha256_file(path))
    streams = [stream]
    if keyframes_only:
        stream.codec_context.skip_frame = "NONINTRA"
        stream.codec_context.options = {"skip_loop_filter": "all"}  # the frames are not used
    else:
        streams += [other for other in container.streams.audio if other.codec_context is not None]
    for other in streams[1:]:
        other.codec_context.thread_count = 1
    codec = codec_of(stream)
    length_bytes = length_bytes_of(stream) if codec == "h264" else 0
    check = checker(codec, stream.codec_context.extradata)
    times: list[int] = []
    pairs, was_decoded, has_intra = FieldPairs(stream), False, False
    leading = LeadingPictures(container, stream)
    for packet in _packets(container, streams, found):
        if packet.stream.index != stream.index:
            found.num_damaged_audio_packets += _sound_fails(packet)
            continue
        if packet.size:
            data = bytes(packet)
            odd = check(data) if check else None
            if odd or (packet.is_corrupt and not is_joined):
                found.num_damaged_packets += 1
                word = odd or "the container marks it as damaged"
                found.first_packet = found.first_packet or f"packet {found.num_packets}: {word}"
            found.num_packets += 1
        if leading.is_undecodable(packet):
            continue
        # VP9 and others decode everything in spite of skip_frame; a packet of size 0 flushes.
        # Both fields of a key frame are needed.
        is_second = keyframes_only and pairs.is_second(packet)
        if keyframes_only and not is_second:
            was_decoded = bool(packet.is_keyframe)
            if was_decoded and packet.size:
                types = slice_types(data, length_bytes) if codec == "h264" else []
                was_decoded = not types or I_SLICE in types
                has_intra = has_intra or was_decoded
                found.num_keys += not packet.is_discard
                found.num_predicted_keys += has_intra and not was_decoded and not packet.is_discard
        if not keyframes_only or was_decoded or not packet.size:
            _decode_packet(packet, found, times)
    found.duration_seconds = _span(times, stream.time_base)
    return found


def _decode_packet(packet: Any, found: Decoded, times: list[int]) -> None:
    try:
        for frame in packet.decode():
            found.num_frames += 1
            if frame.is_corrupt:
                found.num_corrupt_frames += 1
                word = f"frame {found.num_frames - 1} is damaged"
                found.first_frame = found.first_frame or word
            if frame.pts is not None:
                times.append(frame.pts)
    except (av.FFmpegError, OSError, ValueError) as error:
        found.num_undecodable_packets += 1
        word = f"packet {found.num_packets - 1} does not decode ({reason_of(error)})"
        found.first_frame = found.first_frame or word


def _sound_fails(packet: Any) -> bool:
    try:
        return any(frame.is_corrupt for frame in packet.decode())
    except (av.FFmpegError, OSError, ValueError):
        return True
