"""Integrity check of one file in four levels: header, index, keyframes, full.

`header` opens the file. `index` compares the container's index and structure with the file's size, and finds
truncation without decoding. `keyframes` reads every packet, checks its bytes and decodes the key frames.
`full` decodes everything, audio too. A file rejected at one level is not checked at the next.

No function here raises for a bad file: problems become findings (`findings`) or a failure. I/O errors of disk
or network are retried and do not reject the file.
"""

import errno
import itertools
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import av

from vidcurate.curation.probe.bounds import family_of, read_bounds
from vidcurate.curation.probe.checks import (
    are_joined,
    check_complaints,
    check_decode,
    check_index,
    without_useless_times,
)
from vidcurate.curation.probe.decoding import Decoded, decode, listening
from vidcurate.curation.probe.findings import REJECTING, Facts, verdict
from vidcurate.errors import MediaError
from vidcurate.media import container as media_container
from vidcurate.media import headers, packets
from vidcurate.media.coded_units.field_pictures import FieldPairs
from vidcurate.media.first_packets import INDEXED
from vidcurate.storage import download
from vidcurate.storage.checksum import sha256_file

VERSION = 6  # of the facts: facts of another version are computed again

# I/O errors that a retry may solve.
TRANSIENT = {
    errno.EIO, errno.ETIMEDOUT, errno.ESTALE, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ENOMEM,
    errno.EMFILE, errno.ENFILE, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.ENOTCONN,
    errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EREMOTEIO,
}  # fmt: skip
_PAUSES_SECONDS = (0.1, 0.5, 2.0)  # before each further try


class _Transient(Exception):
    """I/O error of disk or network; the file may be intact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """File to examine. `known_by_digest` maps the SHA-256 of known files of its size to their facts."""

    path: str
    level: str = "index"
    rejecting: tuple[str, ...] = REJECTING
    known_by_digest: Mapping[str, Facts] = field(default_factory=dict)


def examine(task: Task) -> Facts:
    """Return the facts of the file up to the task's level. A bad file gives findings, not an error.

    The path may be a URL. Worker processes run this; they load neither polars nor pyarrow.
    """
    try:
        with download.local(task.path) as path:
            return _with_retries(path, task)
    except MediaError as error:
        return {"failure": error.kind, "problem": str(error), "findings": {}}


def _with_retries(path: Path, task: Task) -> Facts:
    """Examine the file; retry what may be no fault of it."""
    for pause in (*_PAUSES_SECONDS, None):
        try:
            return _examined(path, task)
        except _Transient as error:
            reason = str(error)
        if pause is not None:
            time.sleep(pause)
    return _failure(path, "io_error", f"{reason}, in {len(_PAUSES_SECONDS) + 1} tries")


def _failure(path: Path, kind: str, reason: str) -> Facts:
    return {"failure": kind, "problem": f"{path.name}: {reason.rstrip('.')}.", "findings": {}}


def _examined(path: Path, task: Task) -> Facts:
    try:
        before = path.stat()
        if not stat.S_ISREG(before.st_mode):
            return _failure(path, "unreadable", "it is no regular file")
        facts = _climbed(path, before.st_size, task)
        if verdict(facts, task.rejecting)[0] != "ok":
            # FFmpeg treats a failed read as the end of the file: check whether the disk failed.
            facts.setdefault("sha256", sha256_file(path))
        after = path.stat()
    except FileNotFoundError:
        return _failure(path, "missing", "no such file")
    except OSError as error:
        if error.errno in TRANSIENT:
            raise _Transient(f"cannot be read ({error.strerror})") from error
        return _failure(path, "unreadable", f"cannot be read ({error.strerror})")
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise _Transient("it changed while it was read")
    return facts


def _climbed(path: Path, size_bytes: int, task: Task) -> Facts:
    """Check level after level, up to the requested level or the first that rejects. Raises OSError."""
    if task.known_by_digest:
        sha256 = sha256_file(path)
        known = task.known_by_digest.get(sha256)
        if known is not None:
            return {**known, "sha256": sha256}
    facts: Facts = {"findings": {}, "file_size_bytes": size_bytes}
    try:
        with listening() as heard, media_container.opened(path) as (container, stream):
            header = headers.header_of(path, container, stream)
            facts |= _header_columns(header)
            facts["level"] = "header"
            if task.level == "header":
                return facts | {"fps": _shown_fps(path, header, stream)}
            bounds = read_bounds(path, header.container, check_sums=task.level in ("keyframes", "full"))
            index = packets.index_of(path, container, stream)
            index = without_useless_times(index, header, bounds)
            facts |= _index_columns(header, index, size_bytes)
            facts["level"] = "index"
            check_index(facts, header, index, bounds, size_bytes)
            check_complaints(facts, heard, header)
            if task.level == "index" or verdict(facts, task.rejecting)[0] != "ok":
                return _named(facts, path)
            keyframes_only = task.level == "keyframes"
            is_joined = are_joined(header, bounds)
            read = partial(decode, path, keyframes_only=keyframes_only, is_joined=is_joined)
            found = None if index.was_read else read(container, stream)
        if found is None:
            with listening() as heard, media_container.opened(path) as (container, stream):
                found = read(container, stream)
        has_times = index.has_times and index.num_ticks is None  # the decoder guesses those of AVI
        facts |= _decode_columns(found, keyframes_only=keyframes_only, has_times=has_times)
        facts["level"] = task.level
        check_decode(facts, found, index, keyframes_only=keyframes_only)
        check_complaints(facts, heard, header, has_open_start=index.has_open_start)
    except MediaError as error:
        reason = str(error).removeprefix(f"{path.name}: ").rstrip(".")
        if error.kind == "unreadable":
            bounds = read_bounds(path, family_of(path))
            reason += f"; {bounds.cut or bounds.short}" if bounds.cut or bounds.short else ""
        return {**_failure(path, error.kind, reason), "file_size_bytes": size_bytes}
    return _named(facts, path)


def _named(facts: Facts, path: Path) -> Facts:
    facts["findings"] = {
        name: f"{path.name}: {text.rstrip('.')}." for name, text in facts["findings"].items()
    }
    return facts


def _header_columns(header: headers.Header) -> Facts:
    return {
        "container": header.container,
        "codec": header.codec,
        "pixel_format": header.pixel_format,
        "coded_width": header.coded_width,
        "coded_height": header.coded_height,
        "rotation_degrees": header.rotation_degrees,
        "sample_aspect_ratio": header.sample_aspect_ratio,
        "fps_from_header": header.fps,
        "num_frames_from_header": header.num_frames,
        "duration_seconds_from_header": header.duration_seconds,
        "bit_rate": header.bit_rate,
        "has_audio": header.has_audio,
        "audio_codec": header.audio_codec,
        "width": header.width,
        "height": header.height,
        "fps": header.fps,
        "num_frames": header.num_frames if header.counts_shown_frames else None,
        "duration_seconds": header.duration_seconds,
    }


def _shown_fps(path: Path, header: headers.Header, stream: Any) -> float | None:
    """Return the header's frame rate, halved where FFmpeg took it from packets that hold a field each.

    An index counts its packets: None where some of them are fields, or may be by their uneven times.
    """
    if header.fps is None or not FieldPairs(stream).may_occur:
        return header.fps
    if header.container in INDEXED and _has_uneven_times(stream):
        return None
    with suppress(av.FFmpegError), media_container.opened(path) as (again, first):
        packets_of = media_container.packets_of(again, first)
        pairs, times, is_second = FieldPairs(first), [], []
        for packet in itertools.islice((one for one in packets_of if one.size), 3):
            is_second.append(pairs.is_second(packet))
            times.append(packet.dts)
        if header.container in INDEXED:
            return None if any(is_second) else header.fps
        if is_second == [False, True, False] and None not in times:
            periods = float((times[2] - times[0]) * first.time_base) * header.fps
            return header.fps / 2 if 1.5 < periods < 2.5 else header.fps
    return header.fps


def _has_uneven_times(stream: Any) -> bool:
    """Return whether a step between packets of the header's index is twice as long as another."""
    times = [entry.timestamp for entry in stream.index_entries]
    steps = [after - before for before, after in itertools.pairwise(times)]
    return bool(steps) and 2 * min(steps) <= max(steps)


def _index_columns(header: headers.Header, index: packets.PacketIndex, size_bytes: int) -> Facts:
    has_rate = index.has_times or header.container != "mov"  # an MP4 has only that of its times
    fps = headers.frame_rate(header, index) if has_rate else None
    duration = index.duration_seconds or header.duration_seconds
    # The headers of these add up the ticks, and FFmpeg those of MPEG streams.
    if not index.has_times and header.container in ("matroska", "mov", "flv", "mpegts", "mpeg"):
        duration = index.num_frames / fps if fps else None
    end = index.end_offset_bytes
    return {
        "num_frames_from_index": index.num_frames,
        "num_keyframes_from_index": index.num_keyframes,
        "duration_seconds_from_index": index.duration_seconds,
        "is_variable_fps": index.is_variable_fps,
        "num_timestamp_gaps": index.num_missing_frames,
        "missing_bytes": max(0, end - size_bytes) if end is not None else None,
        "fps": fps,
        "num_frames": index.num_frames,
        "duration_seconds": duration,
    }


def _decode_columns(found: Decoded, *, keyframes_only: bool, has_times: bool) -> Facts:
    columns: dict[str, Any] = {
        "sha256": found.sha256,
        "num_damaged_packets": found.num_damaged_packets,
        "num_corrupt_frames": found.num_corrupt_frames + found.num_undecodable_packets,
    }
    if not keyframes_only:
        columns |= {
            "num_frames_from_decode": found.num_frames,
            "duration_seconds_from_decode": found.duration_seconds if has_times else None,
            "num_corrupt_audio_packets": found.num_damaged_audio_packets,
        }
    return columns
