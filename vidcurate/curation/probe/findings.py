"""Probe findings by name, and the status that follows from them.

Facts and policy are separate: which findings reject is a setting, and changing the setting does not read
files again.
"""

from typing import Any

LEVELS: tuple[str, ...] = ("header", "index", "keyframes", "full")

# Name → meaning, in the order in which they name a file that has several.
FINDINGS: dict[str, str] = {
    "truncated": "the container's index or structure proves that the file was longer",
    "no_frames": "the video stream holds no packet",
    "encrypted": "the pictures are encrypted",
    "damaged_container": "the container's structure breaks, a check sum or counter is wrong, or its reader "
    "complains",
    "damaged_packets": "coded pictures hold what no encoder writes: zeroed blocks, lengths that do not fit",
    "damaged_frames": "pictures that the decoder marks as damaged or cannot decode",
    "missing_frames": "fewer pictures decode than there are packets",
    "frame_count_mismatch": "header and index disagree on the number of frames by more than a twentieth",
    "duration_mismatch": "the packets span less than four fifths of the promised duration",
    "decoder_complaints": "the decoder complains and marks no picture",
    "short_container": "a box promises more bytes than the file has, and every packet is there",
    "trailing_bytes": "bytes behind the end of the container that are no part of it",
    "header_duration_differs": "header and packets disagree on the duration by a tenth and a quarter second",
    "header_count_differs": "header and index disagree a little on the number of frames",
    "several_movies": "another movie follows in the file; many players show only the first",
    "still_image": "a picture and not a video, whatever the file's name",
    "no_timestamps": "packets without times, one tick apart or all at one time: the rate is the header's",
    "timestamp_gaps": "holes in otherwise evenly spaced pictures",
    "timestamp_repeats": "two pictures are shown at one time",
    "open_gop_start": "pictures at the start refer to others that were cut off; no player shows them",
    "decode_count_differs": "the number of decoded pictures is a little off the number of packets",
    "audio_duration_differs": "sound and picture differ in length by a tenth and half a second",
    "damaged_audio": "sound that does not decode, or of which its decoder complains",
}
# Default rejecting findings; no clean file of the corpus or of 54 real ones has one.
REJECTING: tuple[str, ...] = (
    "truncated",
    "no_frames",
    "encrypted",
    "damaged_container",
    "damaged_packets",
    "damaged_frames",
    "missing_frames",
    "frame_count_mismatch",
    "duration_mismatch",
    "decoder_complaints",
)
# Statuses that a missing codec, a library or a lost mount can give to every file.
_OF_THE_INSTALLATION = (
    "missing", "unreadable", "no_video_stream", "timeout", "crashed", "io_error", "damaged_frames",
    "missing_frames", "decoder_complaints",
)  # fmt: skip

Facts = dict[str, Any]  # plain JSON values: columns of the table, level, failure, findings


def verdict(facts: Facts, rejecting: tuple[str, ...]) -> tuple[str, str | None]:
    """Return (status, problem as text) of a file: its failure, or the first finding that rejects, or ok."""
    if facts.get("failure"):
        return facts["failure"], facts["problem"]
    found = facts["findings"]
    for name in FINDINGS:
        if name in found and name in rejecting:
            return name, found[name]
    return "ok", None


def reason(facts: Facts, rejecting: tuple[str, ...]) -> str | None:
    """Return why a file is rejected, None for a good one, "" where only the file can be the cause."""
    status, problem = verdict(facts, rejecting)
    if status == "ok":
        return None
    return problem if status in _OF_THE_INSTALLATION else ""


def disagreements(facts: Facts) -> str | None:
    """Return the names of all findings in order, separated by commas; None without any."""
    return ", ".join(name for name in FINDINGS if name in facts.get("findings", {})) or None


def is_done(facts: Facts, level: str, rejecting: tuple[str, ...], time_limit_seconds: float) -> bool:
    """Return whether the facts of a file suffice for `level`, so that it is not read again.

    A file rejected at the level index stays rejected, as `examine` never takes it to a higher one; one
    rejected at keyframes is read at full, as it would be afresh. Files with a transient failure are read
    again: an I/O error, a crash, or a time limit that has been raised since.
    """
    failure = facts.get("failure")
    if failure == "timeout":
        return time_limit_seconds <= float(facts["time_limit_seconds"])
    if failure:
        return failure not in ("io_error", "crashed", "missing")
    if verdict(facts, rejecting)[0] != "ok" and facts["level"] in ("header", "index"):
        return True
    return LEVELS.index(facts["level"]) >= LEVELS.index(level)
