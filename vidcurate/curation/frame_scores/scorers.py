"""Frame scorers of a clip: one decode feeds all of them and gives one table row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidcurate.curation.frame_scores.audio import Audio
from vidcurate.curation.frame_scores.cuts import Cuts
from vidcurate.curation.frame_scores.decode_once import Walked, walk
from vidcurate.curation.frame_scores.frozen import Frozen
from vidcurate.curation.frame_scores.hashes import Hashes
from vidcurate.curation.frame_scores.letterbox import Letterbox
from vidcurate.curation.frame_scores.luma import Black, Brightness, Flicker
from vidcurate.curation.frame_scores.motion import Motion
from vidcurate.curation.frame_scores.scorer import Columns, FrameScorer
from vidcurate.curation.frame_scores.sharpness import Sharpness
from vidcurate.curation.frame_scores.spec import FramesSpec
from vidcurate.errors import MediaError
from vidcurate.storage import download

# All frame scorers. A new one needs a file, its columns in `schema`, and a line here.
SCORES: dict[str, Callable[[FramesSpec], FrameScorer]] = {
    "motion": lambda spec: Motion(spec.motion_pairs_per_second),
    "sharpness": lambda spec: Sharpness(),
    "brightness": lambda spec: Brightness(),
    "flicker": lambda spec: Flicker(),
    "black": lambda spec: Black(),
    "frozen": lambda spec: Frozen(),
    "letterbox": lambda spec: Letterbox(),
    "cuts": lambda spec: Cuts(spec.cut_threshold, spec.cut_window_frames, spec.min_scene_seconds),
    "hashes": lambda spec: Hashes(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipFile:
    """File of a clip and its interval. None means the start or the end of the file."""

    path: str
    start_seconds: float | None = None
    end_seconds: float | None = None


def measure(
    clip: ClipFile,
    spec: FramesSpec,
    scores: Mapping[str, Callable[[FramesSpec], FrameScorer]] = SCORES,
) -> Columns:
    """Return the columns of `scores` for the clip, with those of the walk itself. Raises MediaError."""
    walked, audio = Walked(), Audio()
    every = [make(spec) for make in scores.values()]
    for look in walk(
        Path(clip.path),
        clip.start_seconds,
        clip.end_seconds,
        short_side_px=spec.short_side_px,
        details_per_second=spec.details_per_second,
        walked=walked,
        audio=audio,
    ):
        for score in every:
            score.see(look)
    columns = {"num_frames_decoded": walked.num_frames, "num_frames_damaged": walked.num_damaged}
    for score in every:
        columns |= score.finish(walked.end_seconds)
    return columns | {"packet_hash": walked.packet_hash} | audio.columns()


def score_clip(item: Mapping[str, Any], spec: FramesSpec) -> Columns:
    """Return the clip's row; an undecodable clip gets a status and a problem, not an error.

    `item` has the fields of a ClipFile; its path may be a URL.
    """
    try:
        with download.local(item["path"]) as path:
            measured = measure(ClipFile(**{**item, "path": str(path)}), spec)
        return {"frames_status": "ok", "frames_problem": None, **measured}
    except MediaError as error:
        return {"frames_status": error.kind, "frames_problem": str(error)}
