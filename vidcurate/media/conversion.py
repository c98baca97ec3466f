"""Conversion of scaled frames to RGB; a data setting, as it changes pixels.

`ffmpeg`: the bytes that the `ffmpeg` program makes by default. `quick`: scale to 4:2:2, then convert with
vector instructions; docs/order-and-loader.md shows what differs, and by how much. Both give the same bytes
for formats other than 8-bit 4:2:0, and for frames that keep their size. A light module.
"""

from typing import Literal

Conversion = Literal["ffmpeg", "quick"]
