"""Decode tasks: make the task of a planned clip for a decode worker."""

import base64

from vidcurate.loader.decode.decode_clip import DecodeTask
from vidcurate.sampler.bucket_shapes import Bucket
from vidcurate.shards.index import Index


def num_starts(index: Index, row: int, bucket: Bucket) -> int:
    """Return the number of possible start frames of a sample of this bucket in a clip."""
    return int(index.num_frames[row]) - bucket.num_clip_frames(float(index.fps[row])) + 1


def decode_task(
    index: Index,
    row: int,
    bucket: Bucket,
    *,
    first_frame: int,
    caption: str = "caption",
    place: int | None = None,
    mirror: tuple[str, ...] = (),
) -> DecodeTask:
    """Return the decode task of one clip in the bucket's shape, from `first_frame` on."""
    return DecodeTask(
        clip_id=index.word("clip_id", row),
        shard=index.shard_place(row),
        json_offset=index.at("json_offset", row),
        json_size=index.at("json_size", row),
        json_crc32c=index.at("json_crc32c", row),
        video_offset=int(index.video_offset[row]),
        video_size=int(index.video_size[row]),
        video_crc32c=index.at("video_crc32c", row),
        first_frame=first_frame,
        num_frames=bucket.num_frames,
        frame_stride=bucket.frame_stride,
        height=bucket.height,
        width=bucket.width,
        caption=caption,
        frame_map=base64.b64encode(index.at("frame_map", row) or b"").decode(),
        clip_fps=float(index.fps[row]) if bucket.fps is not None else None,
        fps=bucket.fps if bucket.num_frames > 1 else None,
        place=place,
        mirror=mirror,
    )
