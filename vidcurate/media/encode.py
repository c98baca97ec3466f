"""Encode frames to a video file, or an image to JPEG or PNG bytes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from vidcurate.storage import atomic_file


@contextmanager
def _scheduling_policy_kept() -> Iterator[None]:
    """Restore this thread's scheduling policy afterwards.

    SVT-AV1, run by root, gives the calling thread SCHED_FIFO at priority 99, and every process started
    later inherits it: a worker that spins then starves all others of its core.
    """
    if not hasattr(os, "sched_setscheduler"):
        yield
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


def write_video(
    path: Path,
    frames: NDArray[np.uint8],
    *,
    fps: float,
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    gop: int = 48,
    crf: int | None = 18,
    container_options: dict[str, str] | None = None,
    rotation_degrees: int = 0,
) -> None:
    """Encode uint8 RGB frames (T, H, W, 3) to `path`, whose suffix selects the container.

    The same frames give the same bytes. H and W must be even for 4:2:0 formats. The write is atomic.
    `rotation_degrees` becomes the display rotation (clockwise) in the header; the pixels stay as given.
    """
    options = {"crf": str(crf)} if crf is not None else {}
    if codec == "libx264":
        # x264's macroblock tree reads uninitialized memory for narrow frames (at 64 px, in 8 of 24
        # encodings): the same frames then give other bytes.
        options["x264-params"] = "mbtree=0"
    if codec == "libx265":
        # The same fault in x265 for a frame of one 64 px coding unit.
        options["x265-params"] = "log-level=none:pools=none:frame-threads=1:ctu=32"
    with (
        _scheduling_policy_kept(),
        atomic_file.atomic_path(path, suffix=path.suffix, is_flushed=False) as partial,
        av.open(
            os.fspath(partial), "w", options={"fflags": "+bitexact", **(container_options or {})}
        ) as container,
    ):
        stream: Any = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1001), options=options)
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], pixel_format
        stream.codec_context.gop_size = gop
        stream.codec_context.thread_count = 1
        stream.codec_context.flags |= av.codec.context.Flags.bitexact
        if rotation_degrees:
            stream.set_display_rotation(-rotation_degrees)
        for image in frames:
            for packet in stream.encode(
                av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            ):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)


def encode_image(image: NDArray[np.uint8], codec: str = "mjpeg") -> bytes:
    """Return one RGB image (H, W, 3) as the bytes of a JPEG (`mjpeg`) or a PNG (`png`)."""
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
    encoder: Any = av.CodecContext.create(codec, "w")
    encoder.width, encoder.height = frame.width, frame.height
    encoder.time_base = Fraction(1, 1)
    encoder.pix_fmt = "yuvj420p" if codec == "mjpeg" else "rgb24"
    encoder.thread_count = 1
    if codec == "mjpeg":
        encoder.options = {"qmin": "2", "qmax": "4"}
        frame = frame.reformat(format="yuvj420p")
    packets = [*encoder.encode(frame), *encoder.encode(None)]
    return b"".join(bytes(packet) for packet in packets)
