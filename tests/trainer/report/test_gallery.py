"""The gallery's page and what it shows, as they are written; tests/end_to_end has them in a browser."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.generation import sample_clips
from trainer.report import gallery
from trainer.run_folder import jsonl, metrics, sample_rounds
from trainer.run_folder.sample_spec import SampleSpec

SPEC = SampleSpec(
    prompts=("a red square", "<b>bold</b>"), seeds=(0, 5), steps=2, num_frames=4, height=16, width=16, fps=8
)


def add_round(run: Path, step: int, name: str = sample_rounds.OWN, spec: SampleSpec = SPEC) -> None:
    """Write a round of grey clips, whose grey is the step."""
    folder = sample_rounds.folder(run, name, step)
    partial = sample_rounds.begin_round(folder, "test")
    for entry in sample_rounds.entries(spec):
        sample_clips.write_clip(partial / entry.file, np.full((4, 16, 16, 3), step, dtype=np.uint8), spec.fps)
    sample_rounds.finish_round(
        partial, folder, sample_rounds.listing(name, step, spec, weights="ema", digest="d")
    )


TIMES = {"time": 100.0, "seconds": 1.0, "data_seconds": 0.1}
ROUND = {**TIMES, "weights": "ema", "loss_by_clip": {}}


def add_steps(run: Path, first: int, last: int) -> None:
    for step in range(first, last):
        jsonl.append_line(
            run / metrics.METRICS,
            {**TIMES, "step": step, "stage": "one", "loss": 1 / step},
        )


def shown(run: Path) -> dict[str, Any]:
    """Return what gallery.js tells the page."""
    text = (run / gallery.DATA).read_text()
    assert text.startswith("gallery(")
    data: dict[str, Any] = json.loads(text.removeprefix("gallery(").removesuffix(");\n"))
    return data


def test_every_clip_has_its_place_and_a_hole_stays_a_hole(tmp_path: Path) -> None:
    run = tmp_path / "run <&> 1"
    run.mkdir()
    add_steps(run, 1, 30)
    add_round(run, 20)
    add_round(run, 4, spec=SPEC.model_copy(update={"prompts": SPEC.prompts[:1]}))
    add_round(run, 20, "low4s")

    assert gallery.main([str(run)]) == 0

    data = shown(run)
    assert [one["name"] for one in data["sets"]] == ["own", "low4s"]
    own = data["sets"][0]
    assert own["steps"] == [4, 20]
    assert [(row["number"], row["seed"]) for row in own["rows"]] == [(0, 0), (0, 5), (1, 0), (1, 5)]
    assert [sorted(row["files"]) for row in own["rows"]] == [["20", "4"], ["20", "4"], ["20"], ["20"]]
    for one in data["sets"]:
        for row in one["rows"]:
            for step, file in row["files"].items():
                path = run / file.partition("?")[0]
                assert path.is_file()
                assert path.parent.name == f"step-{int(step):08d}"
    assert own["about"] == "4 frames · 16 × 16 px · 8 frames/s · 2 steps · guidance 7 · ema weights"


def test_the_page_stands_alone(tmp_path: Path) -> None:
    run = tmp_path / "run <&> 1"
    run.mkdir()

    page = gallery.write_gallery(run).read_text()

    assert "://" not in page
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    script = page.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{digest}' 'self' file:; style-src 'unsafe-inline'; "
        "media-src 'self' file:; img-src data:"
    )
    assert not re.search(r"<[^>]+ on\w+=", page)  # the policy forbids handlers in tags
    assert "<title>run &lt;&amp;&gt; 1: samples</title>" in page
    (run / "recipe.json").write_text('{"name": "speedrun"}')
    assert "<title>speedrun: samples</title>" in gallery.write_gallery(run).read_text()
    assert "<&>" not in page
    assert not list(run.glob(".*"))
    assert gallery.main([str(run / "nothing")]) == 2


def test_a_page_before_the_first_sample_says_so(tmp_path: Path) -> None:
    assert "No samples yet" in gallery.write_gallery(tmp_path).read_text()
    data = shown(tmp_path)
    assert data["sets"] == []
    assert "after the second step" in data["curve"]


@pytest.mark.parametrize("name", ["curation", "runs", "runs/one/step-00000002"])
def test_a_folder_that_is_no_run_gets_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    checkpoint = tmp_path / "runs" / "one" / "step-00000002"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    (tmp_path / "curation").mkdir()
    (tmp_path / "curation" / "ingest.parquet").touch()
    before = sorted((tmp_path / name).iterdir())

    assert gallery.main([str(tmp_path / name)]) == 2

    assert "is no run folder (no events.jsonl and no step-… in it)" in capsys.readouterr().err
    assert sorted((tmp_path / name).iterdir()) == before
    assert gallery.main([str(checkpoint.parent)]) == 0


def test_a_round_made_again_has_another_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = []
    for now in (100.0, 200.0):
        monkeypatch.setattr("time.time", lambda now=now: now)
        add_round(tmp_path, 4)
        gallery.write_gallery(tmp_path)
        before.append(shown(tmp_path)["sets"][0]["rows"][0]["files"]["4"])
    assert before == ["samples/step-00000004/00-0.mp4?100", "samples/step-00000004/00-0.mp4?200"]


def test_a_round_without_its_listing_is_not_shown(tmp_path: Path) -> None:
    add_round(tmp_path, 4)
    add_round(tmp_path, 8)
    (tmp_path / "samples" / "step-00000008" / sample_rounds.LISTING).unlink()
    sample_rounds.begin_round(sample_rounds.folder(tmp_path, sample_rounds.OWN, 12), "test")

    assert [facts["step"] for facts in sample_rounds.rounds(tmp_path)] == [4]
    sample_rounds.clean_rounds(tmp_path, sample_rounds.OWN, "test")
    assert not list((tmp_path / "samples").glob(".*"))


def test_of_two_that_finish_one_round_at_once_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sample_rounds.folder(tmp_path, sample_rounds.OWN, 4)
    mine = sample_rounds.begin_round(folder, "training")
    # The other writer's round appears after the older one has made way.
    monkeypatch.setattr("trainer.run_folder.sample_rounds.shutil.rmtree", lambda *a, **k: add_if_absent())

    def add_if_absent() -> None:
        monkeypatch.undo()
        add_round(tmp_path, 4)

    sample_rounds.finish_round(mine, folder, sample_rounds.listing(sample_rounds.OWN, 4, SPEC, weights="ema"))

    assert not mine.exists()
    assert sample_rounds.rounds(tmp_path)[0]["digest"] == "d"


def test_the_curve_marks_stages_and_validation_and_stays_small(tmp_path: Path) -> None:
    lines = [
        {"step": step, "stage": "easy" if step < 3000 else "<hard>", "loss": 1 / step}
        for step in range(1, 5000)
    ]

    curve = gallery.loss_curve(lines, [(1000.0, 0.5), (9000.0, 0.5)])

    assert "&lt;hard&gt;" in curve
    assert curve.count("<title>validation loss") == 1  # the other is beyond the last step
    assert "validation loss 0.5 at step 1,000" in curve
    assert len(curve) < 40_000


def test_the_trainings_own_validation_stands_before_the_servers(tmp_path: Path) -> None:
    add_steps(tmp_path, 1, 30)
    (tmp_path / "serve").mkdir()
    for path, loss in ((tmp_path, 0.25), (tmp_path / "serve", 0.75)):
        jsonl.append_line(path / metrics.VALIDATION, {**ROUND, "step": 8, "loss": loss})
    jsonl.append_line(tmp_path / metrics.VALIDATION, {**ROUND, "step": 9, "loss": 0.1, "weights": "raw"})

    curve = gallery.page_data(tmp_path)["curve"]

    assert "validation loss 0.25 at step 8" in curve
    assert curve.count("<title>validation loss") == 1
