"""The clean clips of the fault corpus: moving, noisy pictures with sound, in the containers people have."""

import os
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

HEIGHT, WIDTH, FPS, NUM_FRAMES = 96, 128, 24, 36
_GOP = 12
_SOUND_RATE = 48_000
_BITEXACT = av.codec.context.Flags.bitexact


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A container with the codecs that are usual in it. `options` are the muxer's."""

    suffix: str
    codec: str
    sound: str
    options: dict[str, str] = field(default_factory=dict)


# What stands before `_` is the suffix's family; the order is that of every table of the corpus.
CONTAINERS: dict[str, Form] = {
    "mp4_moov_first": Form(suffix=".mp4", codec="libx264", sound="aac", options={"movflags": "+faststart"}),
    "mp4_moov_last": Form(suffix=".mp4", codec="libx265", sound="aac"),
    "mp4_fragmented": Form(
        suffix=".mp4",
        codec="libx264",
        sound="aac",
        options={"movflags": "+frag_keyframe+empty_moov+default_base_moof"},
    ),
    "mkv": Form(suffix=".mkv", codec="libx264", sound="flac"),
    "webm": Form(suffix=".webm", codec="libvpx-vp9", sound="libopus"),
    "webm_live": Form(suffix=".webm", codec="libvpx", sound="libopus", options={"live": "1"}),
    "avi": Form(suffix=".avi", codec="mpeg4", sound="libmp3lame"),
    "ts": Form(suffix=".ts", codec="libx264", sound="aac"),
}


def pictures(num_frames: int = NUM_FRAMES, seed: int = 0) -> NDArray[np.uint8]:
    """Return uint8 RGB frames (T, H, W, 3): a ground that drifts, a square that crosses it, and noise."""
    rng = np.random.default_rng(seed)
    ground = rng.integers(0, 255, (HEIGHT // 8, WIDTH // 8, 3)).repeat(8, axis=0).repeat(8, axis=1)
    frames = np.empty((num_frames, HEIGHT, WIDTH, 3), dtype=np.uint8)
    for number in range(num_frames):
        image = np.roll(ground, (number, 2 * number), axis=(0, 1)) * 0.7
        image[30:60, 3 * number % (WIDTH - 30) :][:, :30] = (230, 60, 30)
        frames[number] = np.clip(image + rng.normal(20, 6, image.shape), 0, 255)
    return frames


def _sound(seconds: float) -> Iterator[Any]:
    """Yield mono frames of a sweep, 1,024 samples each, as float planes."""
    times = np.arange(int(seconds * _SOUND_RATE)) / _SOUND_RATE
    wave = (0.3 * np.sin(2 * np.pi * (300 + 200 * times) * times)).astype(np.float32)
    for start in range(0, len(wave), 1024):
        piece = wave[None, start : start + 1024]
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(piece), format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = _SOUND_RATE, start, Fraction(1, _SOUND_RATE)
        yield frame


def _encoder(output: Any, form: Form) -> Any:
    options = {"libx264": {"crf": "26", "x264-params": "mbtree=0"}, "libvpx-vp9": {"crf": "32"}}.get(
        form.codec, {"crf": "28"}
    )
    if form.codec == "libx265":
        options["x265-params"] = "log-level=none:pools=none:frame-threads=1:ctu=32"
    if form.codec.startswith("libvpx"):
        options |= {"deadline": "realtime", "cpu-used": "8", "b": "400k"}
    if form.codec == "mpeg4":
        options = {"qscale": "6"}
    stream = output.add_stream(form.codec, rate=FPS, options=options)
    stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
    stream.codec_context.gop_size = _GOP
    stream.codec_context.thread_count = 1
    stream.codec_context.flags |= _BITEXACT
    return stream


def write_clip(path: Path, form: Form, *, seed: int = 0, sound_seconds: float | None = None) -> None:
    """Write one clean clip: NUM_FRAMES frames at FPS, and equally long sound by default."""
    seconds = NUM_FRAMES / FPS if sound_seconds is None else sound_seconds
    output = av.open(os.fspath(path), "w", options={"fflags": "+bitexact", **form.options})
    try:
        stream = _encoder(output, form)
        voice: Any = output.add_stream(form.sound, rate=_SOUND_RATE, layout="mono")
        voice.codec_context.flags |= _BITEXACT
        waves = list(_sound(seconds))
        resampler = av.AudioResampler(
            format=voice.codec_context.format.name, layout="mono", rate=_SOUND_RATE,
            frame_size=voice.codec_context.frame_size or 1024,
        )  # fmt: skip
        packets: list[tuple[float, Any]] = []

        def collect(found: list[Any]) -> None:
            packets.extend((float(packet.dts * packet.time_base), packet) for packet in found)

        for number, image in enumerate(pictures(seed=seed)):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            collect(stream.encode(frame))
        collect(stream.encode(None))
        for wave in [*waves, None]:
            for piece in resampler.resample(wave):
                collect(voice.encode(piece))
        collect(voice.encode(None))
        for _, packet in sorted(packets, key=lambda entry: entry[0]):
            output.mux(packet)
    finally:
        output.close()


def _stamped(packets: list[Any]) -> list[Any]:
    """Give every packet a decoding time where the container (Matroska) stores none."""
    if any(packet.dts is None for packet in packets):
        shown = sorted(packet.pts for packet in packets)
        early = max(time - packet.pts for time, packet in zip(shown, packets, strict=True))
        for time, packet in zip(shown, packets, strict=True):
            packet.dts = time - early
    return packets


def remux(
    source: Path,
    target: Path,
    form: Form,
    *,
    gone: Container[int] = (),
    sound_from: Path | None = None,
) -> None:
    """Copy the packets of `source`, without the video packets whose number from 0 is in `gone`.

    Time stamps stay as they are, so what was dropped leaves a hole. With `sound_from` the sound is that of
    another file of the same form.
    """
    packets: list[tuple[float, int, Any]] = []
    templates: list[Any] = []
    opened: list[Any] = []
    try:
        for place, path in enumerate([source, sound_from or source]):
            container = av.open(os.fspath(path))
            opened.append(container)
            stream = container.streams.video[0] if place == 0 else container.streams.audio[0]
            templates.append(stream)
            found = _stamped([packet for packet in container.demux(stream) if packet.size])
            packets += [
                (float(packet.dts * packet.time_base), place, packet)
                for number, packet in enumerate(found)
                if place == 1 or number not in gone
            ]
        output = av.open(os.fspath(target), "w", options={"fflags": "+bitexact", **form.options})
        opened.append(output)
        streams = [output.add_stream_from_template(template) for template in templates]
        for _, place, packet in sorted(packets, key=lambda entry: entry[:2]):
            packet.stream = streams[place]
            output.mux(packet)
    finally:
        for container in reversed(opened):
            container.close()


def sound_places(path: Path) -> list[tuple[int, int]]:
    """Return (offset, size) in bytes of the sound packets that lie in one piece in the file."""
    data = path.read_bytes()
    places: list[tuple[int, int]] = []
    with av.open(os.fspath(path)) as container:
        cursor = 0
        for packet in container.demux(container.streams.audio[0]):
            at = data.find(bytes(packet), cursor) if packet.size >= 16 else -1
            if at >= 0:
                places.append((at, packet.size))
                cursor = at + packet.size
    return places
