"""`python -m trainer plan`: what it says of steps, clips and ranks is what the loader does."""

import base64
import io
import json
import re
import shlex
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.trainer.shards_for_tests import SMOKE, make_shards, numbers, settings, smoke
from tests.trainer.test_main import help_of
from trainer import __main__ as main
from trainer.data import open_stage
from trainer.data import stages as data_stages
from trainer.report.preview import contact_sheet, plan, plan_command
from trainer.report.preview import stages as preview_stages
from trainer.train import train
from trainer.training.state import Origin
from vidcurate.sampler import order

ROOT = SMOKE.parents[1]
STEPS = 6


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with shards, and a run of two stages over them that has made two steps."""
    home = tmp_path_factory.mktemp("planned")
    make_shards(home / "shards", num_clips=14, cut_short=(4,))
    train(smoke(home / "shards", home / "run", "stages.0.steps=2", "sample=null"))
    return home


def words_of(home: Path, *more: str) -> list[str]:
    given = settings(home / "shards", home / "none", f"stages.0.steps={STEPS}", *more)
    return [word for value in given for word in ("--set", value)]


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert plan_command.main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert plan_command.main(list(words)) == 0
    return capsys.readouterr().out


def test_the_shown_micro_batches_are_those_that_each_rank_loads(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("stages.0.data.micro_batches_per_step=3", "stages.0.data.weights={'1': 3, '2': 1}")
    recipe = smoke(home / "shards", home / "none", f"stages.0.steps={STEPS}", *more)
    (stage,) = data_stages.open_stages(recipe)
    loaded = []
    for rank in range(2):
        with open_stage.open_loader(
            stage, recipe.loader, recipe.video_encoder, rank=rank, world_size=2, on_event=lambda event: None
        ) as loader:
            for step in range(STEPS):
                loaded += [(step + 1, b.position, rank, b.cell, *b.captions) for b in loader.step(step)]

    words = ("show", str(SMOKE), *words_of(home, *more), "--steps", f"1:{STEPS}", "--world", "2")
    shown = asked(capsys, *words, "--captions")
    # A clip that cannot be decoded is still planned; its fallback clip has another caption.
    broken = "a red square moves left"
    reported = [
        (b["step"], b["position"], b["rank"], b["cell"], *(clip["caption"] for clip in b["clips"]))
        for b in shown
    ]
    assert len(reported) == len(loaded) == 3 * STEPS
    for one, other in zip(reported, sorted(loaded, key=lambda batch: batch[1]), strict=True):
        assert one == other or broken in one
    assert sum(one in loaded for one in reported) > STEPS
    assert "caption" not in asked(capsys, *words)[0]["clips"][0]
    text = said(capsys, *words)
    assert f"step {STEPS} (first)" in text
    assert shown[0]["clips"][0]["clip_id"] in text


def test_the_steps_of_a_clip_are_those_that_read_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("show", str(SMOKE), *words_of(home))
    batches = asked(capsys, *given, "--steps", f"1:{STEPS}")
    reads = [(b["step"], b["position"]) for b in batches for c in b["clips"] if c["clip_id"] == "clip-003"]

    found = asked(capsys, *given, "--clip", "clip-003")
    assert [(one["step"], one["position"]) for one in found["shown"]] == reads
    assert len(reads) >= 1
    early = asked(capsys, *given, "--clip", "clip-003", "--until", str(reads[0][0]))
    assert [one["step"] for one in early["shown"]] == [step for step, _ in reads if step <= reads[0][0]]
    of_run = asked(capsys, "show", str(home / "run"), "--clip", "clip-003")["shown"]
    assert all(one["is_past"] for one in of_run)
    for setting, reason in (
        ("levels=[1]", "of another fold, level or source"),
        ("buckets.table={32px: {16: [1.0, 2], 1: [1.0, 2], 9: [[1.0, 0.4], 1]}}", "not_drawn"),
    ):
        left = asked(capsys, *given, "--set", f"stages.0.data.{setting}", "--clip", "clip-003")
        assert (left["shown"], left["not_in"]) == ([], {"first": reason})


def test_the_page_has_a_picture_and_a_caption_of_every_clip(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pages" / "steps.html"
    words = ("show", str(SMOKE), *words_of(home), "--steps", "1:3", "--captions")
    batches = asked(capsys, *words, "--html", str(out))
    page = out.read_text(encoding="utf-8")
    clips = [clip for batch in batches for clip in batch["clips"]]

    broken = sum(clip["clip_id"] == "clip-004" for clip in clips)
    assert broken  # it has 3 frames: its fallback clip is named, not shown
    assert page.count("too_few_frames: shows clip-") == broken
    assert page.count('<img src="data:image/jpeg;base64,') == len(clips) - broken
    assert page.count("<figure>") == len(clips)
    assert all(clip["caption"] in page for clip in clips)
    assert not re.search(r"https?://|<script|<link", page)
    assert list(out.parent.iterdir()) == [out]


def test_a_thumbnail_is_small_and_even() -> None:
    for height, width, size in ((32, 48, (32, 48)), (720, 1281, (102, 182)), (1, 1, (1, 1))):
        frame = np.full((height, width, 3), 200, dtype=np.uint8)
        data = contact_sheet.thumbnail(frame).partition(",")[2]
        with av.open(io.BytesIO(base64.b64decode(data)), format="mjpeg") as container:
            picture = next(container.decode(video=0)).to_ndarray(format="rgb24")
        assert picture.shape[:2] == size
        assert abs(int(picture.mean()) - 200) < 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "RECIPE"], "give --steps A:B, or --clip ID"),
        (["show", "RECIPE", "--steps", "3:2"], "--steps 3:2: write A:B"),
        (["show", "RECIPE", "--steps", "1:99"], "step 99: tiny has the steps 1 to 6"),
        (["show", "RECIPE", "--clip", "nobody"], "no stage of tiny has a clip of this name"),
        (["show", "RECIPE", "--steps", "1", "--world", "0"], "--world 0: must be 1 or more"),
        (
            ["show", "RECIPE", "--steps", "1", "--world", "10000000"],
            "--world 10000000: must be 100000 or less",
        ),
        (["show", str(ROOT / "recipes"), "--steps", "1"], "neither a checkpoint (no manifest.json in it"),
        (["show", "nowhere.yaml", "--steps", "1"], "nowhere.yaml: no such recipe file"),
    ],
)
def test_what_is_wrong_is_one_line(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    given = [str(SMOKE) if word == "RECIPE" else word for word in words]
    given[2:2] = words_of(home) if "RECIPE" in words else []
    assert plan_command.main(given) == 2
    reported = capsys.readouterr().err
    assert said in reported
    assert reported.count("\n") == 1


def test_the_examples_of_the_help_run(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = re.findall(r"^  python -m trainer plan (.*)", help_of(plan_command.main), re.MULTILINE)
    assert len(lines) == 3
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    make_shards(tmp_path / "run" / "shards", num_clips=4, size=64)
    (tmp_path / "runs").mkdir()
    shutil.copytree(home / "run", tmp_path / "runs" / "first")
    monkeypatch.chdir(tmp_path)
    for line in lines:
        assert plan_command.main(shlex.split(line.replace("CLIP", "clip-001"))) == 0, line
    assert (tmp_path / "first-step.html").is_file()


def test_a_run_that_took_new_clips_is_shown_as_it_read(tmp_path: Path) -> None:
    shards, run = tmp_path / "shards", tmp_path / "run"
    make_shards(shards)
    train(smoke(shards, run, "stages.0.steps=2", "sample=null"))
    shutil.rmtree(shards)
    make_shards(shards, num_clips=15)
    train(smoke(shards, run, "stages.0.steps=5", "sample=null"), Origin(accept=("--append",)))

    found = preview_stages.read_stages(run)
    seen: set[str] = set()
    rolling = ""
    hashes = []
    for step in range(1, 6):
        ids = [clip["clip_id"] for batch in plan.micro_batches(found, step, step) for clip in batch["clips"]]
        rolling = order.rolling_hash(rolling, ids)
        hashes.append(rolling)
        seen.update(ids)
    assert hashes == [line["clips_hash"] for line in numbers(run)]
    assert found.done == 5
    new = sorted(seen & {"clip-012", "clip-013", "clip-014"})
    assert new
    assert plan.showings(found, new[0], 5)[0]["step"] > 2


def test_steps_before_a_change_have_the_buckets_of_then(tmp_path: Path) -> None:
    shards, run = tmp_path / "shards", tmp_path / "run"
    make_shards(shards, num_clips=2)
    train(smoke(shards, run, "stages.0.steps=2", "sample=null"))
    shutil.rmtree(shards)
    make_shards(shards, num_clips=12)  # wide ones, too, in cells that come before some of those of then
    train(smoke(shards, run, "stages.0.steps=6", "sample=null"), Origin(accept=("--append",)))

    found = preview_stages.read_stages(run)

    (stage,) = found.stages
    assert stage.plan.cells[1].name != order.at_step(stage.plan, 0).cells[1].name
    read = [
        set(
            data_stages.step_plan(
                stage, update, found.recipe.video_encoder, found.recipe.model.patch_size
            ).buckets
        )
        for update in range(6)
    ]
    assert read == [set(line["loss_by_bucket"]) for line in numbers(run)]


def test_the_dry_run_leaves_out_the_data_windows_that_are_skipped(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    phases = "[{levels: [1], steps: 5}, {weights: {'1': 1, '2': 3}, ramp_steps: 2}]"
    more = (f"stages.0.data.curriculum={phases}", "stages.0.skip=[[2, 4], [9, 9]]")
    main.main([str(SMOKE), *words_of(home, *more), "--dry-run", "--json"])
    (stage,) = json.loads(capsys.readouterr().out)["stages"]
    (opened,) = data_stages.open_stages(
        smoke(home / "shards", home / "none", f"stages.0.steps={STEPS}", *more)
    )

    read = [data_stages.data_step(opened, update) for update in range(STEPS)]
    assert {1, 2, 3, 8}.isdisjoint(read)
    assert read[-1] == STEPS + 3
    batches = [batch for step in read for batch in order.step_micro_batches(opened.plan, step)]
    names = Counter(opened.plan.cells[batch.cell].name for batch in batches)
    shown = Counter(row for batch in batches for row in batch.rows.tolist())
    turns = {cell["name"]: cell["micro_batches"] for cell in stage["cells"] if cell["micro_batches"]}
    assert turns == names
    assert stage["clips_read"] == sum(shown.values())
    assert stage["phases"] == [1, 3]  # three of the first phase's five data steps are skipped
    for reported, cell in zip(stage["cells"], opened.plan.cells, strict=True):
        times = [shown[row] for row in cell.rows.tolist()]
        assert reported["exposures"] == [min(times), max(times)]
