"""Clips encoded ahead: the same training as on line, the same bytes however written, every fault named."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset

import vidcurate.torch
from tests.trainer.encoders_for_tests import make_t5, make_vae
from tests.trainer.shards_for_tests import SMOKE, events, make_shards, numbers, smoke
from trainer import __main__ as trainer_command
from trainer import checkpoint, data, dry_run, encode_shards, encoded, inputs
from trainer.encode import video_encoder
from trainer.encode_ahead import Outcome, encode_ahead, forecast, request_of
from trainer.latents import build
from trainer.latents.folder import MANIFEST_NAME, open_folder, read_manifest
from trainer.latents.read import LatentLoader
from trainer.loop import train
from trainer.resume import Origin
from vidcurate.errors import InputError, RecipeError, ShardError, StageError, StateError, VidcurateError
from vidcurate.index import read_index
from vidcurate.loader import MicroBatch

ROOT = Path(__file__).resolve().parents[2]
# Two passes over 12 clips in 6 steps: both views of a clip are shown.
TRAINED = ("stages.0.steps=6", "stages.0.checkpoint_every=2", "stages.0.data.views=2", "sample=null")
FEW_CLIPS_A_SHARD = "encoded.shard_bytes=262144"
CUT_SHORT = 5


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards")


@pytest.fixture(scope="module")
def hurt_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same clips, one of which cannot be decoded."""
    return make_shards(tmp_path_factory.mktemp("hurt") / "shards", cut_short=(CUT_SHORT,))


@pytest.fixture(scope="module")
def latents(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both views of all clips, three to a shard; copy it before changing it."""
    out = tmp_path_factory.mktemp("latents") / "latents"
    encode(shards, out)
    return out


def encode(shards: Path, out: Path, *more: str, **options: Any) -> Outcome:
    recipe = smoke(shards, out.parent / "run", *TRAINED, FEW_CLIPS_A_SHARD, *more)
    return encode_ahead(request_of(recipe), out, **options)


def from_latents(latents: Path) -> tuple[str, str]:
    return "stages.0.data.shards=null", f"stages.0.data.latents={latents}"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def same_weights(one: Path, other: Path) -> bool:
    parts = [checkpoint.load(run).parts for run in (one, other)]
    return all(
        checkpoint.checksum(parts[0][part]) == checkpoint.checksum(parts[1][part]) for part in parts[0]
    )


# ── the training is the same ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_ahead_and_on_line_are_the_same_bit_for_bit(
    hurt_shards: Path, tmp_path: Path, dtype: str
) -> None:
    more = (*TRAINED, f"encoded.latent_dtype={dtype}", f"encoded.text_dtype={dtype}")
    outcome = encode(hurt_shards, tmp_path / "latents", *more)
    assert (outcome.latents, outcome.failed, outcome.is_finished) == (22, 2, True)

    train(smoke(hurt_shards, tmp_path / "line", *more))
    train(smoke(hurt_shards, tmp_path / "ahead", *more, *from_latents(tmp_path / "latents")))

    assert len(numbers(tmp_path / "line")) == 6
    assert numbers(tmp_path / "line") == numbers(tmp_path / "ahead")
    assert same_weights(tmp_path / "line", tmp_path / "ahead")
    replaced = [
        [{**event, "time": 0} for event in events(tmp_path / run, "clip_substituted")]
        for run in ("line", "ahead")
    ]
    assert replaced[0] == replaced[1]
    assert replaced[0][0]["clip_id"] == f"clip-{CUT_SHORT:03d}"


def test_what_is_rounded_is_another_training(shards: Path, tmp_path: Path) -> None:
    more = ("stages.0.steps=1", "sample=null")
    for dtype in ("float32", "bfloat16"):
        train(smoke(shards, tmp_path / dtype, *more, f"encoded.latent_dtype={dtype}"))
    (exact,), (rounded,) = numbers(tmp_path / "float32"), numbers(tmp_path / "bfloat16")
    assert exact["loss"] != rounded["loss"]
    assert exact["loss"] == pytest.approx(rounded["loss"], rel=1e-3)


def test_a_resumed_run_on_latents_equals_one_that_never_stopped(
    shards: Path, latents: Path, tmp_path: Path
) -> None:
    train(smoke(shards, tmp_path / "whole", *TRAINED, *from_latents(latents)))
    train(smoke(shards, tmp_path / "half", *TRAINED, *from_latents(latents)))
    half = tmp_path / "half"
    for name in ("step-00000006", "step-00000004"):
        shutil.rmtree(half / name)
    (half / "LATEST").write_text("step-00000002\n")

    train(smoke(shards, half, *TRAINED, *from_latents(latents)))

    assert events(half, "resume")[0]["repeated_steps"] == 4
    assert numbers(half) == numbers(tmp_path / "whole")
    assert same_weights(half, tmp_path / "whole")


def test_a_run_goes_over_from_clips_to_their_latents_and_back(
    shards: Path, latents: Path, tmp_path: Path
) -> None:
    train(smoke(shards, tmp_path / "line", *TRAINED, "stages.0.log_every=1"))
    run = tmp_path / "mixed"
    for steps, source in ((2, ()), (4, from_latents(latents)), (6, ())):
        train(smoke(shards, run, *TRAINED, *source, f"stages.0.steps={steps}", "stages.0.log_every=1"))

    assert [line["changed"].get("stages.0.data.latents") for line in events(run, "resume")] == [
        [None, str(latents)],
        [str(latents), None],
    ]
    assert numbers(run) == numbers(tmp_path / "line")
    assert same_weights(run, tmp_path / "line")


def test_latents_of_other_clips_are_no_way_on(shards: Path, tmp_path: Path) -> None:
    run, other = tmp_path / "run", make_shards(tmp_path / "other", name="other")
    encode(other, tmp_path / "latents")
    train(smoke(shards, run, *TRAINED, "stages.0.steps=2"))

    with pytest.raises(StateError, match=r"none of the 12 clips of then .* another data set"):
        train(smoke(shards, run, *TRAINED, *from_latents(tmp_path / "latents")))
    with pytest.raises(
        ShardError, match=r"its latents are of other clips than those of .* \(structure_finger"
    ):
        data.lay_out(smoke(shards, run, *TRAINED, f"stages.0.data.latents={tmp_path / 'latents'}"))
    assert len(numbers(run)) == 2


def test_latents_of_other_weights_are_no_way_on(shards: Path, latents: Path, tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "latents"
    train(smoke(shards, run, *TRAINED, "stages.0.steps=2", *from_latents(latents)))
    shutil.copytree(latents, other)
    manifest = json.loads((other / MANIFEST_NAME).read_text())
    manifest["weights"]["video"] = "0123456789abcdef"
    (other / MANIFEST_NAME).write_text(json.dumps(manifest))

    with pytest.raises(StateError, match=r"made with other weights of the video \(0123456789ab\)"):
        train(smoke(shards, run, *TRAINED, *from_latents(other)))


def test_the_ranks_read_what_one_rank_reads(shards: Path, latents: Path, tmp_path: Path) -> None:
    recipe = smoke(
        shards, tmp_path, *TRAINED, *from_latents(latents), "stages.0.data.micro_batches_per_step=3"
    )
    (stage,) = data.lay_out(recipe)

    def read(size: int) -> list[list[tuple[int, tuple[str, ...], bytes, list[int]]]]:
        steps: list[list[Any]] = [[] for _ in range(4)]
        for rank in range(size):
            with data.open_loader(stage, recipe, rank=rank, world_size=size, on_event=pytest.fail) as loader:
                for step in range(4):
                    for batch in loader.step(step):
                        assert isinstance(loader, LatentLoader)
                        steps[step].append(
                            (
                                batch.position,
                                batch.clip_ids,
                                batch.latents.numpy().tobytes(),
                                batch.start_frame.tolist(),
                            )
                        )
        return [sorted(step) for step in steps]

    alone = read(1)
    assert read(2) == alone
    assert read(3) == alone
    assert [clip for step in alone for _, ids, _, _ in step for clip in ids] == [
        clip for step in range(4) for clip in data.step_plan(stage, step, recipe).clip_ids
    ]


def test_draws_from_a_posterior_and_tokens_of_t5_are_those_of_training_on_line(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "shards", num_clips=6, num_frames=12)
    make_vae(tmp_path / "vae")
    make_t5(
        tmp_path / "t5", ["a red square moves right", "a green square moves down", "blue, white, left, up"]
    )
    more = (
        *TRAINED,
        "stages.0.steps=2",
        "stages.0.data.views=1",
        f"video_encoder={{kind: vae, source: {tmp_path / 'vae'}, dtype: float32, posterior: sample}}",
        f"text_encoder={{kind: t5, source: {tmp_path / 't5'}, caption_channels: 32, model_max_length: 40}}",
        "model={hidden_size: 32, depth: 1, num_heads: 2, in_channels: 4, caption_channels: 32, "
        "model_max_length: 40, input_sq_size: 32}",
        "encoded={latent_dtype: bfloat16, text_dtype: bfloat16}",
    )
    encode(made, tmp_path / "latents", *more)
    manifest = read_manifest(tmp_path / "latents")
    assert manifest is not None
    assert manifest["kept"]["variance"]
    assert len(manifest["weights"]["video"]) == len(manifest["weights"]["text"]) == 64

    train(smoke(made, tmp_path / "line", *more))
    train(smoke(made, tmp_path / "ahead", *more, *from_latents(tmp_path / "latents")))
    mean = ("video_encoder.posterior=mean", *from_latents(tmp_path / "latents"))
    train(smoke(made, tmp_path / "mean", *more, *mean))

    assert numbers(tmp_path / "line") == numbers(tmp_path / "ahead")
    assert same_weights(tmp_path / "line", tmp_path / "ahead")
    assert numbers(tmp_path / "mean")[0]["loss"] != numbers(tmp_path / "line")[0]["loss"]


def test_texts_may_be_kept_as_the_frozen_projection_makes_them(shards: Path, tmp_path: Path) -> None:
    more = (*TRAINED, "stages.0.steps=2", "model.freeze_y_embedder=true", "model.skip_y_embedder=true")
    train(smoke(shards, tmp_path / "first", *more))
    begin = tmp_path / "first" / "step-00000002"
    weights = tmp_path / "weights.safetensors"
    from safetensors.torch import save_file

    save_file(checkpoint.load(begin).parts["model"], weights)
    with pytest.raises(InputError, match=r"Give the weights that training begins with: --ckpt-path PATH"):
        encode(shards, tmp_path / "latents", *more)
    encode(shards, tmp_path / "latents", *more, weights=str(weights))

    origin = Origin(ckpt_path=weights)
    train(smoke(shards, tmp_path / "line", *more), origin)
    train(smoke(shards, tmp_path / "ahead", *more, *from_latents(tmp_path / "latents")), origin)

    assert numbers(tmp_path / "line") == numbers(tmp_path / "ahead")
    assert same_weights(tmp_path / "line", tmp_path / "ahead")
    assert open_folder(tmp_path / "latents").texts.column("channels")[0].as_py() == 32  # the model's width
    with pytest.raises(
        ShardError, match=r"made by a caption projection with the digest .* Begin with the weights"
    ):
        train(smoke(shards, tmp_path / "other", *more, *from_latents(tmp_path / "latents"), "seed=7"))
    with pytest.raises(RecipeError, match=r"set model\.freeze_y_embedder=true"):
        smoke(shards, tmp_path / "run", "model.skip_y_embedder=true")


# ── the bytes are the same ──────────────────────────────────────────────────────────────────────────────────


def test_parts_write_the_bytes_of_one_process(shards: Path, latents: Path, tmp_path: Path) -> None:
    first = encode(shards, tmp_path / "out", part=(2, 2))
    assert not first.is_finished
    with pytest.raises(ShardError, match="encoding has not finished here; run the same command again"):
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
from tests.trainer.test_latents import encode
from trainer.latents import build, write
import trainer.encode_ahead

def die(*_): os.kill(os.getpid(), signal.SIGKILL)

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
            write.replace = die
        moment = int(moment) if moment.isdigit() else 10**9
        encode(shards, out, progress=lambda done, total, unit: done >= moment and die())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, (moment, status)
"""


def test_a_killed_encode_goes_on_to_the_bytes_of_an_undisturbed_one(
    shards: Path, latents: Path, tmp_path: Path
) -> None:
    moments = ["3", "record", "14", "29", "tables", "manifest"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLED, str(shards), str(tmp_path / "out"), *moments]
    subprocess.run(command, check=True, cwd=ROOT, env=environment, timeout=180)
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


def test_a_part_is_encoded_by_one_process_at_a_time(shards: Path, tmp_path: Path) -> None:
    request = request_of(smoke(shards, tmp_path, *TRAINED, FEW_CLIPS_A_SHARD))
    weights = {"video": None, "text": None, "projection": None}
    build.begin(tmp_path / "out", request.index, request.shards, request.identity, weights)
    with (
        build.holding(tmp_path / "out" / ".build" / "part-1-of-1.lock"),
        pytest.raises(StageError, match="another process is encoding this part"),
    ):
        encode(shards, tmp_path / "out")


# ── what is in the shards ───────────────────────────────────────────────────────────────────────────────────


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
    (stage,) = data.lay_out(recipe)
    encoder = video_encoder(recipe.video_encoder)
    folder, starts = open_folder(latents), set()
    with data.open_loader(stage, recipe, rank=0, world_size=1, on_event=pytest.fail) as loader:
        for step in range(6):
            for batch in loader.step(step):
                assert isinstance(batch, MicroBatch)
                wanted = encoder.encode(vidcurate.torch.pixels(batch))
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


def test_the_forecast_is_what_is_written(shards: Path, latents: Path, tmp_path: Path) -> None:
    recipe = smoke(shards, tmp_path, *TRAINED, FEW_CLIPS_A_SHARD)
    report = forecast(request_of(recipe))
    folder = open_folder(latents)

    assert report["clips"] == 12
    assert report["shards"] == len(folder.manifest["shards"])
    assert {line["shape"]: line["bytes"] for line in report["shapes"]} == {
        f"{line['num_frames']}f-{line['height']}x{line['width']}": line["bytes"]
        for line in folder.manifest["shapes"]
    }
    (stage,) = data.lay_out(recipe)
    expected = encoded.forecast(recipe, stage.plan, stage.stage.data)
    there = encoded.bytes_on_disk(folder, stage.plan, stage.stage.data)
    assert report["latent_bytes"] == expected["latents"] == there["latents"]
    assert 0 < there["texts"] < report["text_bytes_at_most"] == expected["texts_at_most"]


# ── faults have names ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def broken(latents: Path, tmp_path: Path) -> Path:
    return shutil.copytree(latents, tmp_path / "broken")


def a_row(folder: Path, view: int = 0) -> dict[str, Any]:
    return next(row for row in open_folder(folder).latents.to_pylist() if row["view"] == view)


def test_an_altered_byte_names_shard_and_clip(shards: Path, broken: Path, tmp_path: Path) -> None:
    row = a_row(broken)
    path = broken / row["shard"]
    content = bytearray(path.read_bytes())
    content[row["offset"] + 77] ^= 1
    path.write_bytes(content)

    said = re.escape(f"{path}: clip {row['clip_id']!r} has CRC-32 ")
    with pytest.raises(ShardError, match=f"{said}.* the table says {row['crc32']:08x}"):
        train(smoke(shards, tmp_path / "run", *TRAINED, *from_latents(broken)))


def test_a_shard_cut_while_it_is_read_names_shard_and_clip(
    shards: Path, broken: Path, tmp_path: Path
) -> None:
    recipe = smoke(shards, tmp_path / "run", *TRAINED, *from_latents(broken))
    (stage,) = data.lay_out(recipe)
    for path in broken.glob("8f-*.tar"):
        os.truncate(path, 600)
    with (
        data.open_loader(stage, recipe, rank=0, world_size=1, on_event=pytest.fail) as loader,
        pytest.raises(
            ShardError, match=r"8f-.*\.tar: ends \d+ bytes before clip 'clip-\d+' does\. Copy it anew"
        ),
    ):
        loader.step(0)


@pytest.mark.parametrize(
    ("hurt", "said"),
    [
        (
            lambda folder: os.truncate(folder / "text-000000.tar", 99),
            r"text-000000\.tar: has 99 bytes and the man",
        ),
        (
            lambda folder: (folder / "text-000000.tar").unlink(),
            r"text-000000\.tar: named by the manifest and cannot",
        ),
        (
            lambda folder: os.truncate(folder / "latents.parquet", 99),
            r"latents\.parquet: has 99 bytes and the man",
        ),
        (
            lambda folder: (folder / "texts.parquet").unlink(),
            r"texts\.parquet: named by the manifest and cannot",
        ),
        (lambda folder: (folder / "index.parquet").unlink(), r"index\.parquet: no such index"),
        (lambda folder: (folder / "manifest.json").unlink(), r"no latents there \(no manifest\.json\)"),
        (
            lambda folder: (folder / "manifest.json").write_text("{}"),
            r"its format is None, this version reads",
        ),
        (
            lambda folder: (folder / "manifest.json").write_text("{"),
            r"manifest\.json: cannot be read as JSON",
        ),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_by_name(
    broken: Path, hurt: Callable[[Path], object], said: str
) -> None:
    hurt(broken)
    with pytest.raises(ShardError, match=said):
        open_folder(broken)


def test_shards_of_clips_given_as_latents_are_told_so(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "manifest.json").write_text('{"format": "vidcurate-shards-1"}')
    with pytest.raises(ShardError, match=r"It is the manifest of clips: give it as data\.shards"):
        open_folder(tmp_path / "clips")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("video_encoder.temporal=2", None),  # does not fit the model: refused before
        ("text_encoder.pairs=false", r"text_encoder\.pairs is true there and false in the recipe"),
        (
            "encoded.latent_dtype=bfloat16",
            r'encoded\.latent_dtype is "float32" there and "bfloat16" in the rec',
        ),
        ("stages.0.data.captions=[caption, short_caption]", r"data\.captions is \[\"caption\"\] there and"),
    ],
)
def test_latents_of_another_recipe_are_refused_by_the_key(
    shards: Path, latents: Path, tmp_path: Path, more: str, said: str | None
) -> None:
    with pytest.raises(RecipeError, match=said):
        data.lay_out(smoke(shards, tmp_path, *TRAINED, *from_latents(latents), more))


def test_missing_clips_are_listed_with_the_command_and_counted_by_the_dry_run(
    shards: Path, latents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = (
        *TRAINED,
        *from_latents(latents),
        "stages.0.data.buckets.table={32px: {8: [[1.0, 0.5], 2], 4: [1.0, 2]}}",
    )
    recipe = smoke(shards, tmp_path / "run", *more)
    said = r"needs 2 views of clips that are not encoded: \d of level-1/32px-4f-.*\(clip-\d+.*-m trainer\.enc"
    with pytest.raises(InputError, match=said):
        data.lay_out(recipe)
    with pytest.raises(InputError, match="stage first needs 3 views of clips"):
        data.lay_out(smoke(shards, tmp_path, *TRAINED, *from_latents(latents), "stages.0.data.views=3"))

    (stage,) = dry_run.dry_run(recipe)["stages"]
    short = {cell["name"]: cell["clips"] for cell in stage["cells"] if "-4f-" in cell["name"]}
    assert {part["cell"]: part["clips"] for part in stage["latents"]["missing"]} == short
    assert stage["latents"]["missing_clips"] == sum(short.values()) > 0
    words = dry_run.in_words(dry_run.dry_run(recipe))
    assert "  missing in level-1/32px-4f-" in words
    whole = dry_run.dry_run(smoke(shards, tmp_path / "run", *TRAINED, *from_latents(latents)))
    clips = dry_run.dry_run(smoke(shards, tmp_path / "run", *TRAINED))
    assert whole["stages"][0]["latents"]["missing"] == []
    assert "encoded ahead" in dry_run.in_words(clips)
    for key in ("clips", "steps", "cells", "first_clip_ids", "plan_fingerprint", "structure_fingerprint"):
        assert whole["stages"][0][key] == clips["stages"][0][key]


@pytest.mark.parametrize(
    ("more", "names", "said"),
    [
        (("stages.0.data.views=null",), (), r"stages\.0\.data\.views is null: a new start frame"),
        ((), ("second",), r"--stage second: the recipe's stages are first"),
    ],
)
def test_what_cannot_be_encoded_ahead_is_refused(
    shards: Path, tmp_path: Path, more: tuple[str, ...], names: tuple[str, ...], said: str
) -> None:
    with pytest.raises(VidcurateError, match=said):
        request_of(smoke(shards, tmp_path, *TRAINED, *more), names)


def test_latents_without_views_or_no_data_at_all_are_refused(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="set views to what they were encoded with"):
        smoke(shards, tmp_path, "stages.0.data.latents=there")
    with pytest.raises(RecipeError, match="neither is given"):
        smoke(shards, tmp_path, "stages.0.data.shards=null")
    with pytest.raises(RecipeError, match=r"stages\.0\.data\.shards is not set"):
        request_of(smoke(shards, tmp_path, *TRAINED, *from_latents(tmp_path)))


def test_too_many_failures_end_the_encoding_by_name(hurt_shards: Path, tmp_path: Path) -> None:
    with pytest.raises(
        VidcurateError, match=r"max_failure_share 0 allows; the last: clip-005 \(too_few_frames\)"
    ):
        encode(hurt_shards, tmp_path / "out", "loader.max_failure_share=0.0")


# ── the command ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_example_of_the_help_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        encode_shards.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    encoding = re.search(r"python -m trainer\.encode_shards (\S+\.yaml .*)", text)
    training = re.search(r"python -m trainer (\S+\.yaml .*)", text)
    assert encoding is not None
    assert training is not None
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    make_shards(tmp_path / "demo" / "run" / "shards", num_clips=6, num_frames=15)
    monkeypatch.chdir(tmp_path)
    given = [*shlex.split(encoding[1]), "--set", "stages.0.data.small_cells=shrink"]  # three clips

    assert encode_shards.main([*given, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("3 clips of level-1, 2 shards\n")
    assert not (tmp_path / "demo" / "latents").exists()
    assert encode_shards.main([*given, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["clips"], answer["latents"], answer["is_finished"]) == (3, 3, True)
    assert encode_shards.main(given) == 0
    assert "up to date; 3 latents" in capsys.readouterr().out
    short = [
        f"--set=stages.{number}.{key}" for number in (0, 1) for key in ("steps=1", "data.small_cells=shrink")
    ]
    assert trainer_command.main([*shlex.split(training[1]), *short, "--set=sample=null"]) == 0
    assert capsys.readouterr().out.startswith("done: 2 steps")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--part", "2"], "--part 2: write it as I/N"),
        (["--part", "3/2"], "--part 3/2: it must lie in 1/2 to 2/2"),
        (["--stage", "x"], "--stage x: the recipe's stages are first"),
        (["--set", "encoded.latent_dtyp=bfloat16"], "Did you mean encoded.latent_dtype?"),
    ],
)
def test_what_is_wrong_is_one_line_and_an_exit_code(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    settings = [f"stages.0.data.shards={shards}", "stages.0.data.views=1"]
    given = [str(SMOKE), "--out", str(tmp_path / "out"), *(w for value in settings for w in ("--set", value))]
    assert encode_shards.main([*given, *more]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_a_rank_of_torchrun_takes_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    assert encode_shards._part(None) == (1, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert encode_shards._part(None) == (3, 8)
    assert encode_shards._part("1/4") == (1, 4)


def test_only_true_tokens_are_kept_and_padding_is_made_anew() -> None:
    texts = [torch.ones(2, 4), torch.full((3, 4), 2.0)]
    y, mask = inputs._padded(texts, 5, torch.device("cpu"))
    assert y.shape == (2, 1, 5, 4)
    assert mask.tolist() == [[True, True, False, False, False], [True, True, True, False, False]]
    assert y[:, 0].sum((1, 2)).tolist() == [8, 24]
