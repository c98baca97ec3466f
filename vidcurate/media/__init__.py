"""Media: all code that knows FFmpeg or a video container.

`decode` reads frames, `headers` and `packets` read without decoding, `transcode` cuts and re-encodes,
`encode` writes. `frame_map`, `resample`, `mp4_boxes`, `mp4_samples` and `matroska` load no PyAV.
"""
