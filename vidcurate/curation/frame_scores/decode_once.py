"""Single decode of a clip, shared by all frame scorers (PyAV).

Reads every packet once, decodes every frame once, in one thread, and scales it once. A frame belongs to the
interval that contains its middle, as in `transcode`: the scores of a clip inside a longer file equal those of
the extracted clip.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from vidcurate.curation.frame_scores.audio import Audio
from vidcurate.curation.frame_scores.packet_hash import PacketHash
from vidcurate.curation.frame_scores.scorer import SLACK_SECONDS, FrameView, Pixels
from vidcurate.errors import MediaError, counted
from vidcurate.media import slow_gather
from vidcurate.media.container import codec_of, opened, packets_of, reason_of
from vidcurate.media.display_times import DisplayTimes
from vidcurate.media.scale import quarter_turns_of
from vidcurate.media.transcode import frame_rate, origin_seconds, seek_before

cv2.setNumThreads(1)
slow_gather.choose_scaler()
_BRIGHTER_LEVELS = 16  # a frame so much brighter than all before shows what they hide
_SMALL, _WHOLE = VideoReformatter(), VideoReformatter()


@dataclass(slots=True)
class Walked:
    """Counts of a walk, final when the walk has ended. `end_seconds` counts from the first frame."""

    num_frames: int = 0
    num_damaged: int = 0
    end_seconds: float = 0.0
    packet_hash: str | None = None


def _upright(image: NDArray[Any], turns: int) -> Pixels:
    return np.ascontiguousarray(np.rot90(image, turns)) if turns else image


def _small_size(frame: Any, aspect: float, short_side_px: int) -> tuple[int, int]:
    """Return (height, width) as coded for square pixels, never larger than the frame."""
    width = frame.width * aspect
    scale = min(1.0, short_side_px / min(frame.height, width))
    return max(1, round(frame.height * scale)), max(1, round(width * scale))


def _look(
    frame: Any,
    seconds: float,
    size: tuple[int, int],
    aspect: float,
    turns: int,
    is_detailed: bool,
    detailed_above: float,
) -> FrameView:
    """Return the view of a frame; with full-size luma if `is_detailed` or brighter than `detailed_above`."""
    small = _SMALL.reformat(
        frame, height=size[0], width=size[1], format="bgr24", interpolation=Interpolation.AREA, threads=1
    ).to_ndarray()
    bgr = _upright(small, turns)
    grey = cv2.cvtColor(bgr, cv2.COLOR_BGR2GRAY)
    brightness = cv2.mean(grey)[0]
    luma = None
    if is_detailed or brightness > detailed_above:
        width = max(1, round(frame.width * aspect))  # of square pixels
        whole = _WHOLE.reformat(frame, width=width, format="gray", threads=1)
        luma = _upright(whole.to_ndarray(), turns)
    return FrameView(
        seconds=seconds,
        bgr=bgr,
        grey=grey,
        brightness=brightness,
        luma=luma,
        is_out_of_turn=luma is not None and not is_detailed,
    )


def walk(
    path: Path,
    start_seconds: float | None,
    end_seconds: float | None,
    *,
    short_side_px: int,
    details_per_second: float,
    walked: Walked,
    audio: Audio | None = None,
) -> Iterator[FrameView]:
    """Yield every frame of the clip in display order, and fill `walked` and `audio`.

    None means the start or the end of the file. Without `audio` no sound is decoded; with no details per
    second no frame has full-size luma. Raises MediaError: the kinds of opening a file, unreadable when
    decoding fails, no_frames for an empty interval.
    """
    start, end = start_seconds or 0.0, float("inf") if end_seconds is None else end_seconds
    with opened(path) as (container, stream):
        try:
            yield from _walk(container, stream, start, end, short_side_px, details_per_second, walked, audio)
        except (av.FFmpegError, OSError, ValueError) as error:
            raise MediaError(
                f"{path.name}: decoding failed after {counted(walked.num_frames, 'frame')} "
                f"({reason_of(error)}).",
                kind="unreadable",
            ) from error
    if not walked.num_frames:
        raise MediaError(f"{path.name}: no frame decodes in the clip.", kind="no_frames")


def _walk(
    container: Any,
    stream: Any,
    start: float,
    end: float,
    short_side_px: int,
    details_per_second: float,
    walked: Walked,
    audio: Audio | None,
) -> Iterator[FrameView]:
    rate = float(frame_rate(container, stream))
    half, origin = 0.5 / rate, origin_seconds(stream)
    first_frame = seek_before(container, stream, start)
    aspect = float(stream.sample_aspect_ratio or 1)
    hashed = PacketHash(codec_of(stream), stream.codec_context.extradata)
    sound = next((one for one in container.streams.audio if one.codec_context is not None), None)
    sound = None if audio is None else sound
    hear = _hearing(audio or Audio(), start, end)
    first: float | None = None
    time = last = -1 / rate
    next_detail = 0.0 if details_per_second else float("inf")
    brightest = float("-inf") if details_per_second else float("inf")  # of the frames with luma
    size: tuple[int, int] | None = None
    times = DisplayTimes(container, stream)
    turns = None if first_frame is None else quarter_turns_of(first_frame)
    for packet in packets_of(container, *([stream, sound] if sound else [stream])):
        if packet.stream is sound:
            hear(packet)
            continue
        times.add(packet)
        if packet.size and not packet.is_discard and _is_inside(packet, origin, half, start, end):
            hashed.add(bytes(packet))
        for frame in packet.decode():
            # H.264's orientation message comes with key frames only.
            turns = quarter_turns_of(frame) if turns is None else turns
            at = times.of(frame)
            time = at - origin if at is not None else time + 1 / rate
            if time + half < start:
                continue
            if time + half >= end:
                walked.packet_hash = hashed.value()
                return
            first = time if first is None else first
            seconds = max(time - first, last)
            walked.num_frames += 1
            walked.num_damaged += bool(frame.is_corrupt)
            walked.end_seconds = seconds + 1 / rate
            is_detailed = seconds + SLACK_SECONDS >= next_detail
            if is_detailed:
                next_detail = max(next_detail + 1 / details_per_second, seconds)
            if size is None:
                size = _small_size(frame, aspect, short_side_px)
            last = seconds
            look = _look(frame, seconds, size, aspect, turns, is_detailed, brightest + _BRIGHTER_LEVELS)
            if look.luma is not None:
                brightest = max(brightest, look.brightness)
            yield look
    walked.packet_hash = hashed.value()


def _is_inside(packet: Any, origin: float, half: float, start: float, end: float) -> bool:
    if packet.pts is None:
        return start <= 0 and end == float("inf")
    return start <= float(packet.pts * packet.time_base) - origin + half < end


def _hearing(audio: Audio, start: float, end: float) -> Callable[[Any], None]:
    """Return a function that decodes an audio packet; audio errors do not affect the frame scores."""
    is_deaf = False

    def hear(packet: Any) -> None:
        nonlocal is_deaf
        if is_deaf or audio.is_silent is False:
            return
        try:
            for frame in packet.decode():
                if frame.time is None or start <= frame.time < end:
                    audio.hear(frame.to_ndarray())
        except (av.FFmpegError, ValueError):
            is_deaf = True

    return hear
