"""Generated clips: coloured shapes moving before a texture, in integer arithmetic.

A clip is a function of (seed, number). Its facts are bytes of a hash, its pixels integers made from them by
additions, products and comparisons, so that a CPU and any GPU make the same bytes; `fingerprint` proves it.
One to three objects, each with a colour of its own, a shape, a size, a direction and a speed; the caption
names the count, and of each object size, colour, shape and direction.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.training.track.spec import ClipsSpec
from vidcurate.errors import InputError

COLOURS = {
    "red": (225, 40, 40),
    "green": (40, 185, 60),
    "blue": (50, 70, 235),
    "yellow": (235, 215, 40),
    "purple": (165, 45, 205),
    "cyan": (40, 205, 215),
}
SHAPES = ("circle", "square", "triangle")
SIZES = {"small": (9, 11), "large": (15, 18)}  # radius in 1/96 of the height: least, most
DIRECTIONS = {"right": (1, 0), "left": (-1, 0), "down": (0, 1), "up": (0, -1), "still": (0, 0)}
PATHS = (24, 40)  # way of an object through the clip, in 1/96 of the height: least, most
COUNTS = ("one", "two", "three")
MOST_OBJECTS = len(COUNTS)
UNIT = 16  # parts of a pixel in which positions are counted
CHUNK = 256  # clips that are made together


@dataclass(frozen=True, slots=True, kw_only=True)
class Object:
    """Object of a clip. `centre` (in the middle frame), `radius` and `path` are in 1/16 px."""

    colour: str
    shape: str
    size: str
    direction: str
    radius: int
    centre: tuple[int, int]
    path: int

    @property
    def words(self) -> str:
        return f"{self.size} {self.colour} {self.shape} {self.direction}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Facts of a clip. `texture`: brightness, two periods (px), the panning of each (1/16 px a frame)."""

    objects: tuple[Object, ...]
    texture: tuple[int, int, int, int, int]

    @property
    def caption(self) -> str:
        return ", ".join([COUNTS[len(self.objects) - 1], *(one.words for one in self.objects)])


def clip_id(number: int) -> str:
    """Return the id that order and draws know the clip by."""
    return f"track-{number:06d}"


def scene(spec: ClipsSpec, number: int) -> Scene:
    """Return the facts of clip `number`; those from `spec.count` on are for validation."""
    found = iter(hashlib.blake2b(f"{spec.seed} {number}".encode(), digest_size=64).digest())

    def pick(count: int) -> int:
        return (next(found) << 8 | next(found)) % count

    colours = list(COLOURS)
    objects = []
    for _ in range(1 + pick(MOST_OBJECTS)):
        size, direction = list(SIZES)[pick(2)], list(DIRECTIONS)[pick(5)]
        least, most = (value * spec.height * UNIT // 96 for value in SIZES[size])
        shortest, longest = (value * spec.height * UNIT // 96 for value in PATHS)
        objects.append(
            Object(
                colour=colours.pop(pick(len(colours))),
                shape=SHAPES[pick(len(SHAPES))],
                size=size,
                direction=direction,
                radius=least + pick(most - least + 1),
                centre=(
                    (spec.width // 4 + pick(spec.width // 2)) * UNIT,
                    (spec.height // 4 + pick(spec.height // 2)) * UNIT,
                ),
                path=shortest + pick(longest - shortest + 1),
            )
        )
    texture = (70 + pick(90), 7 + pick(14), 9 + pick(17), pick(3 * UNIT) - UNIT, pick(3 * UNIT) - UNIT)
    return Scene(objects=tuple(objects), texture=texture)


def _table(scenes: Sequence[Scene], spec: ClipsSpec) -> NDArray[np.int32]:
    """Return [clips, 5 + objects x 9] int32: texture, then of each object what `render` reads."""
    table = np.zeros((len(scenes), 5 + MOST_OBJECTS * 9), dtype=np.int32)
    for row, one in zip(table, scenes, strict=True):
        row[:5] = one.texture
        for place, each in enumerate(one.objects):
            right, down = DIRECTIONS[each.direction]
            row[5 + 9 * place :][:9] = (
                each.radius, SHAPES.index(each.shape), *COLOURS[each.colour],
                *each.centre, right * each.path, down * each.path,
            )  # fmt: skip
    return table


def render(scenes: Sequence[Scene], spec: ClipsSpec, device: torch.device) -> Tensor:
    """Return the clips' pixels, uint8 [clips, 3, frames, height, width]."""
    table = torch.from_numpy(_table(scenes, spec)).to(device)
    frames, height, width = spec.frames, spec.height, spec.width

    def axis(count: int, place: int) -> Tensor:
        return torch.arange(count, dtype=torch.int32, device=device).view(
            [-1 if n == place else 1 for n in range(4)]
        )

    def column(number: int) -> Tensor:
        return table[:, number].view(-1, 1, 1, 1)

    t, y, x = axis(frames, 1), axis(height, 2) * UNIT + UNIT // 2, axis(width, 3) * UNIT + UNIT // 2

    def wave(place: Tensor, period: Tensor) -> Tensor:
        """Return a triangle wave, 0 to 48, of places in 1/16 px."""
        turn = place.remainder(period * UNIT)
        return (torch.minimum(turn, period * UNIT - turn) * 96).floor_divide(period * UNIT)

    grey = column(0) + wave(x + t * column(3), column(1)) // 2 + wave(y + x + t * column(4), column(2)) // 2
    picture = grey.clamp(0, 255)[:, None].expand(-1, 3, -1, -1, -1).contiguous()
    for place in range(MOST_OBJECTS):
        radius, shape, red, green, blue, cx, cy, way_x, way_y = (
            column(5 + 9 * place + number) for number in range(9)
        )
        along = 2 * t - (frames - 1)  # from -(frames - 1) to frames - 1
        dx = x - cx - (way_x * along).floor_divide(2 * frames)
        dy = y - cy - (way_y * along).floor_divide(2 * frames)
        circle = dx * dx + dy * dy <= radius * radius
        square = torch.maximum(dx.abs(), dy.abs()) * 8 <= radius * 7
        triangle = (2 * dx.abs() <= dy + radius) & (dy <= radius)
        inside = torch.where(shape == 0, circle, torch.where(shape == 1, square, triangle))
        inside &= radius > 0
        colour = torch.stack([red, green, blue], dim=1)
        picture = torch.where(inside[:, None], colour, picture)
    return picture.to(torch.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clips:
    """All clips of a track in memory: pixels uint8 [clips, 3, T, H, W], captions, `sha256` of both.

    The first `spec.count` are trained, the others validated.
    """

    spec: ClipsSpec
    pixels: Tensor
    scenes: tuple[Scene, ...]
    sha256: str

    @property
    def captions(self) -> list[str]:
        return [one.caption for one in self.scenes]


def _memory_bytes(device: torch.device) -> int:
    """Return the bytes of memory that a device has, free or not."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def make_clips(spec: ClipsSpec, device: torch.device) -> Clips:
    """Return all clips of `spec` on `device`. Raises InputError where their pixels exceed its memory."""
    total = spec.count + spec.validation
    needed, has = total * 3 * spec.frames * spec.height * spec.width, _memory_bytes(device)
    if needed > has:
        raise InputError(
            f"clips: the pixels of {total:,} clips take {needed / 1e9:,.1f} GB, and {device} has "
            f"{has / 1e9:,.1f} GB. Set a smaller clips.count, clips.frames, clips.height or clips.width."
        )
    scenes = tuple(scene(spec, number) for number in range(total))
    pixels = torch.empty(total, 3, spec.frames, spec.height, spec.width, dtype=torch.uint8, device=device)
    parts = range(0, total, CHUNK)
    for first in parts:
        pixels[first : first + CHUNK] = render(scenes[first : first + CHUNK], spec, device)
    return Clips(spec=spec, pixels=pixels, scenes=scenes, sha256=fingerprint(pixels, scenes))


def fingerprint(pixels: Tensor, scenes: Sequence[Scene]) -> str:
    """Return the SHA-256 of the SHA-256 of each chunk of clips and of the captions."""

    def digest(first: int) -> bytes:
        return hashlib.sha256(pixels[first : first + CHUNK].cpu().numpy().data).digest()

    with ThreadPoolExecutor(8) as pool:
        digests = list(pool.map(digest, range(0, len(pixels), CHUNK)))
    captions = "\n".join(one.caption for one in scenes)
    return hashlib.sha256(b"".join(digests) + captions.encode()).hexdigest()
