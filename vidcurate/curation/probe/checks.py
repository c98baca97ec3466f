"""Checks of one file: from what was read of it to findings.

Each function adds its findings to the file's facts; `examine` decides which of them run.
"""

from dataclasses import replace

from vidcurate.curation.probe.bounds import Bounds
from vidcurate.curation.probe.decoding import Complaints, Decoded
from vidcurate.curation.probe.findings import Facts
from vidcurate.errors import counted
from vidcurate.media import headers, packets

# Packets that span less than this share of the promised duration mean that the rest is not there.
_SHORTEST_SHARE = 0.8
# Headers that estimate their count are off by up to this share.
_LARGEST_COUNT_DIFFERENCE = 0.05
# AVI's header counts frame times, dropped frames too; with fewer pictures it promises what is not there.
_LEAST_AVI_SHARE = 0.25
# H.264's decoder reports so that a picture before the start of a copy is released.
_LEADING_COMPLAINT = "mmco: unref short failure"


def are_joined(header: headers.Header, bounds: Bounds) -> bool:
    """Return whether FFmpeg reads another movie behind the first, whose times begin again."""
    return bounds.second_movie_at is not None and header.container in ("matroska", "mpegts", "mpeg")


def without_useless_times(
    index: packets.PacketIndex, header: headers.Header, bounds: Bounds
) -> packets.PacketIndex:
    """Return the index without times where they begin again, are ticks (FLV) or equal.

    With B-frames, equal decoding times give a few display times; the header then promises more.
    """
    spanned, count = index.duration_seconds or 0.0, index.num_frames
    are_ticks = header.container == "flv" and count > 2 and count >= packets.FAST_CLOCK * spanned
    is_short = spanned < _SHORTEST_SHARE * (header.duration_seconds or 1.0)
    are_equal = is_short and 2 * index.num_repeated_times > count
    if not (are_joined(header, bounds) or are_ticks or are_equal):
        return index
    return replace(
        index,
        has_times=False,
        duration_seconds=None,
        is_variable_fps=False,
        num_missing_frames=None,
        num_repeated_times=0,
    )


def check_index(
    facts: Facts, header: headers.Header, index: packets.PacketIndex, bounds: Bounds, size_bytes: int
) -> None:
    found = facts["findings"]
    if index.end_offset_bytes is not None and index.end_offset_bytes > size_bytes:
        found["truncated"] = f"the index ends at byte {index.end_offset_bytes}, the file at byte {size_bytes}"
    elif bounds.cut:
        found["truncated"] = bounds.cut
    elif bounds.short:
        found["short_container"] = bounds.short
    if index.num_frames == 0:
        found["no_frames"] = "the video stream holds no packet"
    if header.is_encrypted:
        found["encrypted"] = "the pictures are encrypted (sample entry encv)"
    if bounds.broken:
        found["damaged_container"] = bounds.broken
    if bounds.trailing_bytes:
        found["trailing_bytes"] = f"{counted(bounds.trailing_bytes, 'byte')} behind the container's end"
    if header.num_frames is not None and not header.is_trimmed:
        in_index = index.num_frames + index.num_hidden + index.num_leading
        if index.num_ticks and index.num_frames >= _LEAST_AVI_SHARE * index.num_ticks:
            in_index = index.num_ticks
        elif abs(header.num_frames - in_index) > abs(header.num_frames - in_index - index.num_second_fields):
            in_index += index.num_second_fields  # this header counts fields
        words = f"the header counts {counted(header.num_frames, 'frame')}, the index {in_index}"
        if abs(header.num_frames - in_index) > max(2, _LARGEST_COUNT_DIFFERENCE * header.num_frames):
            found["frame_count_mismatch"] = words
        elif header.num_frames != in_index and header.container != "avi":
            found["header_count_differs"] = words
    if index.num_leading:
        count = counted(index.num_leading, "picture")
        found["open_gop_start"] = f"{count} with references before the file's start; no player shows them"
    if bounds.second_movie_at is not None:
        found["several_movies"] = f"another movie begins at byte {bounds.second_movie_at}"
    is_picture = header.container.endswith("_pipe") or header.container == "image2" or header.is_picture
    if (is_picture or header.container == "gif") and index.num_frames <= 1:
        found["still_image"] = f"the file is a picture ({header.codec})"
    elif is_picture or not (index.has_times or are_joined(header, bounds)):
        found["no_timestamps"] = "the packets have no times, or are one tick apart or all at one time"
    if index.num_missing_frames:
        found["timestamp_gaps"] = f"{counted(index.num_missing_frames, 'frame')} missing between the others"
    if index.num_repeated_times:
        found["timestamp_repeats"] = (
            f"{counted(index.num_repeated_times, 'frame')} shown at the time of another"
        )
    if index.has_times:
        _check_durations(found, header, index, bounds)


def _check_durations(
    found: dict[str, str], header: headers.Header, index: packets.PacketIndex, bounds: Bounds
) -> None:
    promised, spanned = header.duration_seconds, index.duration_seconds or 0.0
    # Matroska and FLV promise one duration, from 0 to the end of the longest stream.
    reached = max(spanned, index.file_end_seconds or 0.0)
    if promised and promised > 1 and not header.is_trimmed and reached < _SHORTEST_SHARE * promised:
        found["duration_mismatch"] = f"the header promises {promised:.2f} s, the packets span {spanned:.2f} s"
    sound = header.audio_duration_seconds or index.audio_seconds
    if sound and spanned and abs(sound - spanned) > max(0.5, 0.1 * spanned):
        found["audio_duration_differs"] = f"the sound lasts {sound:.2f} s, the picture {spanned:.2f} s"
    longest = max(reached, sound or 0.0)
    # FFmpeg's stream duration is the track's, which an edit list does not change.
    for reported in (bounds.movie_seconds,) if header.is_trimmed else (promised, bounds.movie_seconds):
        if (
            reported
            and spanned
            and "duration_mismatch" not in found
            and not _is_near(reported, spanned, longest)
        ):
            found["header_duration_differs"] = (
                f"the header promises {reported:.2f} s, the packets span {spanned:.2f} s"
            )


def _is_near(reported: float, spanned: float, longest: float) -> bool:
    """Return whether a declared duration is between those of video and of the longest stream."""
    slack = max(0.25, 0.1 * spanned)
    return spanned - slack <= reported <= longest + slack


def check_decode(facts: Facts, found: Decoded, index: packets.PacketIndex, *, keyframes_only: bool) -> None:
    findings = facts["findings"]
    damaged = found.num_corrupt_frames + found.num_undecodable_packets
    if found.num_damaged_packets:
        findings["damaged_packets"] = (
            f"{counted(found.num_damaged_packets, 'damaged packet')}, first {found.first_packet}"
        )
    if damaged:
        findings["damaged_frames"] = f"{counted(damaged, 'damaged frame')}, first {found.first_frame}"
    if found.read_error:
        findings["damaged_container"] = (
            f"reading stopped after {counted(found.num_packets, 'packet')} ({found.read_error})"
        )
    expected = index.num_frames
    if keyframes_only:  # H.263 in AVI has more of them than its index names
        expected = max(index.num_keyframes, found.num_keys) - found.num_predicted_keys
    what = "key frames" if keyframes_only else "frames"
    words = f"{found.num_frames} of {expected} {what} decode"
    # Two fields of an interlaced picture may lie in two packets.
    is_in_fields = abs(2 * found.num_frames - expected) <= 2
    is_short = found.num_frames < expected - max(1, expected // 100) and not is_in_fields
    if is_short or (expected and not found.num_frames):
        findings["missing_frames"] = words
    elif found.num_frames != expected and not is_in_fields:
        findings["decode_count_differs"] = words


def complaints(lines: list[str]) -> str:
    return f"{counted(len(lines), 'complaint')}, first {lines[0]}"


def check_complaints(
    facts: Facts, heard: Complaints, header: headers.Header, *, has_open_start: bool = False
) -> None:
    """Sort FFmpeg's error messages. At level index, decoder messages do not count (probing on opening)."""
    findings = facts["findings"]
    sound = header.audio_decoder or ""
    containers = [name for name, _ in heard.lines if header.container in name.split(",")]
    of_container = heard.of(*containers)
    of_sound = heard.of(sound, sound.removesuffix("float"))
    others = heard.not_of(*containers, sound, sound.removesuffix("float"))
    if has_open_start:
        others = [line for line in others if _LEADING_COMPLAINT not in line]
    if of_container and "truncated" not in findings:
        findings.setdefault("damaged_container", complaints(of_container))
    if facts["level"] == "index":
        return
    if of_sound or facts.get("num_corrupt_audio_packets"):
        count = facts.get("num_corrupt_audio_packets", 0)
        first = f"first {of_sound[0]}" if of_sound else "the decoder says no more"
        findings["damaged_audio"] = f"{counted(count, 'packet')} of sound not decoded, {first}"
    if others and "damaged_frames" not in findings and "damaged_packets" not in findings:
        findings["decoder_complaints"] = complaints(others)
