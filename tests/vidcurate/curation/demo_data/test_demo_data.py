"""Demo data: captions that are true of the pixels, faults that are where the truth says, the same bytes."""

import csv
import hashlib
import json
import runpy
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from vidcurate.curation.demo_data.choose import DAMAGES, MAIN_COLOURS, MAIN_MOTIONS, demo_prompts, plan_clips
from vidcurate.curation.demo_data.scene import (
    BACKGROUNDS,
    COLOURS,
    SHAPES,
    Scene,
    Thing,
    caption,
    render_clip,
    scene_from,
)
from vidcurate.curation.demo_data.write import DemoSummary, write_demo_data
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.curation.probe.stage import probe_file
from vidcurate.errors import InputError, MediaError, StageError
from vidcurate.media import decode
from vidcurate.storage import lock

Made = tuple[Path, DemoSummary]
ROOT = Path(__file__).resolve().parents[4]
follows = runpy.run_path(str(ROOT / "benchmarks" / "prompt_check.py"))["follows"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Made:
    out = tmp_path_factory.mktemp("demo") / "data"
    return out, write_demo_data(out, clips=120, seed=3)


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _one(shape: str = "circle", colour: str = "red", motion: str = "right", **more: object) -> Scene:
    return Scene(things=(Thing(shape=shape, colour=colour, motion=motion, **more),))  # type: ignore[arg-type]


# ── words ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        (_one(), "A red circle moves to the right."),
        (_one("square", "orange", "up"), "An orange square moves up."),
        (_one("cross", "cyan", "still", count=2), "Two cyan crosses stay still."),
        (
            Scene(
                things=(
                    Thing(shape="ring", colour="red", motion="left", y=0.3, count=3),
                    Thing(shape="square", colour="blue", y=0.7),
                    Thing(shape="diamond", colour="white", y=0.7),
                ),
                background="dark blue",
                names_background=True,
            ),
            "Three red rings move to the left above a blue square and a white diamond"
            " on a dark blue background of one colour.",
        ),
        (
            Scene(
                things=(
                    Thing(shape="circle", colour="red", motion="left", y=0.7),
                    Thing(shape="square", colour="blue", y=0.3),
                )
            ),
            "A red circle moves to the left below a blue square.",
        ),
        (
            # Going up it may begin below and end above the other: only "beside" is true all along.
            Scene(
                things=(
                    Thing(shape="circle", colour="red", motion="up", x=0.3, y=0.4),
                    Thing(shape="square", colour="blue", x=0.7, y=0.6),
                )
            ),
            "A red circle moves up beside a blue square.",
        ),
    ],
)
def test_a_caption_says_what_the_scene_holds(scene: Scene, words: str) -> None:
    assert caption(scene) == words


def test_a_harder_family_names_more_things() -> None:
    plan = plan_clips(200, 0)

    def words(family: str) -> float:
        return float(np.mean([len(caption(clip.scene).split()) for clip in plan if clip.family == family]))

    assert words("easy") < words("pair") < words("varied")


# ── pixels ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_is_drawn_in_its_colour_with_smooth_edges(shape: str) -> None:
    frames = render_clip(_one(shape, "yellow", "still"), num_frames=2, height=64, width=64)

    assert frames.shape == (2, 64, 64, 3)
    assert frames.dtype == np.uint8
    assert (frames[0] == frames[1]).all()
    covered = (frames[0] == COLOURS["yellow"]).all(axis=2).mean()
    plain = (frames[0] == BACKGROUNDS["dark"]).all(axis=2).mean()
    assert 0.01 < covered < 0.1
    assert plain > 0.85
    assert covered + plain < 1.0, "no pixel is between shape and background: edges are jagged"


def test_shapes_differ_from_each_other() -> None:
    drawn = {
        shape: render_clip(_one(shape, "red", "still"), num_frames=1, height=64, width=64).tobytes()
        for shape in SHAPES
    }
    assert len(set(drawn.values())) == len(SHAPES)


def test_prompts_to_sample_are_balanced() -> None:
    prompts = demo_prompts(32)
    pairs = Counter((scene.things[0].colour, scene.things[0].motion) for _, scene in prompts)
    assert set(pairs.values()) == {2}
    assert len(pairs) == len(MAIN_COLOURS) * len(MAIN_MOTIONS)
    assert all(text == caption(scene) for text, scene in prompts)


# ── a data set ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("clips", [10, 11, 25, 60, 320])
def test_a_plan_has_the_clips_it_was_asked_for(clips: int) -> None:
    plan = plan_clips(clips, 0)
    families = Counter(clip.family for clip in plan)
    assert len(plan) == clips
    assert len({clip.name for clip in plan}) == clips
    assert families["easy"] + families["pair"] >= 0.7 * clips


def test_easy_clips_are_balanced_over_colour_motion_and_shape() -> None:
    easy = [clip.scene.things[0] for clip in plan_clips(320, 0) if clip.family == "easy"]
    for counts in (
        Counter(thing.colour for thing in easy),
        Counter(thing.motion for thing in easy),
        Counter(thing.shape for thing in easy),
        Counter((thing.colour, thing.motion, thing.shape) for thing in easy),
    ):
        # The last group of 48 is not complete.
        assert max(counts.values()) - min(counts.values()) <= max(1, 0.2 * max(counts.values()))


def test_every_good_clip_decodes_to_what_the_truth_says(demo: Made) -> None:
    out, summary = demo
    truth = json.loads((out / "truth.json").read_text())
    checked = 0

    for name, clip in truth["clips"].items():
        if clip["planted"] in DAMAGES:
            continue
        scene = scene_from(clip["scene"])
        frames = decode.read_frames(
            out / "videos" / name, range(clip["num_frames"]), height=clip["height"], width=clip["width"]
        )
        drawn = render_clip(scene, num_frames=clip["num_frames"], height=clip["height"], width=clip["width"])
        assert np.abs(frames.astype(int) - drawn).mean() < 8, name
        if clip["family"] in ("easy", "pair"):
            found = follows(frames, scene)
            assert found["is_colour_right"], (name, found)
            assert found["is_motion_right"], (name, found)
            checked += 1

    assert checked == summary.families["easy"] + summary.families["pair"]
    assert len({clip["codec"] for clip in truth["clips"].values()}) >= 5
    assert len({clip["suffix"] for clip in truth["clips"].values()}) >= 5


def test_every_damaged_file_is_found_by_header_index_or_decoder(demo: Made) -> None:
    out, _ = demo
    truth = json.loads((out / "truth.json").read_text())
    found = {}

    for name, clip in truth["clips"].items():
        if clip["planted"] in DAMAGES:
            path = out / "videos" / name
            found[clip["planted"]] = probe_file(str(path))["probe_status"]
            if found[clip["planted"]] == "ok":
                try:
                    decode.read_frames(path, range(clip["num_frames"]), height=32, width=32)
                except MediaError as error:
                    found[clip["planted"]] = f"decoder: {error.kind}"

    assert set(found) == set(DAMAGES)
    assert found["zero_bytes"] == "empty"
    assert found["text_named_mp4"] == "unreadable"
    assert found["truncated"] == "unreadable"
    for what in ("truncated_faststart", "truncated_mkv", "truncated_webm"):
        assert found[what] == "truncated", found
    # No header tells of damage inside the pictures.
    for what in ("flipped_bytes", "zeroed_block"):
        assert found[what].startswith("decoder: "), found
    # Players pass over what lies behind the end.
    assert found["garbage_tail"] == "ok"


def test_an_ingest_finds_every_fault_that_was_planted_in_the_table(demo: Made, tmp_path: Path) -> None:
    out, made = demo
    summary = run_ingest(tmp_path / "run", IngestSpec(metadata=out / "captions.csv", videos=out / "videos"))

    assert summary.schema == "openvid"
    assert summary.metadata_rows == made.num_rows
    assert summary.problems == {
        "extra_file": 1,
        "duplicate_id": 1,
        "missing_file": 1,
        "empty_caption": 1,
    }


def test_the_table_says_what_the_truth_says(demo: Made) -> None:
    out, _ = demo
    truth = json.loads((out / "truth.json").read_text())["clips"]
    with (out / "captions.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["video"]: row for row in csv.DictReader(file)}

    for name, clip in truth.items():
        if clip["planted"] == "extra_file":
            assert name not in rows
            continue
        assert rows[name]["caption"] == ("" if clip["planted"] == "empty_caption" else clip["caption"])
        assert int(rows[name]["frame"]) == clip["num_frames"]
        assert float(rows[name]["fps"]) == clip["fps"]
    assert "12.1.mp4" in rows
    assert "12.10.mp4" in rows


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_clips(tmp_path: Path, run_python) -> None:  # type: ignore[no-untyped-def]
    write_demo_data(tmp_path / "a", clips=40, seed=5)
    # Another process, whose memory holds other things: an encoder that reads what it never wrote shows here.
    run_python(
        "from pathlib import Path; from vidcurate.curation.demo_data.write import write_demo_data\n"
        f"junk = [bytes([n % 251]) * (n * 997) for n in range(300)]; del junk\n"
        f"write_demo_data(Path({str(tmp_path / 'b')!r}), clips=40, seed=5)"
    )
    write_demo_data(tmp_path / "c", clips=40, seed=6)

    assert _digests(tmp_path / "a") == _digests(tmp_path / "b")
    assert (tmp_path / "a/captions.csv").read_bytes() != (tmp_path / "c/captions.csv").read_bytes()


def test_a_stopped_run_is_finished_and_a_finished_one_left_alone(demo: Made, tmp_path: Path) -> None:
    done: list[int] = []
    out = tmp_path / "data"

    def stop(number: int, total: int, unit: str) -> None:
        if number == 7:
            raise KeyboardInterrupt
        done.append(number)

    with pytest.raises(KeyboardInterrupt):
        write_demo_data(out, clips=12, seed=1, progress=stop)
    assert not (out / "captions.csv").exists()
    first = {path.name: path.stat().st_mtime_ns for path in (out / "videos").iterdir()}
    assert len(first) == 7

    again = write_demo_data(out, clips=12, seed=1)
    assert not again.up_to_date
    assert all((out / "videos" / name).stat().st_mtime_ns == time for name, time in first.items())
    assert sorted(path.name for path in out.iterdir()) == ["captions.csv", "truth.json", "videos"]

    assert write_demo_data(out, clips=12, seed=1).up_to_date


def test_a_folder_that_holds_other_things_is_refused(demo: Made, tmp_path: Path) -> None:
    out, _ = demo
    with pytest.raises(InputError, match="of another seed"):
        write_demo_data(out, clips=120, seed=4)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds no demo data"):
        write_demo_data(tmp_path, clips=12)
    with pytest.raises(InputError, match="at least 10"):
        write_demo_data(tmp_path / "new", clips=9)
    assert not (tmp_path / "new").exists()


def test_a_second_command_into_the_same_folder_is_refused(tmp_path: Path) -> None:
    with lock.exclusive(tmp_path), pytest.raises(StageError, match="another demo-data"):
        write_demo_data(tmp_path, clips=10)
