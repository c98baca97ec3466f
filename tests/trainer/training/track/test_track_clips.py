"""The track's clips: the same bytes everywhere, captions that are true, a measure that sees it."""

import dataclasses

import pytest
import torch

from trainer.training.track import batches, clips, measure, run
from trainer.training.track.clips import COLOURS, Object, Scene
from trainer.training.track.spec import ClipsSpec

SPEC = ClipsSpec(count=60, validation=4)
SMALL = ClipsSpec(count=12, validation=4, frames=8, height=24, width=24)


def test_the_bytes_are_those_that_were_made_before() -> None:
    made = clips.make_clips(SMALL, torch.device("cpu"))

    assert made.pixels.shape == (16, 3, 8, 24, 24)
    assert made.sha256 == SHA256
    other = clips.make_clips(SMALL.model_copy(update={"seed": 1}), torch.device("cpu"))
    assert other.sha256 != SHA256


SHA256 = "5369e90e14cbfa523bcd7305ac2329fdf3f9565eb1f858b7e4235c417b46ff08"


def test_a_clip_does_not_depend_on_those_beside_it() -> None:
    scenes = [clips.scene(SPEC, number) for number in range(5)]

    together = clips.render(scenes, SPEC, torch.device("cpu"))

    assert torch.equal(together[3], clips.render(scenes[3:4], SPEC, torch.device("cpu"))[0])


def test_one_pixel_or_one_word_changes_the_hash() -> None:
    made = clips.make_clips(SMALL, torch.device("cpu"))
    pixels = made.pixels.clone()
    pixels[5, 0, 0, 0, 0] ^= 1
    assert clips.fingerprint(pixels, made.scenes) != made.sha256
    turned = (made.scenes[1], made.scenes[0], *made.scenes[2:])
    assert clips.fingerprint(made.pixels, turned) != made.sha256


def test_all_colours_shapes_directions_sizes_and_counts_occur() -> None:
    scenes = [clips.scene(SPEC, number) for number in range(400)]
    objects = [one for each in scenes for one in each.objects]

    for attribute, count in (("colour", 6), ("shape", 3), ("direction", 5), ("size", 2)):
        assert len({getattr(one, attribute) for one in objects}) == count
    assert {len(each.objects) for each in scenes} == {1, 2, 3}
    for each in scenes:
        assert len({one.colour for one in each.objects}) == len(each.objects)
        assert each.caption.split(",")[0] == clips.COUNTS[len(each.objects) - 1]


def test_a_clip_shows_what_its_caption_says() -> None:
    scenes = [clips.scene(SPEC, number) for number in range(60)]
    alone = [each for each in scenes if len(each.objects) == 1]
    pixels = clips.render(alone, SPEC, torch.device("cpu"))

    assert measure.count_followed(pixels, alone, SPEC) == len(alone)


@pytest.mark.parametrize("change", ["colour", "direction", "count"])
def test_a_clip_of_another_caption_does_not_follow(change: str) -> None:
    one = Object(
        colour="red", shape="circle", size="large", direction="left", radius=250, centre=(700, 700), path=500
    )
    given = Scene(objects=(one,), texture=(100, 9, 11, 3, -4))
    colour = next(colour for colour in COLOURS if colour != "red")
    others = {
        "colour": (dataclasses.replace(one, colour=colour),),
        "direction": (dataclasses.replace(one, direction="up"),),
        "count": (one, dataclasses.replace(one, colour=colour, centre=(900, 1200))),
    }
    shown = dataclasses.replace(given, objects=others[change])
    pixels = clips.render([given, shown], SPEC, torch.device("cpu"))

    assert measure.follows(pixels[0], given, SPEC)
    assert not measure.follows(pixels[1], given, SPEC)


def test_a_pass_shows_every_clip_once_in_an_order_of_the_seed() -> None:
    stream = batches.numbers_of_steps(3, 10, 4)
    shown = [number for _ in range(5) for number in next(stream)]

    assert sorted(shown[:10]) == sorted(shown[10:]) == list(range(10))
    assert shown[:10] != shown[10:]
    other = batches.numbers_of_steps(3, 10, 5)  # the batch does not change the order
    assert [number for _ in range(4) for number in next(other)] == shown
    assert run.order_hash(3, 10, 20) != run.order_hash(4, 10, 20)


@pytest.mark.parametrize(
    ("seed", "sha256"),
    [
        (1, "f0b01fbe8904e5aca66538570e1a7ed8b2f269481a39405f7640ea2039af092f"),
        (2, "37638028d08a241a046b51885a897e48c50e0bae6b7ccd1b06303f2d040575fc"),
        (3, "fa1014d1c3f131204cb0df5ae4979f98d11e3e776fa12f0c648f5c536f350cc6"),
    ],
)
def test_the_orders_of_the_three_seeds_are_those_of_the_table(seed: int, sha256: str) -> None:
    assert run.order_hash(seed, 20_480, 14_400) == sha256
