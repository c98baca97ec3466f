"""Packets of a video: number of frames, times and key frames, without decoding."""

import io
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from vidcurate.media import matroska, mp4_boxes, mp4_samples
from vidcurate.media.coded_units.field_pictures import FieldPairs
from vidcurate.media.coded_units.hidden_pictures import hides_all
from vidcurate.media.coded_units.leading_pictures import LeadingPictures
from vidcurate.media.container import codec_of, opened, packets_of
from vidcurate.media.display_times import are_guessed
from vidcurate.media.first_packets import INDEXED, TIMED, hidden_packets_of, may_begin_open
from vidcurate.media.frame_map import FrameMap
from vidcurate.storage.file_window import FileBytes

# Containers in which a seek is exact to the key frame; clips of the others (MPEG program and transport
# streams) are decoded from their start.
SEEKABLE = {"mov", "avi", "matroska", "flv"}
# An AVI whose entries end before this share of its header's count has no index at its end.
_LEAST_INDEXED_SHARE = 0.95
_FAST_CLOCK_OF_OTHERS = 5000  # ticks/s, as MP4's clock may be the rate of a slow-motion camera
FAST_CLOCK = 500  # ticks/s; no clip of Matroska has a frame each tick of such a clock


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketIndex:
    """Video packets that a player would show, counted without decoding.

    `num_hidden` counts the packets of a header's index that an edit list hides, or their codec (VP8, VP9).
    `end_offset_bytes` is the end of the file by its
    index or header (None when absent); an end beyond the real one proves a truncation. `num_missing_frames`
    counts holes in otherwise even times, None when the times are uneven or unknown; `num_repeated_times`
    counts packets with the same time as another. `num_second_fields` counts
    the packets that complete a frame of two fields (`field_pictures`). `has_times`: false when a
    packet has none, or when packets are one tick apart on a fast clock, as muxers write that know none.
    `num_leading` counts the
    leading pictures that do not decode (`leading_pictures`); the other counts leave them out.
    `has_open_start`: the first key frame may have leading pictures. `num_ticks`
    (AVI) counts the frame times up to the last packet, dropped frames too, as AVI's header does. `was_read`:
    all packets have been read. `file_end_seconds` is the end of the last packet of any stream, on the file's
    clock, and `audio_seconds` how long the sound's packets last: known where the header has one duration for
    the whole file (Matroska, FLV).
    """

    num_frames: int
    num_hidden: int
    num_keyframes: int
    duration_seconds: float | None
    is_variable_fps: bool
    end_offset_bytes: int | None
    num_missing_frames: int | None
    num_repeated_times: int
    num_second_fields: int = 0
    has_times: bool = True
    num_leading: int = 0
    has_open_start: bool = False
    num_ticks: int | None = None
    was_read: bool = False
    file_end_seconds: float | None = None
    audio_seconds: float | None = None


def _from_entries(
    entries: Any,
    base: Fraction | None,
    end: int | None,
    shown: NDArray[np.int64] | None,
    unseen: set[int],
) -> PacketIndex:
    """Return the index by the header's entries, of which no player shows those numbered in `unseen`.

    `shown` holds the display times where they are known.
    """
    timestamps: list[int] = []
    unseen_at: list[int] = []
    keys = hidden = 0
    for number, entry in enumerate(entries):
        at = entry.timestamp if shown is None else int(shown[number])
        if entry.is_discard or number in unseen:
            hidden += 1
            unseen_at += [at] * (not entry.is_discard)
        else:
            timestamps.append(at)
            keys += entry.is_keyframe
    has_times = not _is_tick_by_tick(timestamps, base, "mov" if shown is not None else "")
    clock = base if has_times else None
    found = _index(timestamps, keys, clock, end, num_hidden=hidden, has_times=has_times)
    if not unseen_at:
        return found
    # The time of a hidden picture is no hole between those of the shown ones.
    return replace(found, num_missing_frames=_index(timestamps + unseen_at, 0, clock, end).num_missing_frames)


def _is_shown(packet: Any, codec: str) -> bool:
    """Return whether a player shows the packet's frame: not hidden by an edit list or by its codec."""
    if not packet.size or packet.is_discard:
        return False
    return codec not in ("vp8", "vp9") or not hides_all(codec, bytes(packet))


def _from_packets(container: Any, stream: Any, end: int | None) -> PacketIndex:
    timestamps: list[int] = []
    keys = 0
    has_times = True
    pairs, seconds = FieldPairs(stream), 0
    family = container.format.name.split(",")[0]
    leading, num_leading = LeadingPictures(container, stream), 0
    spans: dict[int, tuple[float, float]] = {}
    # Damage ends the count; the probe compares it with the header.
    with suppress(av.FFmpegError, OSError):
        for packet in packets_of(container, *([stream] if stream.duration else container.streams)):
            if packet.size and packet.pts is not None and packet.time_base:
                _widen(spans, packet)
            if packet.stream.index != stream.index:
                continue
            if pairs.is_second(packet):
                seconds += 1
            elif leading.is_undecodable(packet):
                num_leading += 1
            elif _is_shown(packet, codec_of(stream)):
                # AVI has no display times: FFmpeg guesses them from the decoding times.
                stamp = packet.dts if packet.pts is None or family == "avi" else packet.pts
                timestamps.append(stamp if stamp is not None else len(timestamps))
                has_times = has_times and stamp is not None
                keys += packet.is_keyframe
    has_times = has_times and not _is_tick_by_tick(timestamps, stream.time_base, family)
    found = _index(timestamps, keys, stream.time_base if has_times else None, end, has_times=has_times)
    sounds = [spans[other.index] for other in container.streams.audio if other.index in spans]
    return replace(
        found,
        num_second_fields=seconds,
        num_leading=num_leading,
        has_open_start=leading.is_open,
        num_ticks=max(timestamps, default=0) + 1 if family == "avi" else None,
        was_read=True,
        file_end_seconds=None if stream.duration else max((end for _, end in spans.values()), default=None),
        audio_seconds=sounds[0][1] - sounds[0][0] if sounds and not stream.duration else None,
    )


def _is_tick_by_tick(timestamps: list[int], base: Fraction | None, family: str) -> bool:
    """Return whether a muxer that knew no times made the packets one tick of a fast clock apart."""
    least = FAST_CLOCK if family == "matroska" else _FAST_CLOCK_OF_OTHERS
    if family not in (*TIMED, "mpegts") or not base or 1 / base < least or len(timestamps) < 3:
        return False
    return bool(np.median(np.diff(np.sort(timestamps))) <= 1)


def _widen(spans: dict[int, tuple[float, float]], packet: Any) -> None:
    """Extend the times (first, end) in seconds of the packet's stream in `spans`."""
    start = float(packet.pts * packet.time_base)
    end = start + float((packet.duration or 0) * packet.time_base)
    first, last = spans.get(packet.stream.index, (start, end))
    spans[packet.stream.index] = min(first, start), max(last, end)


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
    timestamps: list[int],
    keys: int,
    base: Fraction | None,
    end: int | None,
    num_hidden: int = 0,
    *,
    has_times: bool = True,
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
        num_repeated_times=int((steps == 0).sum()) if has_times else 0,
        has_times=has_times,
    )


def _is_fragmented(name: str) -> bool:
    """Return whether the file is a fragmented MP4; bytes in memory have no name and count as one."""
    if not os.path.isfile(name):
        return True
    with open(name, "rb") as file:
        return mp4_boxes.is_fragmented(file, os.path.getsize(name))


def _header_index(path: Path, container: Any, stream: Any) -> PacketIndex | None:
    """Return the packet index by the file's header, None where it does not tell all frames.

    A fragmented file counts in its header at most the frames before its first fragment, and indexes only the
    packets read so far. The bytes alone say which packets are frames in field-coded H.264, and which pictures
    lead a first key frame and do not decode. With an edit list that hides frames, the index has other times
    than a player shows; so it has in an MP4 whose tables no longer fit. An AVI without an index at its end
    has entries only for the packets read so far.
    """
    family = container.format.name.split(",")[0]
    entries = stream.index_entries
    if family not in INDEXED or not len(entries) or not stream.frames or FieldPairs(stream).may_occur:
        return None
    if may_begin_open(path, container, stream):
        return None
    shown, ticks = None, None
    if family == "mov":
        with path.open("rb") as file:
            data = FileBytes(file, os.path.getsize(path))
            if mp4_boxes.is_fragmented(file, data.size):
                return None
            times = mp4_samples.read_display_times(data)
        if times is not None and times[1]:
            return None
        if times is not None and len(times[0]) == len(entries):
            shown = times[0]
    if family == "avi":
        ticks = max(entry.timestamp for entry in entries) + 1
        if ticks < _LEAST_INDEXED_SHARE * stream.frames:
            return None
    unseen = hidden_packets_of(path, container, stream)
    found = _from_entries(entries, stream.time_base, _indexed_end(container, stream), shown, unseen)
    return replace(found, num_ticks=ticks)


def _indexed_end(container: Any, stream: Any) -> int | None:
    """Return the end in bytes of the last packet that the header's index names."""
    last = [other.index_entries[-1] for other in container.streams.audio if len(other.index_entries)]
    return max((entry.pos + entry.size for entry in (*stream.index_entries, *last)), default=None)


def index_of(path: Path, container: Any, stream: Any) -> PacketIndex:
    """Return the packet index of an opened file: from its header, or by reading all packets.

    Raises OSError.
    """
    family = container.format.name.split(",")[0]
    found = _header_index(path, container, stream)
    if found is not None:
        return found
    end = None
    if family in INDEXED and stream.frames and not (family == "mov" and _is_fragmented(container.name)):
        end = _indexed_end(container, stream)
    if family == "matroska":
        with path.open("rb") as file:
            end = matroska.segment_end_bytes(FileBytes(file, os.path.getsize(path)))
    return _from_packets(container, stream, end)


def frame_map_of(source: Path | bytes) -> FrameMap | None:
    """Return the frame map of a clip (display times and key frames), without decoding.

    None for a container without exact seeks, packets without display times (in AVI also those of
    `are_guessed`), two frames at one time, and damage.
    Raises MediaError as `opened` does.
    """
    plain = _map_in_tables(source)
    if plain is not None:
        return plain
    with opened(source, is_brief=True) as (container, stream):
        if container.format.name.split(",")[0] in TIMED:
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
    if (np.diff(pts) <= 0).any() or pts[0] != samples.shown[0]:  # leading pictures: their bytes must be read
        return None
    keys = np.searchsorted(pts, np.sort(samples.shown[samples.is_key])).astype(np.int64)
    return FrameMap(time_base=Fraction(1, samples.timescale), pts=pts, key_frames=keys)


def _map_in(container: Any, stream: Any) -> FrameMap | None:
    if container.format.name.split(",")[0] not in SEEKABLE or are_guessed(container, stream):
        return None
    times: list[int] = []
    keys: list[int] = []
    codec, base = codec_of(stream), stream.time_base
    pairs = FieldPairs(stream)
    leading = LeadingPictures(container, stream)
    try:
        for packet in packets_of(container, stream):
            if pairs.is_second(packet) or leading.is_undecodable(packet) or not _is_shown(packet, codec):
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
