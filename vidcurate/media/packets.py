"""Packets of a video: number of frames, times and key frames, without decoding."""

import io
import os
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from vidcurate.media import matroska, mp4_samples
from vidcurate.media.container import codec_of, opened, packets_of
from vidcurate.media.frame_map import FrameMap
from vidcurate.storage.file_window import FileBytes

# Containers in which a seek is exact to the key frame; clips of the others (MPEG program and transport
# streams) are decoded from their start.
SEEKABLE = {"mov", "avi", "matroska", "flv"}
# Containers whose header has an index of every packet; for others this file reads all packets.
_INDEXED = {"mov", "avi"}
# Containers with a display time per packet; for others FFmpeg derives the times by decoding some frames.
_TIMED = {"mov", "matroska"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketIndex:
    """Video packets that a player would show, counted without decoding.

    `num_hidden` counts the packets that an edit list hides. `end_offset_bytes` is the end of the file by its
    index or header (None when absent); an end beyond the real one proves a truncation. `num_missing_frames`
    counts holes in otherwise even times, None when the times are uneven or unknown; `num_repeated_times`
    counts packets with the same time as another.
    """

    num_frames: int
    num_hidden: int
    num_keyframes: int
    duration_seconds: float | None
    is_variable_fps: bool
    end_offset_bytes: int | None
    num_missing_frames: int | None
    num_repeated_times: int


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


def _is_shown(packet: Any, codec: str) -> bool:
    """Return whether a player shows the packet's frame.

    A player hides frames outside an edit list, and VP8 frames that are only references (RFC 6386, 9.1; VP9
    and AV1 put those into one packet with a shown frame).
    """
    return packet.size > 0 and not packet.is_discard and (codec != "vp8" or bool(bytes(packet)[0] & 0x10))


def _from_packets(container: Any, stream: Any, end: int | None) -> PacketIndex:
    timestamps: list[int] = []
    keys = 0
    try:
        for packet in packets_of(container, stream):
            if _is_shown(packet, codec_of(stream)):
                stamp = packet.pts if packet.pts is not None else packet.dts
                timestamps.append(stamp if stamp is not None else len(timestamps))
                keys += packet.is_keyframe
    except (av.FFmpegError, OSError):
        # Count the packets before the damage; the probe compares the count with the header.
        return _index(timestamps, keys, stream.time_base, end)
    return _index(timestamps, keys, stream.time_base, end)


def _holes(steps: NDArray[np.int64], usual: float) -> int | None:
    """Return the number of missing frames between evenly spaced ones; None for uneven spacing.

    Even means that three of four steps equal the usual step (within a fiftieth, or a tick of a coarse clock)
    and that the others are whole multiples of it. The first step does not count: some encoders begin late.
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
        # The last frame lasts one usual step.
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


def has_index(container: Any, stream: Any) -> bool:
    """Return whether the header of an opened file has the index of all its packets.

    A fragmented file has no frame count in its header and indexes only the packets read so far.
    """
    family = container.format.name.split(",")[0]
    return family in _INDEXED and len(stream.index_entries) > 0 and bool(stream.frames)


def index_of(path: Path, container: Any, stream: Any) -> PacketIndex:
    """Return the packet index of an opened file: from its header, or by reading all packets."""
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


def frame_map_of(source: Path | bytes) -> FrameMap | None:
    """Return the frame map of a clip (display times and key frames), without decoding.

    None for a container without exact seeks, packets without times, two frames at one time, and damage.
    Raises MediaError as `opened` does.
    """
    plain = _map_in_tables(source)
    if plain is not None:
        return plain
    with opened(source, is_brief=True) as (container, stream):
        if container.format.name.split(",")[0] in _TIMED:
            return _map_in(container, stream)
    with opened(source) as (container, stream):
        return _map_in(container, stream)


def _map_in_tables(source: Path | bytes) -> FrameMap | None:
    """Return the frame map of a plain MP4, None for anything else."""
    try:
        size = os.path.getsize(source) if isinstance(source, Path) else len(source)
        with source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as file:
            samples = mp4_samples.read_sample_table(FileBytes(file, size))
    except OSError:
        return None  # FFmpeg reports the reason when it opens the file
    if samples is None:
        return None
    pts = np.sort(samples.shown)
    if (np.diff(pts) <= 0).any():
        return None
    keys = np.searchsorted(pts, np.sort(samples.shown[samples.is_key])).astype(np.int64)
    return FrameMap(time_base=Fraction(1, samples.timescale), pts=pts, key_frames=keys)


def _map_in(container: Any, stream: Any) -> FrameMap | None:
    if container.format.name.split(",")[0] not in SEEKABLE:
        return None
    times: list[int] = []
    keys: list[int] = []
    codec, base = codec_of(stream), stream.time_base
    try:
        for packet in packets_of(container, stream):
            if not _is_shown(packet, codec):
                continue
            if packet.pts is None:
                return None
            times.append(packet.pts)
            if packet.is_keyframe:
                keys.append(packet.pts)
    except (av.FFmpegError, OSError):
        return None
    pts = np.sort(np.array(times, dtype=np.int64))
    if not len(pts) or not base or (np.diff(pts) <= 0).any():
        return None
    key_frames = np.searchsorted(pts, np.sort(np.array(keys, dtype=np.int64)))
    return FrameMap(time_base=base, pts=pts, key_frames=key_frames.astype(np.int64))
