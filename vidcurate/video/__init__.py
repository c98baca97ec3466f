"""Reading and writing video: with `transcode`, `integrity` and `faults`, the only files that know FFmpeg."""

from vidcurate.video.frames import count_decodable_frames, read_frames
from vidcurate.video.headers import Header, header_of, read_header_and_index
from vidcurate.video.opening import opened, packets_of, reason_of
from vidcurate.video.packets import SEEKABLE, PacketIndex, frame_map_of, has_index, index_of
from vidcurate.video.picture import cover
from vidcurate.video.writing import encode_image, write_video

__all__ = [
    "SEEKABLE",
    "Header",
    "PacketIndex",
    "count_decodable_frames",
    "cover",
    "encode_image",
    "frame_map_of",
    "has_index",
    "header_of",
    "index_of",
    "opened",
    "packets_of",
    "read_frames",
    "read_header_and_index",
    "reason_of",
    "write_video",
]
