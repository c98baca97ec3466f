"""Probe speed, beside one ffprobe process per file and decoding every frame.

    python benchmarks/probe.py [--clips FOLDER]

Without --clips it makes 12 clips (8 s, 720p, 24 frames/s, a key frame every 2 s) of moving noise. The
peers do what the published pipelines do: an ffprobe process per file (NeMo Curator, cosmos-curate) and a full
decode to RGB (Open-Sora's `--info`). One core, best of three passes over warm files.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import av
import numpy as np
from rows import best_seconds, keep, row

from vidcurate.curation.probe.stage import probe_file
from vidcurate.errors import MediaError
from vidcurate.media import encode, headers


def make_clips(folder: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    base = rng.integers(0, 255, (90, 160, 3), dtype=np.uint8).repeat(8, axis=0).repeat(8, axis=1)
    for number in range(count):
        frames = np.stack([np.roll(base, (4 * t + number, 7 * t), axis=(0, 1)) for t in range(192)])
        encode.write_video(folder / f"{number:03d}.mp4", frames, fps=24, crf=30)


def full_decode(path: Path) -> int:
    """Decode every frame to RGB, as a reader that wants the frame count from the pixels does."""
    frames = 0
    try:
        with av.open(str(path)) as container:
            for frame in container.decode(video=0):
                frame.to_ndarray(format="rgb24")
                frames += 1
    except (av.FFmpegError, IndexError):
        return 0
    return frames


def ffprobe(path: Path) -> str:
    return subprocess.run(
        ["ffprobe", "-v", "error", "-show_streams", "-show_format", "-of", "json", str(path)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout


def readable(path: Path) -> bool:
    try:
        headers.read_header_and_index(path)
    except MediaError:
        return False
    return True


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--clips", type=Path, help="a folder of videos instead of made ones")
    given = arguments.parse_args().clips
    with tempfile.TemporaryDirectory() as scratch:
        folder = given or Path(scratch)
        if given is None:
            make_clips(folder, 12)
        paths = [path for path in sorted(folder.iterdir()) if readable(path)]
        name = "the given clips" if given else "8 s 720p clips"
        seconds, _ = best_seconds(lambda: [probe_file(str(path)) for path in paths])
        decode_seconds, _ = best_seconds(lambda: [full_decode(path) for path in paths], repeats=1)
        ours = len(paths) / seconds
        rows = [
            row(
                f"probe, {name}",
                ours,
                "files/s",
                peer="full decode to RGB, PyAV",
                peer_value=len(paths) / decode_seconds,
                goal=">= 20 x",
            )
        ]
        if shutil.which("ffprobe"):
            probe_seconds, outputs = best_seconds(lambda: [ffprobe(path) for path in paths])
            assert all(json.loads(output).get("streams") for output in outputs), "ffprobe gave no streams"
            rows.append(
                row(
                    f"probe, {name}",
                    ours,
                    "files/s",
                    peer="ffprobe process per file",
                    peer_value=len(paths) / probe_seconds,
                    goal=">= 3 x",
                )
            )
        else:
            print("ffprobe is not installed: no figure against it")
        keep("probe_given_clips" if given else "probe", rows)


if __name__ == "__main__":
    main()
