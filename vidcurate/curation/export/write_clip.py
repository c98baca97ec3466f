"""Write one clip as KEY.mp4 and KEY.txt: link, remux or transcode, then verify.

A file that is already an MP4 with the wanted size, rate and frames, upright, with square pixels, is linked
(or copied where the file system cannot link). An MP4 codec in another container is remuxed. All else is
transcoded: players that trainers use ignore rotation, pixel shape and uneven frame times.
"""

import os
import shutil
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import av

from vidcurate.curation.export.clips import PlannedClip, Shape
from vidcurate.errors import MediaError, counted
from vidcurate.media import transcode
from vidcurate.media.container import codec_of, opened
from vidcurate.media.decode import count_decodable_frames
from vidcurate.media.packets import frame_map_of
from vidcurate.media.scale import orientation_of, pixel_shape
from vidcurate.media.transcode import TranscodeSpec, frame_rate
from vidcurate.shards.probed_file import check_content, problem_of
from vidcurate.storage import atomic_file

SPEC = TranscodeSpec()
# Codecs that players of all trainers decode from MP4.
_COPIED_CODECS = {"h264", "hevc", "av1", "vp9"}
_MOST_DENOMINATOR = 1001


def one_line(caption: str) -> str:
    """Return a caption on one line: trainers take each line of a text file as a caption."""
    return " ".join(caption.split())


def write_clip(clip: PlannedClip, folder: Path) -> dict[str, Any]:
    """Write KEY.txt and KEY.mp4 into `folder`, verify, and return the facts of the file.

    The row has `problem` (None when the clip is written), `kind`, `how` (linked, remuxed, transcoded),
    `num_frames`, `rate` (numerator, denominator), `width`, `height`, `size_bytes`. Raises StorageError.
    """
    target = folder / f"{clip.key}.mp4"
    text = target.with_suffix(".txt")
    with atomic_file.storage_errors(target):
        try:
            how = _write_video(clip, target)
            facts = verify(target, clip.shape)
        except MediaError as error:
            for path in (target, text):
                path.unlink(missing_ok=True)
            return failed(clip, error.kind, str(error))
        atomic_file.put(text, one_line(clip.captions[0][1]) + "\n")
    return {"key": clip.key, "problem": None, "kind": None, "how": how, **asdict(facts)} | {
        "size_bytes": target.stat().st_size
    }


def failed(clip: PlannedClip, kind: str, problem: str) -> dict[str, Any]:
    """Return the row of a clip that was not written."""
    return {"key": clip.key, "problem": problem, "kind": kind, "how": None}


def _write_video(clip: PlannedClip, target: Path) -> str:
    videos = Path(clip.videos)
    if problem := problem_of(videos, clip.video_path, clip.probed_bytes):
        raise MediaError(problem[1], kind=problem[0])
    check_content(videos, clip.video_path, clip.probed_sha256)
    source = videos / clip.video_path
    is_whole = clip.start_seconds is None and clip.end_seconds is None
    if is_whole and not clip.is_variable_fps:
        facts, codec, is_mp4, is_upright = _look(source)
        is_wanted = clip.shape is None or clip.shape == facts
        if is_upright and is_wanted and codec in _COPIED_CODECS:
            if is_mp4:
                _link(source, target)
                return "linked"
            atomic_file.put(target, transcode.trim_video(source, None, None).payload)
            return "remuxed"
    if clip.shape is None:
        cut = transcode.transcode_video(source, clip.start_seconds, clip.end_seconds, SPEC)
    else:
        cut = transcode.transcode_video(
            source,
            clip.start_seconds,
            clip.end_seconds,
            SPEC.model_copy(update={"fps": float(clip.shape.fps)}),
            size=(clip.shape.height, clip.shape.width),
            num_frames=clip.shape.num_frames,
        )
    atomic_file.put(target, cut.payload)
    return "transcoded"


def _look(source: Path) -> tuple[Shape, str, bool, bool]:
    """Return (shape, codec, is MP4, is upright with square pixels) of a file, counting its packets."""
    with opened(source) as (container, stream):
        is_mp4 = "mp4" in container.format.name.split(",") and source.suffix.lower() == ".mp4"
        try:
            rate = Fraction(frame_rate(container, stream)).limit_denominator(_MOST_DENOMINATOR)
            frame = next(container.decode(stream), None)
            is_upright = frame is not None and not any(orientation_of(frame)) and pixel_shape(stream) == 1
        except (av.FFmpegError, OSError, ValueError) as error:
            raise MediaError(f"{source.name}: cannot be decoded ({error}).", kind="unreadable") from error
        shape = Shape(
            width=stream.width,
            height=stream.height,
            num_frames=stream.frames,
            rate=(rate.numerator, rate.denominator),
        )
        return shape, codec_of(stream), is_mp4, is_upright


def _link(source: Path, target: Path) -> None:
    """Give the file a second name, or copy the bytes where the file system cannot link."""
    partial = atomic_file.partial_path(target)
    try:
        os.link(source.resolve(), partial)
    except OSError:
        shutil.copyfile(source, partial)
    try:
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)  # a rename onto another name of the same file leaves both


def verify(path: Path, wanted: Shape | None) -> Shape:
    """Decode a written clip and return its shape. Raises MediaError, kind wrong_export, when it differs."""
    num_frames = count_decodable_frames(path)
    with opened(path) as (container, stream):
        rate = Fraction(frame_rate(container, stream)).limit_denominator(_MOST_DENOMINATOR)
        found = Shape(
            width=stream.width,
            height=stream.height,
            num_frames=num_frames,
            rate=(rate.numerator, rate.denominator),
        )
    if num_frames == 0:
        raise MediaError(f"{path.name}: no frame decodes.", kind="no_frames")
    if wanted is not None and found != wanted:
        raise MediaError(
            f"{path.name}: {_as_text(found)} were written, {_as_text(wanted)} planned from the table. "
            "Run `vidcurate probe` again.",
            kind="wrong_export",
        )
    return found


def is_shape_of(path: Path, shape: Shape) -> bool:
    """Return whether a written file's header agrees with a shape; frames and rate within a hundredth."""
    try:
        frames = frame_map_of(path)
        with opened(path) as (container, stream):
            size, rate = (stream.width, stream.height), float(frame_rate(container, stream))
    except MediaError:
        return False
    num_frames = shape.num_frames if frames is None else len(frames)
    return (
        size == (shape.width, shape.height)
        and abs(num_frames - shape.num_frames) <= max(1, num_frames // 100)
        and abs(rate - float(shape.fps)) <= 0.01 * rate
    )


def _as_text(shape: Shape) -> str:
    frames = counted(shape.num_frames, "frame")
    return f"{frames} of {shape.width}x{shape.height} at {float(shape.fps):.6g} frames/s"
