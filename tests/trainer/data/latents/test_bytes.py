"""Shards of latents: the same bytes whoever writes them, and what is in them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import webdataset

import vidcurate.loader.torch
from tests.trainer.data.latents.made import FEW_CLIPS_A_SHARD, ROOT, TRAINED, encode, files
from tests.trainer.shards_for_tests import make_shards, smoke
from trainer.data import open_stage
from trainer.data import stages as data_stages
from trainer.data.latents import build
from trainer.data.latents import request as latents_request
from trainer.data.latents.folder import open_folder
from trainer.data.latents.precompute import forecast, request_of
from trainer.model.encoders.precision import EncodedSpec
from trainer.model.encoders.registry import video_encoder
from vidcurate.errors import InputError, ShardError, StageError
from vidcurate.loader.loader import MicroBatch
from vidcurate.shards.index import read_index


def test_parts_write_the_bytes_of_one_process(shards: Path, latents: Path, tmp_path: Path) -> None:
    first = encode(shards, tmp_path / "out", part=(2, 2))
    assert not first.is_finished
    with pytest.raises(ShardError, match=r"encoding has not finished here\. Run the same command again"):
        open_folder(tmp_path / "out")

    last = encode(shards, tmp_path / "out", "loader.num_workers=1", part=(1, 2))

    assert last.is_finished
    assert first.shards_written + last.shards_written == last.shards == len(list(latents.glob("*.tar")))
    assert files(tmp_path / "out") == files(latents)
    assert encode(shards, tmp_path / "out").up_to_date
    for part in ((0, 2), (3, 2)):
        with pytest.raises(InputError, match="it must lie in 1/2 to 2/2"):
            encode(shards, tmp_path / "new", part=part)


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.trainer.data.latents.made import encode
from trainer.data.latents import build, write
import trainer.data.latents.precompute

def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)

shards, out = map(Path, sys.argv[1:3])
for number, moment in enumerate(sys.argv[3:]):
    child = os.fork()
    if child == 0:
        if moment == "tables":
            build.write_table = die
        elif moment == "manifest":
            real = build.write_json
            build.write_json = lambda path, v: die() if path.name == "manifest.json" else real(path, v)
        elif moment == "record":
            write.atomic_file._rename = die
        moment = int(moment) if moment.isdigit() else 10**9
        encode(shards, out, progress=lambda done, total, unit: done >= moment and die())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, (moment, status)
"""


def test_a_killed_encode_resumes_to_the_bytes_of_an_undisturbed_one(
    shards: Path, latents: Path, tmp_path: Path
) -> None:
    moments = ["3", "record", "14", "29", "tables", "manifest"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLED, str(shards), str(tmp_path / "out"), *moments]
    subprocess.run(command, check=True, cwd=ROOT, env=environment, timeout=600)
    with pytest.raises(ShardError, match="encoding has not finished here"):
        open_folder(tmp_path / "out")

    outcome = encode(shards, tmp_path / "out")

    assert outcome.is_finished
    assert files(tmp_path / "out") == files(latents)


def test_more_stages_are_added_and_nothing_is_encoded_twice(
    shards: Path, latents: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    long = "stages.0.data.buckets.table={32px: {8: [1.0, 2]}, 24px: {4: [1.0, 2]}}"
    sizes = "stages.0.data.buckets.sizes={32px: {'1.00': [32, 32]}, 24px: {'1.00': [24, 24]}}"
    shutil.copytree(latents, out)
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.tar")}

    one_view = encode(shards, tmp_path / "one", "stages.0.data.views=1")
    again = encode(shards, tmp_path / "one")  # now with both views: every latent shard is another

    assert again.shards_written == again.shards - len(list((tmp_path / "one").glob("text-*")))
    assert files(tmp_path / "one") == files(latents)
    assert one_view.latents == 12
    assert again.latents == 24
    with pytest.raises(StageError, match="holds 12 latents that this request does not name"):
        encode(shards, out, "stages.0.data.views=1")
    with pytest.raises(StageError, match="holds 8 latents that this request does not name"):
        encode(shards, out, long, sizes)
    assert {path.name: path.stat().st_mtime_ns for path in out.glob("*.tar")} == before
    assert files(out) == files(latents)


def test_a_shard_that_was_deleted_or_cut_is_written_again(
    shards: Path, latents: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(latents, out)
    gone, cut, *_ = sorted(out.glob("8f-*.tar"))
    gone.unlink()
    os.truncate(cut, 1000)

    assert encode(shards, out).shards_written == 2
    assert files(out) == files(latents)


def test_another_request_does_not_touch_what_is_there(shards: Path, latents: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(latents, out)
    other = make_shards(tmp_path / "other", name="other")
    for made, more, said in (
        (shards, "encoded.latent_dtype=bfloat16", r'kept.latent_dtype is "float32" there and "bfloat16" now'),
        (shards, "text_encoder.pairs=false", "encoders.text.pairs is true there and false now"),
        (other, "seed=42", r"clips.structure_fingerprint is "),
    ):
        with pytest.raises(StageError, match=said):
            encode(made, out, more)
    assert files(out) == files(latents)
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars" / "mine.tar").write_bytes(b"")
    with pytest.raises(InputError, match=r"holds mine\.tar, which is not of latents"):
        encode(shards, tmp_path / "tars")
    with pytest.raises(InputError, match=r"holds train-level1-000000\.tar, which is not of latents"):
        encode(shards, shards)


def test_a_part_is_encoded_by_one_process_at_a_time(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EncodedSpec, "shard_bytes", FEW_CLIPS_A_SHARD)
    request = request_of(smoke(shards, tmp_path, *TRAINED))
    weights = {"video": None, "text": None, "projection": None}
    build.begin(tmp_path / "out", request.index, request.shards, request.identity, weights)
    with (
        build.holding(tmp_path / "out" / ".build" / "part-1-of-1.lock"),
        pytest.raises(StageError, match="another process is encoding this part"),
    ):
        encode(shards, tmp_path / "out")


@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO")  # webdataset leaves shards open
def test_any_webdataset_reader_reads_the_shards(shards: Path, latents: Path) -> None:
    paths = sorted(str(path) for path in latents.glob("8f-*.tar"))
    samples = list(webdataset.WebDataset(paths, shardshuffle=False, empty_check=False).decode())
    index = read_index(shards)
    assert sorted(sample["__key__"] for sample in samples) == sorted(index.words("sample_key").to_pylist())
    folder = open_folder(latents)
    table = folder.latents.to_pylist()
    for sample in samples:
        rows = [row for row in table if row["clip_id"] == sample["json"]["clip_id"]]
        assert [row["first_frame"] for row in rows] == sample["json"]["views"]
        for row in rows:
            array = sample[f"v{row['view']}.latent.npy"]
            names = ("channels", "latent_frames", "latent_height", "latent_width")
            assert array.shape == tuple(row[name] for name in names)
            assert array.dtype == np.float32
            with (latents / row["shard"]).open("rb") as file:
                file.seek(row["offset"])
                assert file.read(row["size"]) == array.tobytes()
    texts = list(
        webdataset.WebDataset(
            str(latents / "text-000000.tar"), shardshuffle=False, empty_check=False
        ).decode()
    )
    assert texts[0]["json"]["captions"][0].startswith("a ")
    tokens = {row["clip_id"]: row["num_tokens"] for row in folder.texts.to_pylist()}
    for sample in texts:  # five words, four pairs and the end, of 12 that there is room for
        assert sample["c0.text.npy"].shape == (tokens[sample["json"]["clip_id"]], 16) == (10, 16)


def test_a_view_holds_what_the_encoder_makes_of_its_frames(
    shards: Path, latents: Path, tmp_path: Path
) -> None:
    recipe = smoke(shards, tmp_path, *TRAINED)
    (stage,) = data_stages.open_stages(recipe)
    encoder = video_encoder(recipe.video_encoder)
    folder, starts = open_folder(latents), set()
    with open_stage.open_loader(
        stage, recipe.loader, recipe.video_encoder, rank=0, world_size=1, on_event=pytest.fail
    ) as loader:
        for step in range(6):
            for batch in loader.step(step):
                assert isinstance(batch, MicroBatch)
                wanted = encoder.encode(vidcurate.loader.torch.pixels(batch))
                for slot, clip_id in enumerate(batch.clip_ids):
                    row, *_ = (
                        row
                        for row in folder.latents.to_pylist()
                        if row["clip_id"] == clip_id and row["first_frame"] == batch.start_frame[slot]
                    )
                    starts.add((clip_id, row["first_frame"]))
                    stored = np.fromfile(
                        latents / row["shard"], dtype=np.float32, count=row["size"] // 4, offset=row["offset"]
                    )
                    assert np.allclose(stored, wanted[slot].numpy().ravel(), atol=1e-5)
    assert {start for _, start in starts} == {0, 1}
    assert len({clip_id for clip_id, _ in starts}) == 12


def test_the_forecast_is_what_is_written(
    shards: Path, latents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EncodedSpec, "shard_bytes", FEW_CLIPS_A_SHARD)
    recipe = smoke(shards, tmp_path, *TRAINED)
    report = forecast(request_of(recipe))
    folder = open_folder(latents)

    assert report["clips"] == 12
    assert report["shards"] == len(folder.manifest["shards"])
    assert {line["shape"]: line["bytes"] for line in report["shapes"]} == {
        f"{line['num_frames']}f-{line['height']}x{line['width']}": line["bytes"]
        for line in folder.manifest["shapes"]
    }
    (stage,) = data_stages.open_stages(recipe)
    expected = latents_request.forecast(recipe.encoding, stage.plan, stage.stage.data)
    there = latents_request.bytes_on_disk(folder, stage.plan, stage.stage.data)
    assert report["latent_bytes"] == expected["latents"] == there["latents"]
    assert 0 < there["texts"] < report["text_bytes_at_most"] == expected["texts_at_most"]
