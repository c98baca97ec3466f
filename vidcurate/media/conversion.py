"""How a picture that was scaled becomes RGB. It changes pixels, so it belongs to what is read, not to how.

`ffmpeg`: the bytes that the `ffmpeg` program makes of its own accord. `quick`: scaled to 4:2:2 and then
converted with vector instructions; docs/order-and-loader.md says what differs, and by how much. Both make the
same of what is not 4:2:0 in 8 bits, and of pictures that keep their size.
"""

from typing import Literal

Conversion = Literal["ffmpeg", "quick"]
