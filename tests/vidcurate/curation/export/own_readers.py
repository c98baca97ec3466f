"""Read exported folders with the dataset code of the trainers themselves, and print what they see as JSON.

`python own_readers.py TRAINER OUT…`, with the packages of tests/trainers.txt on PYTHONPATH. Each reader
returns what the trainer's code yields for one fold: `path` of the clip, its captions, the pixels' (frames,
height, width) after the trainer's own cropping, and, where the trainer counts or keeps them, `num_frames` and
`fps`.
"""

import contextlib
import importlib.util
import io
import json
import os
import pickle
import shlex
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Row = dict[str, Any]
MODEL_INDEX = {"_class_name": "WanPipeline", "_diffusers_version": "0.33.0"}


def _arguments(script: Path, after: str) -> list[str]:
    """Return the words of an exported script's command that follow the word `after`."""
    words = shlex.split(script.read_text(encoding="utf-8"), comments=True)
    return [word for word in words[words.index(after) + 1 :] if word != "$@"]


def cosmos_predict2(out: Path, fold: str) -> list[Row]:
    """cosmos-predict2: cosmos_predict2.data.dataset_video.Dataset, as cosmos-predict2.py configures it.

    The T5 embeddings that its script computes from metas/ are made here, one row with the text's bytes, so
    that what the dataset returns says which text belongs to which clip.
    """
    import numpy as np
    from cosmos_predict2.data.dataset_video import Dataset

    settings: dict[str, Any] = {"L": lambda target: partial(partial, target), "Dataset": Dataset}
    exec((out / "cosmos-predict2.py").read_text(encoding="utf-8"), settings)
    configured = settings["example_video_dataset"]
    root = Path(configured.keywords["dataset_dir"]).parent / fold
    (root / "t5_xxl").mkdir(exist_ok=True)
    for text in (root / "metas").glob("*.txt"):
        row = np.zeros((1, 1024), dtype=np.float32)
        code = np.frombuffer(text.read_bytes().strip(), dtype=np.uint8)
        row[0, : len(code)] = code
        (root / "t5_xxl" / f"{text.stem}.pickle").write_bytes(pickle.dumps([row]))
    dataset = configured(dataset_dir=str(root))
    rows = []
    for index in range(len(dataset)):
        item = dataset[index]
        embedding = item["t5_text_embeddings"][0].numpy()
        rows.append(
            {
                "path": item["video_name"]["video_path"],
                "captions": [embedding[embedding > 0].astype(np.uint8).tobytes().decode()],
                "pixels": list(item["video"].shape[1:]),
                "fps": item["fps"],
            }
        )
    return rows


def diffsynth(out: Path, fold: str) -> list[Row]:
    """diffsynth: diffsynth.core.UnifiedDataset with its own argument parser and video operator."""
    import argparse

    from diffsynth.core.data.operators import LoadVideo
    from diffsynth.core.data.unified_dataset import UnifiedDataset
    from diffsynth.diffusion.parsers import add_dataset_base_config, add_video_size_config

    parser = add_video_size_config(add_dataset_base_config(argparse.ArgumentParser()))
    args = parser.parse_args(_arguments(out / "diffsynth.sh", "$TRAIN"))
    metadata = args.dataset_metadata_path.replace("diffsynth.train", f"diffsynth.{fold}")
    operator = UnifiedDataset.default_video_operator(
        base_path=args.dataset_base_path, max_pixels=args.max_pixels, height=args.height, width=args.width,
        num_frames=args.num_frames,
    )  # fmt: skip
    dataset = UnifiedDataset(
        base_path=args.dataset_base_path, metadata_path=metadata, repeat=args.dataset_repeat,
        data_file_keys=args.data_file_keys.split(","), main_data_operator=operator,
    )  # fmt: skip
    rows = []
    for index in range(len(dataset)):
        item, path = dataset[index], os.path.join(args.dataset_base_path, dataset.data[index]["video"])
        reader = LoadVideo().get_reader(path)
        rows.append(
            {
                "path": path,
                "captions": [item["prompt"]],
                "pixels": [len(item["video"]), *item["video"][0].size[::-1]],
                "num_frames": reader.count_frames(),
                "fps": reader.get_meta_data()["fps"],
            }
        )
        reader.close()
    return rows


def fastvideo(out: Path, fold: str) -> list[Row]:
    """fastvideo: its argument parser on our command, its preprocessing workflow's loader and frame stage."""
    from fastvideo.distributed import maybe_init_distributed_environment_and_model_parallel
    from fastvideo.fastvideo_args import FastVideoArgs
    from fastvideo.pipelines.preprocess.preprocess_stages import VideoTransformStage
    from fastvideo.utils import FlexibleArgumentParser
    from fastvideo.workflow.workflow_base import WorkflowBase

    model = Path(os.environ["HF_HOME"]) / "model"
    model.mkdir(exist_ok=True)
    (model / "model_index.json").write_text(json.dumps(MODEL_INDEX))
    words = _arguments(out / "fastvideo.sh", "fastvideo.pipelines.preprocess.v1_preprocessing_new")
    words = [str(model) if word == "$MODEL" else word for word in words]
    parser = FastVideoArgs.add_cli_args(FlexibleArgumentParser())
    args = FastVideoArgs.from_cli_args(parser.parse_args(words))
    config = args.preprocess_config
    config.dataset_path = str(Path(config.dataset_path).parent / fold)
    config.dataloader_num_workers, config.preprocess_video_batch_size = 0, 1
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    maybe_init_distributed_environment_and_model_parallel(1, 1)
    kind = WorkflowBase.get_workflow_cls(args)
    workflow = kind.__new__(kind)  # without its pipelines, which need the model's weights
    workflow.fastvideo_args, workflow._components = args, {}
    workflow.register_components()
    stage = VideoTransformStage(
        config.train_fps, config.num_frames, config.max_height, config.max_width, config.do_temporal_sample
    )
    rows = []
    for batch in workflow.training_dataloader:
        (item,) = batch
        pixels = stage.forward(workflow.video_forward_batch_builder(batch), args).latents
        rows.append(
            {
                "path": os.path.join(config.dataset_path, "videos", item["name"]),
                "captions": item["caption"],
                "pixels": list(pixels.shape[2:]),
                "num_frames": item["video"].metadata.num_frames,
                "fps": item["video"].metadata.average_fps,
            }
        )
    return rows


def finetrainers(out: Path, fold: str) -> list[Row]:
    """finetrainers: initialize_dataset and the preprocessing wrapper, with finetrainers.json.

    The package's `__init__` is left unexecuted, since the wheels lack its finetrainers.patches.dependencies.
    """
    spec = importlib.util.find_spec("finetrainers")
    assert spec is not None
    sys.modules["finetrainers"] = importlib.util.module_from_spec(spec)
    from finetrainers.data.dataset import initialize_dataset, wrap_iterable_dataset_for_preprocessing

    (config,) = json.loads((out / "finetrainers.json").read_text(encoding="utf-8"))["datasets"]
    root, kind = Path(config.pop("data_root")), config.pop("dataset_type")
    dataset = initialize_dataset(str(root.parent / fold), kind, streaming=True, infinite=False)
    raw = [(sample["video"], sample["caption"]) for sample in dataset]
    paths = [item["video"]["path"] for item in dataset._data.cast_column("video", _undecoded())]
    dataset.load_state_dict({"sample_index": 0})
    rows = []
    wrapped = wrap_iterable_dataset_for_preprocessing(dataset, kind, config)
    for path, (reader, caption), sample in zip(paths, raw, wrapped, strict=True):
        frames, _, height, width = sample["video"].shape
        assert sample["caption"] == caption
        rows.append(
            {
                "path": path,
                "captions": [caption],
                "pixels": [frames, height, width],
                "num_frames": sample["_original_num_frames"],
                "fps": reader.get_avg_fps(),
            }
        )
    return rows


def _undecoded() -> Any:
    import datasets

    return datasets.Video(decode=False)


def simpletuner(out: Path, fold: str) -> list[Row]:
    """simpletuner: factory's check of the backend, its file list, video loader, frame rule and prompts."""
    from simpletuner.helpers.data_backend.factory import init_backend_config
    from simpletuner.helpers.data_backend.local import LocalDataBackend
    from simpletuner.helpers.metadata.backends.discovery import DiscoveryMetadataBackend
    from simpletuner.helpers.prompts import PromptHandler
    from simpletuner.helpers.training import image_file_extensions
    from simpletuner.helpers.training.state_tracker import StateTracker

    name = _arguments(out / "simpletuner.sh", "train")[0].partition("=")[2]
    (backend,) = [one for one in json.loads(Path(name).read_text()) if one["id"] == f"vidcurate-{fold}"]
    args = SimpleNamespace(
        controlnet=False, framerate=16, model_family="wan", model_flavour="", model_type="lora",
        resolution=backend["resolution"], resolution_type="pixel", minimum_image_size=None,
        maximum_image_size=None, target_downsample_size=None, train_batch_size=1, caption_strategy="textfile",
    )  # fmt: skip
    StateTracker.set_args(args)
    config = init_backend_config(backend, args, None)["config"]
    StateTracker.set_data_backend_config(backend["id"], config)
    local = LocalDataBackend(None, backend["id"])
    root, video = backend["instance_data_dir"], config.get("video", {})
    metadata = DiscoveryMetadataBackend(
        id=backend["id"], instance_data_dir=root, data_backend=local, accelerator=None, batch_size=1,
        cache_file=os.path.join(root, "indices"), metadata_file=os.path.join(root, "metadata"),
        resolution=backend["resolution"], resolution_type=backend["resolution_type"],
        num_frames=video.get("num_frames"), minimum_num_frames=video.get("min_frames"),
    )  # fmt: skip
    rows = []
    for path in [path for _, _, paths in local.list_files(image_file_extensions, root) for path in paths]:
        frames = local.read_image(path)
        if not metadata.meets_resolution_requirements(image=frames):
            continue
        found = PromptHandler.magic_prompt(path, True, config["caption_strategy"], False, local)
        rows.append(
            {
                "path": path,
                "captions": [found] if isinstance(found, str) else found,
                "pixels": list(frames.shape[:3]),
                "num_frames": len(frames),
            }
        )
    return rows


def folds_of(out: Path) -> list[Path]:
    return [out / fold for fold in ("train", "validation") if (out / fold).is_dir()]


def main(trainer: str, outs: list[str]) -> None:
    """Print {out: {fold: rows}} as one line of JSON; what the trainers print goes to stderr."""
    read = globals()[trainer.replace("-", "_")]
    with contextlib.redirect_stdout(io.TextIOWrapper(sys.stderr.buffer, write_through=True)):
        found = {out: {fold.name: read(Path(out), fold.name) for fold in folds_of(Path(out))} for out in outs}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
