"""Frame scores: all in one decode, beside the most expensive alone and a bare decode.

    python benchmarks/frame_scores.py [--clips FOLDER] [--rounds N]

Without --clips it makes clips of textures that pan, with sound: 360p, 720p and 1080p, 3 s at 24 frames/s.
Every mode decodes the same clips in one thread; the modes take turns, and a mode's time is the least of its
rounds in CPU seconds of this process, which other work on the machine disturbs least. "Alone" decodes, scales
and runs one score; sound and whole pictures are decoded only for the scores that look at them. The peer of
the throughput is a decode for each score, as tools do that have a program a score.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from rows import keep, row

from vidcurate.curation.frame_scores.decode_once import Walked, walk
from vidcurate.curation.frame_scores.scorers import SCORES, ClipFile, measure
from vidcurate.curation.frame_scores.spec import FramesSpec
from vidcurate.errors import MediaError
from vidcurate.media.container import opened
from vidcurate.media.decode import count_decodable_frames
from vidcurate.media.headers import read_header_and_index

SPEC = FramesSpec()
DETAILED = {"sharpness", "letterbox"}
SIZES = {"360p": (360, 640), "720p": (720, 1280), "1080p": (1080, 1920)}
FRAMES, FPS = 72, 24


def make_clip(path: Path, height: int, width: int, seed: int) -> None:
    """Write a pan over a texture, H.264 as published sets have it (crf 23, B-frames), with AAC sound."""
    rng = np.random.default_rng(seed)
    base = np.zeros((height + 200, width + 400, 3), np.float32)
    for size in (4, 8, 16, 32, 64):
        coarse = rng.normal(size=(base.shape[0] // size + 2, base.shape[1] // size + 2, 3)).astype(np.float32)
        base += cv2.resize(coarse, base.shape[1::-1], interpolation=cv2.INTER_CUBIC) * size**0.5
    base = (base - base.min()) / (base.max() - base.min()) * 220 + 18
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=FPS, options={"crf": "23", "preset": "veryfast"})
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        sound: Any = container.add_stream("aac", rate=48_000, layout="mono")
        for number in range(FRAMES):
            x, y = 4 * number, number
            picture = base[y : y + height, x : x + width] + rng.normal(size=(height, width, 1)) * 2
            image = np.clip(picture, 0, 255).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
        for start in range(0, 48_000 * FRAMES // FPS, 1024):
            samples = np.sin(np.arange(start, start + 1024) / 20, dtype=np.float32)[None] * np.float32(0.3)
            block = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
            block.sample_rate, block.pts, block.time_base = 48_000, start, Fraction(1, 48_000)
            container.mux(sound.encode(block))
        container.mux(sound.encode(None))


def bare_decode(path: Path) -> None:
    with opened(path) as (container, stream):
        for packet in container.demux(stream):
            for _ in packet.decode():
                pass


def alone(path: Path, name: str) -> None:
    score, walked = SCORES[name](SPEC), Walked()
    details = SPEC.details_per_second if name in DETAILED else 0
    for look in walk(
        path, None, None, short_side_px=SPEC.short_side_px, details_per_second=details, walked=walked
    ):
        score.see(look)
    score.finish(walked.end_seconds)


def together(path: Path) -> None:
    measure(ClipFile(path=str(path)), SPEC)


def is_whole(path: Path) -> bool:
    try:
        return count_decodable_frames(path) > 4
    except MediaError:
        return False


def cpu_seconds(paths: list[Path], rounds: int) -> dict[str, float]:
    """Return the least CPU seconds of each mode over all the clips."""
    modes: dict[str, Callable[[Path], None]] = {
        "bare decode": bare_decode,
        **{name: lambda path, name=name: alone(path, name) for name in SCORES},
        "together": together,
    }
    taken: dict[str, list[float]] = {name: [] for name in modes}
    for _ in range(rounds):
        for name, run in modes.items():
            start = time.process_time()
            for path in paths:
                run(path)
            taken[name].append(time.process_time() - start)
    return {name: min(times) for name, times in taken.items()}


def report(label: str, paths: list[Path], rounds: int) -> list[dict[str, Any]]:
    indexes = [read_header_and_index(path)[1] for path in paths]
    video_hours = sum(index.duration_seconds or 0.0 for index in indexes) / 3600
    num_frames = sum(index.num_frames for index in indexes)
    seconds = cpu_seconds(paths, rounds)
    for name, value in seconds.items():
        print(f"{label}: {name:12s} {value / num_frames * 1e3:7.3f} ms a frame")
    singles = {name: seconds[name] for name in SCORES}
    dearest = max(singles, key=lambda name: singles[name])
    whole = seconds["together"]
    print(
        f"{label}: {whole / len(paths) / 3600 * 1e6:.0f} CPU hours a million clips of "
        f"{video_hours * 3600 / len(paths):.1f} s; {video_hours / (whole / 3600):.1f} h of video a CPU hour"
    )
    return [
        row(
            f"all scores, {label}",
            whole / singles[dearest],
            "x its time",
            peer=f"the dearest alone ({dearest})",
            peer_value=1.0,
            goal="value <= 1.3",
            higher_is_better=False,
        ),
        row(
            f"all scores, {label}",
            whole / seconds["bare decode"],
            "x its time",
            peer="bare decode",
            peer_value=1.0,
            higher_is_better=False,
        ),
        row(
            f"all scores, {label}",
            len(paths) / whole,
            "clips/CPU s",
            peer="a decode for each score",
            peer_value=len(paths) / sum(singles.values()),
        ),
        row(
            f"all scores, {label}",
            video_hours / (whole / 3600),
            "h of video/CPU h",
            peer="a decode for each score",
            peer_value=video_hours / (sum(singles.values()) / 3600),
        ),
    ]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--clips", type=Path, help="a folder of videos instead of made ones")
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    if given.clips is not None:
        paths = [path for path in sorted(given.clips.iterdir()) if is_whole(path)]
        keep("frame_scores_given_clips", report("the given clips", paths, given.rounds))
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for label, (height, width) in SIZES.items():
            paths = [Path(scratch) / f"{label}-{number}.mp4" for number in range(2)]
            for number, path in enumerate(paths):
                make_clip(path, height, width, number)
            rows += report(f"3 s {label} clips", paths, given.rounds)
    keep("frame_scores", rows)


if __name__ == "__main__":
    main()
