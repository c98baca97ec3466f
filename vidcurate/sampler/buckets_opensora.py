"""Open-Sora v1.2's buckets: random draws by row number, strict length test.

`published: true` in a bucket table asks for this. One new row moves the draws of all rows after it;
`buckets.assign` draws by clip id instead.
"""

from collections.abc import Sequence

import numpy as np

from vidcurate.sampler.bucket_shapes import (
    MIN_AREA_SHARE,
    REASONS,
    Assignment,
    Bucket,
    Integers,
    Resolution,
    fits_length,
    nearest_aspect,
)


def assign_opensora(
    resolutions: Sequence[Resolution],
    buckets: tuple[Bucket, ...],
    num_frames: Integers,
    heights: Integers,
    widths: Integers,
    seed: int,
) -> Assignment:
    # Every aspect ratio of every length counts, also those without a micro-batch size.
    stride = sum(len(resolution.sizes) * len(resolution.lengths) for resolution in resolutions)
    found = [
        _published_row(resolutions, seed + row * stride, int(frames), int(height), int(width))
        for row, (frames, height, width) in enumerate(zip(num_frames, heights, widths, strict=True))
    ]
    return Assignment(
        bucket=np.array([number for number, _ in found], dtype=np.int32),
        buckets=buckets,
        reason=np.array([REASONS.index(reason) for _, reason in found], dtype=np.int8),
    )


def _published_row(
    resolutions: Sequence[Resolution], seed: int, num_frames: int, height: int, width: int
) -> tuple[int, str]:
    """Return (bucket or −1, reason) of one row, drawing as Open-Sora v1.2 does: one generator per length."""
    reason = "too_small"
    for resolution in resolutions:
        if height * width < MIN_AREA_SHARE * resolution.area or height * width == 0:
            continue
        reason = max(reason, "too_short", key=REASONS.index)
        for length in resolution.lengths:
            if not fits_length(length, np.asarray(num_frames)):
                continue
            reason = "not_drawn"
            generator = np.random.default_rng(seed + length.number)
            if length.length_chance is not None and generator.random() > length.length_chance:
                continue
            chance = length.resolution_chance
            if length.first_bucket >= 0 and (chance >= 1 or generator.random() < chance):
                nearest = nearest_aspect(resolution.sizes, np.array([height / width]))
                return length.first_bucket + int(nearest[0]), ""
            break
    return -1, reason
