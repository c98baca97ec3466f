"""The cuts of one video, by the detector that also scores clips."""

from pathlib import Path
from typing import Any

from vidcurate.errors import MediaError
from vidcurate.frames.cuts import Cuts
from vidcurate.frames.spec import FramesSpec
from vidcurate.frames.walk import Walked, walk
from vidcurate.scenes.spec import SceneSpec
from vidcurate.video import read_header_and_index

_SHORT_SIDE_PX = FramesSpec().short_side_px


def detect(item: dict[str, Any], spec: SceneSpec) -> dict[str, Any]:
    """Return `cuts` and `end_seconds` in the file's time, with what its header says, of one video.

    `item` has path, start_seconds and end_seconds (None: the file's). A video that cannot be decoded gets a
    `problem` instead, not an error.
    """
    path = Path(item["path"])
    start = item["start_seconds"] or 0.0
    walked = Walked()
    cuts = Cuts(spec.cut_threshold, spec.cut_window_frames, spec.min_scene_seconds)
    try:
        header, _ = read_header_and_index(path)
        for look in walk(
            path,
            item["start_seconds"],
            item["end_seconds"],
            short_side_px=_SHORT_SIDE_PX,
            details_per_second=0,
            walked=walked,
        ):
            cuts.see(look)
    except MediaError as error:
        return {"problem": error.kind, "message": str(error)}
    found = cuts.finish(walked.end_seconds)["cut_seconds"]
    return {
        "problem": None,
        "cuts": [round(start + cut, 6) for cut in found],
        "end_seconds": round(start + walked.end_seconds, 6),
        "width": header.width,
        "height": header.height,
        "fps": header.fps,
    }
