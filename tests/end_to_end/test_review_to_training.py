"""Review → filter → ledger → shards → trainer, on small made clips and on real ones."""

import csv
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from tests.trainer.shards_for_tests import COLOURS, FPS, WAYS, smoke, square
from trainer.data import open_stage
from trainer.report.preview.stages import read_stages
from trainer.run_folder import clip_losses
from trainer.train import train
from vidcurate.cli.main import main
from vidcurate.curation.clip_table import rejection_ledger
from vidcurate.curation.report.review_summary import review_summary
from vidcurate.curation.review_decisions.journal import append_decision
from vidcurate.media import encode
from vidcurate.shards.index_file import read_columns

EDITED = "a white square, a cat and a dog move down"
# Real clips, small and of several codecs; one has three frames, of one some packets are damaged.
REAL = (
    "mdn_rabbit320.webm", "hf_66x50.mov", "tc_h265.mp4", "libwebm_bbb_480p_vp9.webm",
    "moviepy_bbb_432_433.webm", "dn_sample_mpeg4.mp4", "ft_hiker.mp4", "mmcv_test.mp4",
)  # fmt: skip
SHORT, DAMAGED = "decord_rot180.mov", "decord_corrupted.mp4"
RECIPE = """
run: {home}/run
workers: 1
ingest: {{metadata: {home}/captions.csv, videos: {home}/videos}}
probe: {{level: full}}
score: {{noun_engine: builtin}}
filter: {{limits: {{noun_count: {{min: 1}}, num_frames: {{min: 9}}}}}}
split: {{levels: 1, validation_fraction: 0}}
shards: {{max_clips: 8}}
"""


@dataclass(frozen=True)
class Curated:
    """A curation of ten clips. `clip_ids`: eight good ones, then one too short, then a damaged one."""

    home: Path
    clip_ids: tuple[str, ...]

    @property
    def run(self) -> Path:
        return self.home / "run"


def _write_real(home: Path, shared: Path) -> list[str]:
    """Copy the real clips with their captions; return their names."""
    (home / "videos").mkdir()
    names = [*REAL, SHORT, DAMAGED]
    with (shared / "data" / "captions_openvid.csv").open(newline="") as file:
        said = {row["video"]: row["caption"] for row in csv.DictReader(file)}
    with (home / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("video", "caption"), *((name, said[name]) for name in names)])
    for name in names:
        shutil.copyfile(shared / "data" / "clips" / name, home / "videos" / name)
    return names


def _write_made(home: Path) -> list[str]:
    """Write ten clips with true captions: one too short, one cut in its midst; return their names."""
    (home / "videos").mkdir()
    lines = ["video,caption"]
    for number in range(10):
        colour, way = list(COLOURS)[number % 4], list(WAYS)[number % 3]
        path = home / "videos" / f"clip-{number}.mp4"
        encode.write_video(path, square(colour, way, 3 if number == 8 else 9, 32, 32), fps=FPS, crf=18)
        lines.append(f"{path.name},a {colour} square {number} moves {way}")
    whole = (home / "videos" / "clip-9.mp4").read_bytes()
    (home / "videos" / "clip-9.mp4").write_bytes(whole[: len(whole) // 2])
    (home / "captions.csv").write_text("\n".join(lines) + "\n")
    return [f"clip-{number}.mp4" for number in range(10)]


@pytest.fixture(params=["made", "real"])
def curated(request: pytest.FixtureRequest, tmp_path: Path) -> Curated:
    """Ten clips, made or real, curated up to the shards."""
    home = tmp_path
    is_made = request.param == "made"
    names = _write_made(home) if is_made else _write_real(home, request.getfixturevalue("shared"))
    (home / "curate.yaml").write_text(RECIPE.format(home=home))
    (home / "filter.yaml").write_text("limits: {noun_count: {min: 1}, num_frames: {min: 9}}\n")
    main_ended(["curate", str(home / "curate.yaml"), "--json"])
    ids = dict(pl.read_parquet(home / "run" / "ingest.parquet").select("video_path", "clip_id").iter_rows())
    return Curated(home=home, clip_ids=tuple(ids[name] for name in names))


def main_ended(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code


def _captions(run: Path) -> dict[str, str]:
    found = read_columns(run / "shards", ["clip_id", "caption"])
    return dict(zip(found.column("clip_id").to_pylist(), found.column("caption").to_pylist(), strict=True))


def test_a_clip_rejected_by_eye_is_gone_and_an_edited_caption_is_trained(
    curated: Curated, capsys: pytest.CaptureFixture[str]
) -> None:
    run, tmp_path, of = curated.run, curated.home, curated.clip_ids
    short, cut = of[8:]
    before = _captions(run)
    assert sorted(before) == sorted(of[:8])
    said = dict(pl.read_parquet(run / "ingest.parquet").select("clip_id", "caption").iter_rows())
    for number, (clip_id, verdict, more) in enumerate(
        [
            (of[2], "reject", {"reason": "a <script>slide</script> show"}),
            (of[3], "caption", {"caption": EDITED}),
            (short, "keep", {"reason": "short and good"}),
            (cut, "keep", {}),
        ]
    ):
        append_decision(
            run, {"id": f"i{number}", "clip_id": clip_id, "reviewer": "ana", "verdict": verdict, **more}
        )
    assert review_summary(run)["contradictions"][0]["stage"] == "filter"  # decided, and not applied yet
    main_ended(["filter", str(run), "--recipe", str(tmp_path / "filter.yaml")])
    (stale,) = review_summary(run)["contradictions"]
    assert "Run `vidcurate split-by-difficulty` again" in stale["what"]
    main_ended(["split-by-difficulty", str(run), "--set", "levels=1", "--set", "validation_fraction=0"])
    old = {one["what"] for one in review_summary(run)["contradictions"] if one["stage"] == "shards"}
    assert "rejected by eye, and still in the shards" in old
    assert "the shards have its caption as it was before the edit" in old
    main_ended(["build-shards", str(run), "--overwrite", "--set", "max_clips=8"])

    ledger = rejection_ledger.rejected(run).collect()
    rejected = {row["clip_id"]: (row["rule"], row["value"]) for row in ledger.iter_rows(named=True)}
    assert rejected[of[2]] == ("review", "rejected by ana: a <script>slide</script> show (decision 1)")
    assert set(rejected) == {of[2], cut}
    assert rejection_ledger.check_ledger(run)["rows_rejected"] == 2
    after = _captions(run)
    assert after == {clip_id: text for clip_id, text in before.items() if clip_id != of[2]} | {
        of[3]: EDITED,
        short: said[short],
    }
    tar = b"".join(path.read_bytes() for path in (run / "shards").glob("*.tar"))
    assert EDITED.encode() in tar
    assert b"caption_original" in tar
    assert b"short and good" not in tar  # who decided, and why, stays in the run
    odd = review_summary(run)["contradictions"]
    assert [(one["clip_id"], one["stage"]) for one in odd] == [(cut, "probe")]
    main_ended(["report", str(run)])
    page = (run / "report.html").read_text()
    assert "Decisions by eye" in page
    assert "a &lt;script&gt;slide&lt;/script&gt; show" in page
    assert "<script>slide" not in page
    capsys.readouterr()

    steps = ("stages.0.steps=7", "stages.0.clip_losses_every=1", "sample=null")
    train(smoke(run / "shards", tmp_path / "train", *steps))
    shown = {name for line in clip_losses.read(tmp_path / "train") for name in line["clip_ids"]}
    assert of[3] in shown
    assert of[2] not in shown
    (stage,) = read_stages(tmp_path / "train").stages
    recipe = json.loads((tmp_path / "train" / "recipe.json").read_text())
    assert recipe["stages"][0]["data"]["shards"] == str(run / "shards")
    spec = smoke(run / "shards", tmp_path / "train", *steps)
    with open_stage.open_loader(
        stage, spec.loader, spec.video_encoder, rank=0, world_size=1, on_event=print, pin=False
    ) as loader:
        batches = [batch for step in range(7) for batch in loader.step(step)]
    read = {
        clip_id: text
        for batch in batches
        for clip_id, text in zip(batch.clip_ids, batch.captions, strict=True)
    }
    assert read[of[3]] == EDITED
