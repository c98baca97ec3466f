"""The `ffmpeg` program as a second opinion: which frames a clip has, and how they look in a bucket's size."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vidcurate.media import container as media_container
from vidcurate.media import scale

needs_ffmpeg = pytest.mark.skipif(
    shutil.which("ffmpeg") is None, reason="no ffmpeg program: test_frames_exact covers the ground with PyAV"
)


def psnr(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the peak signal-to-noise ratio of two pictures or clips of 8 bits, in dB; inf where equal."""
    error = float(((one.astype(np.float64) - other) ** 2).mean())
    return float("inf") if error == 0 else 10 * np.log10(255**2 / error)


def _run(path: Path, chain: str, shape: tuple[int, int], count: int, *options: str) -> NDArray[np.uint8]:
    command = ["ffmpeg", "-v", "fatal", "-threads", "1", *options, "-i", str(path), "-map", "0:V:0"]
    command += ["-vf", chain, "-fps_mode", "passthrough", "-frames:v", str(count)]
    done = subprocess.run(
        [*command, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=False, timeout=300
    )
    return np.frombuffer(done.stdout, dtype=np.uint8).reshape(-1, *shape, 3)


def frames(path: Path, count: int, *, height: int, width: int) -> NDArray[np.uint8]:
    """Return what ffmpeg makes of the first `count` frames: crop, scale, planes of RGB, then turned upright.

    Its own turning is off, as it comes before the scaling: here the small picture is turned.
    """
    with media_container.opened(path) as (container, stream):
        frame = next(container.decode(stream))
        transposed, mirrored, upside_down = scale.orientation_of(frame)
        coded = (width, height) if transposed else (height, width)
        crop, flags = scale.chain_of(frame.format, scale.pixel_shape(stream), *coded)
        del frame
    chain = [f"crop={crop}"] if crop else []
    chain += [f"scale={coded[1]}:{coded[0]}:flags={flags}+accurate_rnd", "format=gbrp"]
    chain += ["transpose=cclock_flip"] * transposed + ["hflip"] * mirrored + ["vflip"] * upside_down
    return _run(path, ",".join(chain), (height, width), count, "-noautorotate")


def frames_as_ffmpeg_turns_them(path: Path, count: int, *, height: int, width: int) -> NDArray[np.uint8]:
    """Return the first frames, whole, turned by ffmpeg as it likes and then scaled."""
    return _run(path, f"scale={width}:{height}:flags=area", (height, width), count)
