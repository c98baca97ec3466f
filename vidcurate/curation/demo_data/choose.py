"""Demo clips: two families to learn from, a varied rest, and planted defects.

Half of the clips are easy (one shape crosses a plain frame), three tenths are pairs (plus a resting shape:
more nouns), both balanced over colour x motion x shape, so that a small model can learn them. The rest shows
more things in other sizes, lengths and codecs, with defects that a curation should find.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from vidcurate.curation.demo_data.scene import BACKGROUNDS, COLOURS, MOTIONS, SHAPES, Scene, Thing, caption

# File damage, in the order in which small data sets get it: (kind, suffix and codec of the good file).
DAMAGES: dict[str, tuple[str, str]] = {
    "truncated": (".mp4", "libx264"),
    "zero_bytes": (".mp4", "libx264"),
    "text_named_mp4": (".mp4", "libx264"),
    "truncated_faststart": (".mp4", "libx264"),
    "truncated_webm": (".webm", "libvpx-vp9"),
    "truncated_mkv": (".mkv", "libx264"),
    "flipped_bytes": (".mp4", "libx264"),
    "zeroed_block": (".mp4", "libx264"),
    "garbage_tail": (".mp4", "libx264"),
}
# Whole clips that a filter should reject: (height, width, num_frames).
MISFITS: dict[str, tuple[int, int, int]] = {
    "too_short": (64, 64, 3),
    "too_small": (24, 24, 16),
    "too_wide": (40, 200, 16),
}
ENCODINGS = (
    (".mp4", "libx264"),
    (".webm", "libvpx-vp9"),
    (".mp4", "libx264"),
    (".mkv", "libx264"),
    (".mp4", "libx264"),
    (".mkv", "libvpx-vp9"),
    (".mov", "libx264"),
    (".webm", "libvpx"),
)
# At 64 px MPEG-4 without a bit rate is coarse, and x265 is not deterministic (a
# picture inside one coding tree unit): both only encode the larger clips.
VARIED_ENCODINGS = (ENCODINGS[0], (".mp4", "libx265"), *ENCODINGS[1:3], (".avi", "mpeg4"), *ENCODINGS[3:])
MAIN_COLOURS = ("red", "green", "blue", "yellow")
MAIN_MOTIONS = ("right", "left", "up", "down")
MAIN_SHAPES = SHAPES[:3]
_EASY_SHARE, _PAIR_SHARE = 0.5, 0.3
_SIDE = 64
_SIZES = ((96, 96), (72, 128), (128, 72), (90, 160), (160, 90), (120, 160), (160, 120), (128, 128))
# Names that break a tool which splits keys at dots or reads ids as numbers.
_AWKWARD_NAMES = ("12.1", "12.10", "été ☂ 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Clip file of the data set. `planted` names its deliberate defect."""

    name: str
    family: str
    scene: Scene
    height: int
    width: int
    num_frames: int
    fps: float
    codec: str
    planted: str | None = None

    @property
    def suffix(self) -> str:
        return self.name[self.name.rindex(".") :]


def _deck(rng: np.random.Generator, count: int) -> list[tuple[str, str, str]]:
    """Return `count` combinations (colour, motion, shape), balanced to within one."""
    combinations = list(itertools.product(MAIN_COLOURS, MAIN_MOTIONS, MAIN_SHAPES))
    deck: list[tuple[str, str, str]] = []
    while len(deck) < count:
        deck += [combinations[int(number)] for number in rng.permutation(len(combinations))]
    return deck[:count]


def _pick(rng: np.random.Generator, choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _near(rng: np.random.Generator, middle: float, spread: float) -> float:
    return round(float(middle + spread * (2 * rng.random() - 1)), 3)


def _easy(rng: np.random.Generator, colour: str, motion: str, shape: str) -> Scene:
    x, y = _near(rng, 0.5, 0.08), _near(rng, 0.5, 0.08)
    return Scene(things=(Thing(shape=shape, colour=colour, motion=motion, x=x, y=y),))


def _sides(rng: np.random.Generator, motion: str, along: float, others: int) -> list[tuple[float, float]]:
    """Return positions for a mover and `others` resting things in separate halves: they never overlap."""
    first = _pick(rng, (0.27, 0.73))
    rest = [(number + 1) / (others + 1) for number in range(others)]
    if others == 1:
        rest = [_near(rng, 0.5, 0.2)]
    places = [(along, first), *((x, 1 - first) for x in rest)]
    return [(y, x) for x, y in places] if motion in ("up", "down") else places


def _pair(rng: np.random.Generator, colour: str, motion: str, shape: str) -> Scene:
    (x, y), (other_x, other_y) = _sides(rng, motion, _near(rng, 0.5, 0.04), 1)
    other = Thing(
        shape=_pick(rng, MAIN_SHAPES),
        colour=_pick(rng, [name for name in MAIN_COLOURS if name != colour]),
        x=other_x,
        y=other_y,
        size=0.28,
    )
    mover = Thing(shape=shape, colour=colour, motion=motion, x=x, y=y, size=0.32)
    return Scene(things=(mover, other), names_background=True)


def _varied(rng: np.random.Generator) -> Scene:
    colours = [list(COLOURS)[int(number)] for number in rng.permutation(len(COLOURS))]
    motion = _pick(rng, tuple(MOTIONS))
    num_others = int(rng.integers(2, 4))
    count = int(rng.integers(1, 4))
    (x, y), *rest = _sides(rng, motion, 0.5, num_others)
    mover = Thing(
        shape=_pick(rng, SHAPES),
        colour=colours[0],
        motion=motion,
        count=count,
        x=x,
        y=y,
        size={1: 0.26, 2: 0.17, 3: 0.12}[count],
    )
    others = [
        Thing(shape=_pick(rng, SHAPES), colour=colour, x=x, y=y, size=0.18)
        for colour, (x, y) in zip(colours[1:], rest, strict=False)
    ]
    return Scene(things=(mover, *others), background=_pick(rng, tuple(BACKGROUNDS)), names_background=True)


def _planted(clips: int) -> list[str]:
    """Return the planted defects; a small data set gets a few of each kind."""
    damages = list(DAMAGES)[: max(1, clips // 10)]
    misfits = (list(MISFITS) * 2)[: clips // 15]
    return [*damages, *misfits, "empty_caption", "extra_file"]


def plan_clips(clips: int, seed: int) -> list[Clip]:
    """Return the plan of `clips` files, the same for the same seed. At least 10 clips.

    Raises ValueError for fewer.
    """
    if clips < 10:
        raise ValueError(f"a demo data set has at least 10 clips, not {clips}")
    rng = np.random.default_rng(seed)
    planted = _planted(clips)
    num_easy, num_pair = round(_EASY_SHARE * clips), round(_PAIR_SHARE * clips)
    num_varied = max(clips - num_easy - num_pair - len(planted), 0)
    num_pair = clips - num_easy - num_varied - len(planted)
    drawn: list[tuple[str, Scene, str | None]] = [
        *(("easy", _easy(rng, *card), None) for card in _deck(rng, num_easy)),
        *(("pair", _pair(rng, *card), None) for card in _deck(rng, num_pair)),
        *(("varied", _varied(rng), None) for _ in range(num_varied)),
        *(("planted", _varied(rng), what) for what in planted),
    ]
    seen: dict[str, int] = {}
    plan = []
    for place, number in enumerate(rng.permutation(len(drawn))):
        family, scene, what = drawn[int(number)]
        turn = seen[family] = seen.get(family, -1) + 1
        plan.append(_clip(rng, place, turn, family, scene, what))
    return plan


def _clip(
    rng: np.random.Generator, place: int, turn: int, family: str, scene: Scene, planted: str | None
) -> Clip:
    encodings = VARIED_ENCODINGS if family == "varied" else ENCODINGS
    suffix, codec = encodings[turn % len(encodings)]
    height, width = (_SIDE, _SIDE) if family in ("easy", "pair") else _pick(rng, _SIZES)
    num_frames = int(_pick(rng, (16, 20, 24)))
    fps = float(_pick(rng, (8, 10, 12, 16)))
    if family == "varied":
        num_frames, fps = int(_pick(rng, (16, 30, 48))), float(_pick(rng, (12, 24, 25, 30)))
    if planted in DAMAGES:
        suffix, codec = DAMAGES[planted]
        height, width, num_frames = 96, 96, 24
    elif planted in MISFITS:
        suffix, codec = ".mp4", "libx264"
        height, width, num_frames = MISFITS[planted]
    # Named as in OpenVid: source, scene, first and last frame. Each source has two clips.
    first = 0 if place % 2 == 0 else 24
    stem = f"shapes-{place // 2:04d}_{place % 2}_{first}to{first + num_frames}"
    if family == "varied" and turn < len(_AWKWARD_NAMES):
        stem = _AWKWARD_NAMES[turn]
    return Clip(
        name=stem + suffix,
        family=family,
        scene=scene,
        height=height,
        width=width,
        num_frames=num_frames,
        fps=fps,
        codec=codec,
        planted=planted,
    )


def demo_prompts(count: int = 32, *, seed: int = 0) -> list[tuple[str, Scene]]:
    """Return (caption, truth) of easy clips to sample from a trained model, balanced over colour x motion."""
    rng = np.random.default_rng([seed, 1])
    cards = [
        (colour, motion, MAIN_SHAPES[number % len(MAIN_SHAPES)])
        for number, (motion, colour) in zip(
            range(count), itertools.cycle(itertools.product(MAIN_MOTIONS, MAIN_COLOURS)), strict=False
        )
    ]
    scenes = [_easy(rng, *card) for card in cards]
    return [(caption(scene), scene) for scene in scenes]
