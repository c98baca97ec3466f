"""Readers of exported folders by the rules of each trainer's own dataset code.

Each returns video → captions of one fold as that trainer would see them: {path of the real file: [captions]}.
Written from the code named in each docstring; none of it is copied.
"""

import csv
import json
import math
import os
import tomllib
from pathlib import Path
from typing import Any

import av
import pyarrow.parquet as pq
import yaml

Read = dict[Path, list[str]]
FINETRAINERS_CAPTION_LISTS = ("caption.txt", "captions.txt", "prompt.txt", "prompts.txt")
DIFFUSION_PIPE_SKIPPED = (".txt", ".npz", ".json", ".parquet", ".bak", ".db")


def probe(path: Path) -> tuple[int, float, int, int]:
    """Return (frames, frames/s, width, height) of a video, counted by decoding it."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        rate = float(stream.average_rate)
        return sum(1 for _ in container.decode(stream)), rate, stream.width, stream.height


def _pairs(folder: Path) -> Read:
    """Pair each video of a folder (not of its sub-folders) with the text of the same stem."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in (".mp4", ".mov"):
            found[path.resolve()] = [path.with_suffix(".txt").read_text(encoding="utf-8").strip()]
    return found


def finetrainers(out: Path, fold: str) -> Read:
    """a-r-r-o-w/finetrainers finetrainers/data/dataset.py:37-40, 516: caption lists win over pairs."""
    config = json.loads((out / "finetrainers.json").read_text())["datasets"][0]
    assert config["dataset_type"] == "video"
    root = Path(config["data_root"]).parent / fold
    names = {path.name for path in root.iterdir()}
    assert not names & {*FINETRAINERS_CAPTION_LISTS, "video.txt", "videos.txt"}
    assert not names & {"metadata.csv", "metadata.json", "metadata.jsonl"}
    assert {path.suffix for path in root.iterdir()} == {".mp4", ".txt"}  # .parquet, .tar: a WebDataset
    read = _pairs(root)
    if fold == "train":
        shapes = {probe(path)[:1] + probe(path)[3:1:-1] for path in read}
        assert shapes <= {tuple(bucket) for bucket in config["video_resolution_buckets"]}
    return read


def diffusion_pipe(out: Path, fold: str) -> Read:
    """tdrussell/diffusion-pipe utils/dataset.py:517 (files), 588-640 (frames), _find_closest_ar_bucket."""
    config = tomllib.loads((out / f"diffusion-pipe.{fold}.toml").read_text())
    (directory,) = config["directory"]
    assert "size_buckets" not in config
    assert len(config["resolutions"]) == 1
    folder = Path(directory["path"])
    captions = json.loads((folder / "captions.json").read_text())
    if "ar_buckets" in config:
        ratios = [width / height for width, height in config["ar_buckets"]]
    else:
        ratios = [config["min_ar"], config["max_ar"]]
    found = {}
    for path in sorted(folder.glob("*")):
        if not path.is_file() or path.suffix in DIFFUSION_PIPE_SKIPPED:
            continue
        assert isinstance(captions[path.name], list)
        num_frames, rate, width, height = probe(path)
        if "ar_buckets" in config:
            assert min(abs(math.log(width / height / ratio)) for ratio in ratios) == 0
        else:
            assert min(ratios) * 0.999 < width / height < max(ratios) * 1.001
        # The decoded count, and an estimate from a header that is printed to hundredths of a second.
        for frames in (num_frames, int(rate * round(num_frames / rate - 0.005, 2))):
            bucket = max((count for count in config["frame_buckets"] if 1 < count <= frames), default=0)
            if "ar_buckets" in config:
                assert frames - bucket < 8, f"{path.name}: {frames} frames, {config['frame_buckets']}"
        found[path.resolve()] = captions[path.name]
    return found


def musubi(out: Path, fold: str) -> Read:
    """kohya-ss/musubi-tuner src/musubi_tuner/dataset/image_video_dataset.py:152-171, 861-884."""
    config = tomllib.loads((out / f"musubi.{fold}.toml").read_text())
    caches = [one["cache_directory"] for one in config["datasets"]]
    assert len(set(caches)) == len(caches)
    found: Read = {}
    for dataset in config["datasets"]:
        assert dataset["frame_extraction"] == "full"
        for line in Path(dataset["video_jsonl_file"]).read_text(encoding="utf-8").splitlines():
            item = json.loads(line)
            path = Path(item["video_path"])
            num_frames, rate, *_ = probe(path)
            assert num_frames <= dataset["max_frames"]
            if "source_fps" in dataset:
                assert isinstance(dataset["source_fps"], float)
                assert abs(dataset["source_fps"] - rate) < 1e-3
            found[path.resolve()] = [item["caption"]]
    return found


def ltx(out: Path, fold: str) -> Read:
    """Lightricks/LTX-2 ltx_trainer/datasets.py, scripts/process_videos.py:566: output paths are relative."""
    name = out / f"ltx.{fold}.json"
    found = {}
    for item in json.loads(name.read_text(encoding="utf-8")):
        path = name.parent / item["video"]
        assert ".." not in path.relative_to(name.parent).parts
        found[path.resolve()] = [item["caption"]]
    return found


def videox_fun(out: Path, fold: str) -> Read:
    """aigc-apps/VideoX-Fun videox_fun/data/dataset_image_video.py ImageVideoDataset: type, default image."""
    found = {}
    for item in json.loads((out / f"videox-fun.{fold}.json").read_text(encoding="utf-8")):
        assert item.get("type", "image") == "video"
        found[Path(os.path.join(f"{out}/", item["file_path"])).resolve()] = [item["text"]]
    return found


def fastvideo(out: Path, fold: str) -> Read:
    """hao-ai-lab/FastVideo fastvideo/dataset/preprocessing_datasets.py:105-130 (drop), FrameSamplingStage."""
    root = out / "fastvideo" / fold
    config = yaml.safe_load((out / "fastvideo.yaml").read_text())["preprocess"]
    if fold == "train":
        assert Path(config["dataset-path"]) == root
    longest = config["video-length-tolerance-range"] * config["num-frames"] / config["train-fps"]
    found = {}
    for item in json.loads((root / "videos2caption.json").read_text(encoding="utf-8")):
        assert item.get("cap") is not None
        assert item["path"].endswith(".mp4")
        path = root / "videos" / item["path"]
        num_frames, rate, width, height = probe(path)
        assert math.ceil(item["fps"] * item["duration"]) == num_frames == item["num_frames"]
        assert abs(item["fps"] - rate) < 1e-3
        assert item["resolution"] == {"width": width, "height": height}
        assert config["num-frames"] <= num_frames * config["train-fps"] / rate
        assert num_frames / rate <= longest
        found[path.resolve()] = item["cap"]
    return found


def diffsynth(out: Path, fold: str) -> Read:
    """modelscope/DiffSynth-Studio diffsynth/core/data/unified_dataset.py; parsers.py:9 (base path)."""
    items = json.loads((out / f"diffsynth.{fold}.json").read_text(encoding="utf-8"))
    return {(out / item["video"]).resolve(): [item["prompt"]] for item in items}


def automodel(out: Path, fold: str) -> Read:
    """NVIDIA-NeMo/Automodel tools/diffusion/processors/caption_loaders.py: no caption is the file's name."""
    folder = out / fold
    captions = {
        item["file_name"]: item["caption"]
        for item in json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    }
    return {path.resolve(): [captions[path.name]] for path in sorted(folder.glob("*.mp4"))}


def cosmos_predict2(out: Path, fold: str) -> Read:
    """nvidia-cosmos/cosmos-predict2 cosmos_predict2/data/dataset_video.py; scripts/get_t5_embeddings.py."""
    root = out / "cosmos-predict2" / fold
    settings: dict[str, Any] = {}
    code = (out / "cosmos-predict2.py").read_text()
    exec(code.replace("L(Dataset)", "dict"), settings)
    wanted = settings["example_video_dataset"]["num_frames"]
    found = {}
    for name in sorted(os.listdir(root / "videos")):
        if name.endswith(".mp4"):
            text = (root / "metas" / name.replace(".mp4", ".txt")).read_text(encoding="utf-8")
            assert probe(root / "videos" / name)[0] > wanted
            found[(root / "videos" / name).resolve()] = [text.strip()]
    assert wanted % 4 == 1
    assert len([name for name in os.listdir(root / "metas") if name.endswith(".txt")]) == len(found)
    return found


def cogvideo(out: Path, fold: str) -> Read:
    """zai-org/CogVideo finetune/datasets/utils.py load_prompts, load_videos: lines that are not blank."""

    def lines(name: str) -> list[str]:
        with (out / name).open(encoding="utf-8") as file:
            return [line.strip() for line in file.readlines() if line.strip()]

    prompts, videos = lines(f"cogvideo.{fold}.prompts.txt"), lines(f"cogvideo.{fold}.videos.txt")
    return {(out / video).resolve(): [text] for video, text in zip(videos, prompts, strict=True)}


def mochi(out: Path, fold: str) -> Read:
    """genmoai/mochi demos/fine_tuner/trim_and_crop_videos.py, dataset.py:15: x.mp4 with x.txt."""
    return _pairs(out / fold)


def simpletuner(out: Path, fold: str) -> Read:
    """bghira/SimpleTuner documentation/DATALOADER.md:215 textfile: each line is one caption."""
    (backend,) = [
        one for one in json.loads((out / "simpletuner.json").read_text()) if one["id"] == f"vidcurate-{fold}"
    ]
    assert backend["caption_strategy"] == "textfile"
    found = {}
    for path in sorted(Path(backend["instance_data_dir"]).glob("*.mp4")):
        assert probe(path)[0] >= backend["video"]["min_frames"]
        found[path.resolve()] = path.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    return found


def hf(out: Path, fold: str) -> Read:
    """huggingface/datasets src/datasets/packaged_modules/folder_based_builder/folder_based_builder.py."""
    front = (out / "README.md").read_text().split("---\n")[1]
    (splits,) = [one["data_files"] for one in yaml.safe_load(front)["configs"]]
    (patterns,) = [one["path"] for one in splits if one["split"] == fold]
    files = {path for pattern in patterns for path in out.glob(pattern)}
    (metadata,) = [path for path in files if path.name == "metadata.parquet"]
    found = {}
    for row in pq.read_table(metadata).to_pylist():
        path = metadata.parent / row["file_name"]
        assert path in files
        num_frames, rate, width, height = probe(path)
        assert (row["num_frames"], row["width"], row["height"]) == (num_frames, width, height)
        assert abs(row["fps"] - rate) < 1e-3
        assert row["captions"][0] == row["text"]
        found[path.resolve()] = [row["text"]]
    assert len(found) == len(files) - 1
    return found


def table_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of an exported CSV."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
