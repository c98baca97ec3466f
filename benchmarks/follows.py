"""Prompt following of the demo's model: colour and motion of 32 samples, beside chance.

    python benchmarks/follows.py demo/train [--picture demo/samples.png]

Prompts are one-object captions of the demo data, balanced over colour and motion, with noise that training
never saw. What a sample shows is measured from its pixels (prompt_check.follows). Chance is one in four for
both; p is the probability of as many hits by chance. The picture has a row a prompt and the frames
side by side.
"""

import argparse
import sys
from math import comb
from pathlib import Path

import numpy as np
from rows import keep, row

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from prompt_check import follows

from trainer.generation.sample_clips import load_model, pipeline_of, sample_clips
from vidcurate.curation.demo_data.choose import demo_prompts
from vidcurate.media import encode

CHANCE = 0.25
SHOWN = (0, 5, 10, 15, 3, 6, 9, 12)  # every motion and every colour twice


def p_value(hits: int, count: int) -> float:
    """Return the probability of at least `hits` of `count` by chance."""
    return sum(comb(count, n) * CHANCE**n * (1 - CHANCE) ** (count - n) for n in range(hits, count + 1))


def enlarged(clips: np.ndarray, factor: int = 4, gap: int = 4) -> np.ndarray:
    """Return clips (n, T, H, W, 3) as one picture: a row a clip, frames side by side, on white."""
    count, frames, height, width, _ = clips.shape
    big = clips.repeat(factor, axis=2).repeat(factor, axis=3)
    height, width = height * factor, width * factor
    picture = np.full((count * (height + gap) - gap, frames * (width + gap) - gap, 3), 255, np.uint8)
    for n in range(count):
        for t in range(frames):
            top, left = n * (height + gap), t * (width + gap)
            picture[top : top + height, left : left + width] = big[n, t]
    return picture


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("run", type=Path)
    arguments.add_argument("--picture", type=Path)
    arguments.add_argument("--keep", action="store_true", help="keep the figures in benchmarks/results")
    given = arguments.parse_args()
    model, recipe, state = load_model(given.run)
    prompts = demo_prompts(32)
    assert recipe.sample is not None, "the recipe says no size of samples"
    pipeline = pipeline_of(recipe.encoding, recipe.flow_of(0), recipe.dtype, model)
    clips = sample_clips(pipeline, recipe.sample, [text for text, _ in prompts], seed=7)
    seen = [follows(clip, scene) for clip, (_, scene) in zip(clips, prompts, strict=True)]
    rows = []
    for name in ("colour", "motion"):
        hits = sum(bool(found[f"is_{name}_right"]) for found in seen)
        p = p_value(hits, len(seen))
        print(f"{name}: right in {hits} of {len(seen)} samples (chance {CHANCE:.0%}, p = {p:.2g})")
        rows.append(
            row(
                f"demo samples with the right {name}, step {state['step']}",
                hits / len(seen),
                "share",
                peer="chance",
                peer_value=CHANCE,
                goal="p < 0.01",
            )
        )
    if given.picture:
        given.picture.write_bytes(encode.encode_image(enlarged(clips[list(SHOWN)]), "png"))
        for number in SHOWN:
            print(f"  {prompts[number][0]}")
        print(f"picture of these, a row each: {given.picture}")
    if given.keep:
        keep("follows", rows)


if __name__ == "__main__":
    main()
