"""Level cuts: equal shares of clips, frames or tokens, in any row order."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vidcurate import rng
from vidcurate.curation.difficulty.spec import SplitSpec
from vidcurate.errors import InputError
from vidcurate.media import resample
from vidcurate.sampler import buckets

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_USUAL_FRACTION = 0.01  # of the sources, for validation


def latent_tokens(num_frames: Ints, height: Ints, width: Ints) -> Ints:
    """Return the number of STDiT tokens of clips of this size in pixels; 0 for an unknown size.

    The published video encoder maps 17 frames to 5 latent frames (a remainder of r to r / 4, rounded up) and
    8 x 8 pixels to one latent (rounded down); a token is a patch of 2 x 2 latents (rounded up).
    """
    frames = 5 * (num_frames // 17) + (num_frames % 17 + 3) // 4
    rows, columns = (height // 8 + 1) // 2, (width // 8 + 1) // 2
    tokens: Ints = frames * rows * columns
    return tokens


def tokens_of(rows: pl.DataFrame, spec: SplitSpec) -> Ints | None:
    """Return the training tokens of each clip, None when the table has no sizes.

    With `spec.buckets` the tokens of the clip's bucket (0: no bucket), else those of its own size.
    """
    names = ("num_frames", "height", "width")
    if not all(name in rows.columns for name in names):
        return None
    frames, height, width = (rows[name].cast(pl.Int64).fill_null(0).to_numpy() for name in names)
    if spec.buckets is None:
        return latent_tokens(frames, height, width)
    if spec.buckets.fps is not None:
        rates = rows["fps"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        frames = resample.num_ticks(frames, rates, spec.buckets.fps)
    found = buckets.assign(spec.buckets, rows["clip_id"].to_arrow(), frames, height, width, spec.seed)
    sizes = np.array(
        [(one.num_frames, one.height, one.width) for one in found.buckets] + [(0, 0, 0)], dtype=np.int64
    )
    return latent_tokens(*sizes[found.bucket].T)


def weights_of(rows: pl.DataFrame, tokens: Ints | None, spec: SplitSpec) -> Floats:
    """Return each clip's weight in the balance of levels. Raises InputError when all weights are 0."""
    if spec.balance == "frames":
        return rows["num_frames"].cast(pl.Float64).fill_null(1.0).clip(1.0).to_numpy()
    if spec.balance == "tokens" and tokens is not None:
        if not tokens.any():
            reason = "no clip is in a bucket" if spec.buckets else "no clip has a known size"
            raise InputError(f"balance is tokens, but {reason}. Set balance to clips or frames.")
        return tokens.astype(np.float64)
    return np.ones(len(rows))


def _cuts(ends: Floats, levels: int) -> Ints:
    """Return the last position of each level but the last.

    A cut is where the running total `ends` is nearest to an equal share, and at least one position after the
    previous cut, so that no level is empty.
    """
    cuts = np.empty(levels - 1, dtype=np.int64)
    for number in range(1, levels):
        nearest = int(np.argmin(np.abs(ends - ends[-1] * number / levels)))
        first = int(cuts[number - 2]) + 1 if number > 1 else 0
        cuts[number - 1] = min(max(nearest, first), len(ends) - 1 - (levels - number))
    return cuts


def ties_together(values: Floats, weights: Floats, levels: int) -> Ints:
    """Return the level (from 0) of each clip; equal values share one, no level is empty."""
    distinct, sizes = np.unique(values, return_counts=True)
    if np.any(weights != 1.0):
        sizes = np.bincount(np.searchsorted(distinct, values), weights=weights, minlength=len(distinct))
    last = distinct[_cuts(np.cumsum(sizes, dtype=np.float64), levels)]
    return np.searchsorted(last, values, side="left").astype(np.int64)


def ties_split(values: Floats, weights: Floats, hashes: rng.Words, levels: int) -> Ints:
    """Return the level (from 0) of each clip; within equal values the order of their hashes decides."""
    order = np.lexsort((hashes, values))
    result = np.empty(len(values), dtype=np.int64)
    result[order] = np.searchsorted(
        _cuts(np.cumsum(weights[order]), levels), np.arange(len(order)), side="left"
    )
    return result


def validation_limit(draws: Floats, validation_fraction: float | None) -> float:
    """Return the number below which a clip validates, of its `draws` [n]; fraction None: the default.

    The default takes one source where 0.01 takes none of several. One: a set that grows then moves no source
    from training to validation.
    """
    if validation_fraction is not None:
        return validation_fraction
    lowest, highest = draws.min(), draws.max()
    return _USUAL_FRACTION if lowest == highest else max(_USUAL_FRACTION, float(np.nextafter(lowest, 1)))


def fold_draws(rows: pl.DataFrame, seed: int) -> Floats:
    """Return a number in [0, 1) for each clip [n], the same within a source; the number decides the fold."""
    source = rows["source_id"].fill_null(rows["clip_id"]) if "source_id" in rows.columns else rows["clip_id"]
    return rng.uniform(rng.id_hashes(source.to_arrow()), rng.key(seed, "fold"))
