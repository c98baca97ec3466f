"""The check of samples against prompts: colour and motion read from the frames."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from vidcurate.curation.demo_data.choose import MAIN_COLOURS, MAIN_MOTIONS
from vidcurate.curation.demo_data.scene import MOTIONS, Scene, Thing, render_clip

ROOT = Path(__file__).resolve().parents[2]
follows = runpy.run_path(str(ROOT / "benchmarks" / "prompt_check.py"))["follows"]


def _one(shape: str = "circle", colour: str = "red", motion: str = "right") -> Scene:
    return Scene(things=(Thing(shape=shape, colour=colour, motion=motion),))


@pytest.mark.parametrize("motion", sorted(MOTIONS))
@pytest.mark.parametrize(("height", "width"), [(64, 64), (96, 64), (64, 128)])
def test_the_check_reads_colour_and_motion_from_the_frames(motion: str, height: int, width: int) -> None:
    for colour in MAIN_COLOURS:
        scene = _one("triangle", colour, motion)
        found = follows(render_clip(scene, num_frames=12, height=height, width=width), scene)
        assert found["is_colour_right"], found
        assert found["is_motion_right"], found


def test_the_check_sees_that_another_clip_does_not_follow() -> None:
    shown, wanted = _one("circle", "red", "right"), _one("circle", "blue", "left")
    found = follows(render_clip(shown, num_frames=12, height=32, width=32), wanted)
    assert (found["colour"], found["motion"]) == ("red", "right")
    assert not found["is_colour_right"]
    assert not found["is_motion_right"]


def test_the_check_looks_at_what_moves_and_not_at_what_rests() -> None:
    scene = Scene(
        things=(
            Thing(shape="circle", colour="green", motion="down", x=0.27, size=0.25),
            Thing(shape="square", colour="red", x=0.73, size=0.45),
        )
    )
    found = follows(render_clip(scene, num_frames=16, height=48, width=48), scene)
    assert (found["colour"], found["motion"]) == ("green", "down")


def test_an_empty_picture_has_no_colour_and_noise_is_no_answer_by_itself() -> None:
    scene = _one()
    found = follows(np.zeros((8, 32, 32, 3), dtype=np.uint8), scene)
    assert found["colour"] is None
    assert found["motion"] == "still"
    noise = np.random.default_rng(0).integers(0, 256, (64, 8, 24, 24, 3), dtype=np.uint8)
    right = [follows(frames, scene)["is_motion_right"] for frames in noise]
    assert np.mean(right) < 0.5


def test_the_check_takes_a_blurred_and_noisy_sample() -> None:
    rng = np.random.default_rng(0)
    for colour in MAIN_COLOURS:
        for motion in MAIN_MOTIONS:
            scene = _one("circle", colour, motion)
            frames = render_clip(scene, num_frames=8, height=32, width=32).astype(np.float64)
            frames = (frames + np.roll(frames, 1, axis=1) + np.roll(frames, 1, axis=2)) / 3
            noisy = np.clip(frames + rng.normal(0, 12, frames.shape), 0, 255).astype(np.uint8)
            found = follows(noisy, scene)
            assert found["is_colour_right"], (colour, motion, found)
            assert found["is_motion_right"], (colour, motion, found)
