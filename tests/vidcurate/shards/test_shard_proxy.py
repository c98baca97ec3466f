"""A proxy shows what its clip shows: upright, square pixels, constant rate, small, many key frames."""

import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tests.shard_runs import build, contents, make_run
from vidcurate.media import container as media_container
from vidcurate.media import decode, encode
from vidcurate.media.frame_map import parse
from vidcurate.media.transcode import TranscodeSpec
from vidcurate.recipe.recipe import parse as parse_recipe
from vidcurate.shards import index, index_file
from vidcurate.shards.layout import ShardSpec, make_plan
from vidcurate.shards.manifest import read_manifest
from vidcurate.shards.read_clip import read_clip_bytes, read_clip_facts
from vidcurate.shards.verify import verify

SPEC = ShardSpec(mode="proxy", transcode=TranscodeSpec(short_side_px=48, gop_frames=6, fps=24.0))
# Shape as displayed and frames of the clips, all 128 x 96 px with 24 frames in their files.
CLIPS = {"plain": (96, 128), "turned": (128, 96), "wide": (96, 256), "uneven": (96, 128)}


def picture(number: int) -> np.ndarray:  # type: ignore[type-arg]
    """Return frame `number`: a gradient both ways, another colour in each corner, and a bar that moves."""
    rows, columns = np.mgrid[0:96, 0:128]
    image = np.stack([rows * 2, columns * 2 - 1, np.full_like(rows, 60)], axis=-1).clip(0, 255)
    image[:32, :32] = (250, 20, 20)
    image[64:, 96:] = (20, 20, 250)
    image[40:56, 4 * number : 4 * number + 16] = (240, 240, 240)
    return image.astype(np.uint8)


def write(path: Path, kind: str) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=24, options={"crf": "10", "g": "48"})
        stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv420p"
        stream.time_base = Fraction(1, 240)
        if kind == "wide":
            stream.codec_context.sample_aspect_ratio = Fraction(2, 1)
        for number in range(24):
            frame = av.VideoFrame.from_ndarray(picture(number), format="rgb24")
            late = 10 if kind == "uneven" and number >= 12 else 0  # one frame is shown twice as long
            frame.pts, frame.time_base = 10 * number + late, Fraction(1, 240)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("proxy")
    (folder / "videos").mkdir()
    for kind in CLIPS:
        path = folder / "videos" / f"{kind}.mp4"
        if kind == "turned":
            frames = np.stack([picture(number) for number in range(24)])
            encode.write_video(path, frames, fps=24.0, crf=10, rotation_degrees=90)
        else:
            write(path, kind)
    make_run(
        folder,
        [
            {
                "clip_id": kind, "source_id": kind, "video_path": f"{kind}.mp4", "caption": kind, "fps": 24.0,
                "codec": "h264", "rotation_degrees": 90 if kind == "turned" else 0, "height": height,
                "width": width, "num_frames": 24, "duration_seconds": 1.0, "fold": "train", "level": 1,
                "is_kept": True, "probe_status": "ok",
            }
            for kind, (height, width) in CLIPS.items()
        ],
    )  # fmt: skip
    build(folder, SPEC)
    return folder


@pytest.mark.parametrize("kind", CLIPS)
def test_a_proxy_shows_its_clip_upright_with_square_pixels_at_a_constant_rate(built: Path, kind: str) -> None:
    opened = index.read_index(built / "shards")
    row = index.find_clip(opened, kind)
    payload = read_clip_bytes(opened, row)
    height, width = CLIPS[kind]
    scale = 48 / min(height, width)
    shape = round(height * scale), round(width * scale)
    count = 25 if kind == "uneven" else 24
    facts = read_clip_facts(opened, row)
    assert (opened.height[row], opened.width[row], opened.num_frames[row]) == (*shape, count)
    assert (facts["height"], facts["width"], facts["num_frames"], facts["fps"]) == (*shape, count, 24.0)
    assert not {"codec", "rotation_degrees", "coded_width", "sample_aspect_ratio"} & facts.keys()
    with media_container.opened(payload) as (_, stream):
        assert (stream.height, stream.width) == shape
        assert float(stream.sample_aspect_ratio or 1) == 1.0
    frame_map = parse(opened.words("frame_map")[row].as_py())
    assert len(set(np.diff(frame_map.pts).tolist())) == 1
    assert float(frame_map.time_base * int(np.diff(frame_map.pts)[0])) == pytest.approx(1 / 24)
    assert np.diff(frame_map.key_frames, append=count).max() <= 6
    shown = decode.read_frames(payload, range(count), height=shape[0], width=shape[1]).astype(int)
    source = built / "videos" / f"{kind}.mp4"
    numbers = [n if kind != "uneven" or n < 12 else n - 1 for n in range(count)]
    wanted = decode.read_frames(source, numbers, height=shape[0], width=shape[1]).astype(int)
    difference = np.abs(shown - wanted).mean(axis=(1, 2, 3))
    assert difference.max() < 6
    other = np.abs(shown[:-4] - wanted[4:]).mean(axis=(1, 2, 3))  # frames further on look different
    assert other.min() > 1.5 * difference.max()


def test_proxies_are_sound_named_and_the_same_bytes_for_any_number_of_workers(built: Path) -> None:
    assert verify(built / "shards", "decode").problems == ()
    renditions = index_file.read_columns(built / "shards", ["rendition"]).column("rendition").to_pylist()
    assert renditions == ["proxy"] * 4
    manifest = read_manifest(built / "shards")
    assert manifest is not None
    assert manifest["spec"]["mode"] == "proxy"
    assert manifest["spec"]["proxy"]["gop_frames"] == 6
    assert "transcode" not in manifest["spec"]
    assert "FFmpeg" in manifest["ffmpeg"] or "libavcodec" in manifest["ffmpeg"]
    build(built, SPEC.model_copy(update={"max_clips": 1}), out="one")
    build(built, SPEC.model_copy(update={"max_clips": 1}), workers=2, out="two")
    assert contents(built / "one") == contents(built / "two")
    assert build(built, SPEC).up_to_date


def test_a_shard_of_proxies_is_planned_by_their_size_not_by_that_of_their_files(tmp_path: Path) -> None:
    facts = {"caption": "a", "fold": "train", "level": 1, "is_kept": True, "probe_status": "ok"}
    shape = {"height": 360, "width": 640, "num_frames": 30}
    table_rows = [
        {"clip_id": f"c{i}", "source_id": "a", "video_path": f"{i}.mp4", **facts, **shape} for i in range(3)
    ]
    make_run(tmp_path, table_rows, lambda i: 900_000)
    sizes = {}
    for spec in (ShardSpec(mode="proxy"), ShardSpec(mode="transcode")):
        (planned,) = make_plan(tmp_path / "run", "split", spec, videos=tmp_path / "videos").shards
        sizes[spec.mode] = planned.num_bytes
    assert sizes["transcode"] > 3 * 900_000
    assert sizes["proxy"] < 3 * 200_000


def test_renditions_are_named_row_by_row(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    (tmp_path / "videos").mkdir()
    shutil.copy(make_video("clip.mp4", num_frames=48, gop=12), tmp_path / "videos" / "a.mp4")
    facts = {
        "source_id": "a", "video_path": "a.mp4", "caption": "a", "fold": "train", "level": 1,
        "is_kept": True, "probe_status": "ok",
        "fps": 24.0, "duration_seconds": 2.0,
    }  # fmt: skip
    make_run(
        tmp_path,
        [
            {"clip_id": "part", "start_seconds": 0.5, "end_seconds": 1.5, **facts},
            {"clip_id": "whole", "start_seconds": None, "end_seconds": None, **facts},
        ],
    )
    for mode, expected in (("trim", {"trim", "copy"}), ("transcode", {"transcode"})):
        build(tmp_path, ShardSpec(mode=mode), out=mode)  # type: ignore[arg-type]
        found = index_file.read_columns(tmp_path / mode, ["clip_id", "rendition"]).to_pydict()
        assert set(found["rendition"]) == expected
        assert mode != "trim" or found["rendition"][found["clip_id"].index("part")] == "trim"


def test_the_defaults_of_an_encoding_are_those_of_its_mode() -> None:
    proxy = ShardSpec(mode="proxy", transcode=TranscodeSpec(crf=30)).transcode
    assert (proxy.crf, proxy.gop_frames, proxy.short_side_px) == (30, 8, 256)
    whole = parse_recipe("mode: proxy\ntranscode: {short_side_px: null}", ShardSpec).transcode
    assert (whole.crf, whole.gop_frames, whole.short_side_px) == (20, 8, None)
    assert ShardSpec(mode="transcode").transcode == TranscodeSpec()
    assert ShardSpec(mode="proxy").lasting()["proxy"]["gop_frames"] == 8
