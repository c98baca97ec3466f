"""Recipe section `sample`: the clips that a run generates while it trains."""

from typing import Annotated

from pydantic import Field

from trainer.run_folder.sample_ranges import RANGES
from vidcurate.recipe.recipe import Recipe

Count = Annotated[int, Field(ge=1)]


class SampleSpec(Recipe):
    """Clips made during the run, from the moving average, every `every` steps and at the end.

    The noise of a clip belongs to (seed, prompt's number), so the same clip is the same noise at every step.
    """

    prompts: tuple[str, ...]
    """what to sample"""
    seeds: tuple[int, ...] = (0,)
    """one clip for each prompt and seed"""
    every: Count = 100
    """steps between rounds of samples"""
    steps: Annotated[Count, Field(le=RANGES["steps"][2])] = 30
    """Euler steps of a sample"""
    guidance: float = 7.0
    """scale of classifier-free guidance; 1 is none"""
    num_frames: Annotated[Count, Field(le=RANGES["num_frames"][2])] = 51
    """frames"""
    height: Annotated[Count, Field(le=RANGES["height"][2])] = 144
    """px"""
    width: Annotated[Count, Field(le=RANGES["width"][2])] = 256
    """px"""
    fps: Annotated[float, Field(gt=0, le=240)] = 24.0
    """frames/s: passed to the model as conditioning and used for the mp4"""
