"""Manifests of trainers that read one list of clips.

LTX-2's trainer, VideoX-Fun, FastVideo, DiffSynth-Studio, CogVideoX fine-tuning, Hugging Face `datasets`.
"""

import io
import math

import polars as pl

from vidcurate.curation.export.trainers.exported import (
    Exported,
    Files,
    Link,
    as_json,
    command,
    quoted,
    script,
)
from vidcurate.errors import counted

_HF_COLUMNS: dict[str, pl.DataType] = {
    "file_name": pl.String(),
    "text": pl.String(),
    "captions": pl.List(pl.String()),
    "caption_names": pl.List(pl.String()),
    "clip_id": pl.String(),
    "fps": pl.Float64(),
    "num_frames": pl.Int64(),
    "duration_seconds": pl.Float64(),
    "width": pl.Int64(),
    "height": pl.Int64(),
}
_SCALARS = (pl.Int64(), pl.Float64(), pl.Boolean(), pl.String())
_OWN_DTYPES = (*_SCALARS, *(pl.List(scalar) for scalar in _SCALARS))  # see own_columns


def ltx(export: Exported) -> Files:
    """Return the LTX trainers' dataset.json of each fold and the resolution buckets.

    Source: Lightricks/LTX-2 packages/ltx-trainer/docs/dataset-preparation.md: columns `caption` and `video`,
    relative to the file (so that latents keep the path below theirs); several buckets need batch size 1.
    """
    files: Files = {}
    for fold in export.folds:
        items = [{"caption": clip.caption, "video": clip.path} for clip in export.of(fold)]
        files[f"ltx.{fold}.json"] = as_json(items)
    buckets = ";".join(f"{w}x{h}x{f}" for w, h, f in export.buckets)
    files["ltx.yaml"] = "\n".join(
        [
            "data:",
            f"  preprocessed_data_root: {quoted(export.path('.precomputed'))}",
            "optimization:",
            f"  batch_size: 1  # {len(export.buckets)} resolution bucket(s); more than one needs 1",
            "",
        ]
    )
    files["ltx.sh"] = script(
        [
            command(
                "uv", "run", "python", "scripts/process_dataset.py", export.path("ltx.train.json"),
                "--resolution-buckets", buckets, "--model-path", "$MODEL", "--text-encoder-path", "$GEMMA",
            )
        ]
    )  # fmt: skip
    return files


def videox_fun(export: Exported) -> Files:
    """Return VideoX-Fun's metadata of each fold; `type` is there, or a video would be read as an image.

    Source: aigc-apps/VideoX-Fun videox_fun/data/dataset_image_video.py ImageVideoDataset. Its default takes
    every fourth frame; clips of a fit have the model's rate, so the stride is 1.
    """
    files: Files = {}
    for fold in export.folds:
        items = [{"file_path": clip.path, "text": clip.caption, "type": "video"} for clip in export.of(fold)]
        files[f"videox-fun.{fold}.json"] = as_json(items)
    size = min(export.common_size)
    files["videox-fun.sh"] = script(
        [
            f"export DATASET_NAME={command(str(export.root) + '/')}",
            f"export DATASET_META_NAME={command(export.path('videox-fun.train.json'))}",
            "# The script that you train with; it reads both variables and takes these arguments.",
            'exec "$1" --train_data_dir="$DATASET_NAME" --train_data_meta="$DATASET_META_NAME" \\',
            f"  --video_sample_size={size} --video_sample_stride=1 \\",
            f"  --video_sample_n_frames={export.fewest_frames} --video_repeat=1",
        ]
    )
    return files


def fastvideo(export: Exported) -> Files:
    """Return FastVideo's folder of each fold (`videos`, a link, and videos2caption.json) and its settings.

    Source: hao-ai-lab/FastVideo docs/training/data_preprocess.md, fastvideo/dataset/
    preprocessing_datasets.py: DataValidationStage drops videos without `fps` and `duration`;
    FrameSamplingStage counts ceil(fps x duration) frames. fastvideo/workflow/preprocess/components.py
    _validate_frame_sampling drops clips longer than `video-length-tolerance-range` (2 unless set) times the
    trained length, and clips that have fewer than `num-frames` frames at `train-fps`. fastvideo/utils.py
    FlexibleArgumentParser: `--config` may not come first, and dotted keys are spelled with dashes.
    """
    files: Files = {}
    for fold in export.folds:
        items = [
            {
                "path": clip.name,
                "cap": list(clip.captions),
                "resolution": {"width": clip.width, "height": clip.height},
                "fps": clip.fps,
                "duration": clip.seconds,
                "num_frames": clip.num_frames,
            }
            for clip in export.of(fold)
        ]
        files[f"fastvideo/{fold}/videos"] = Link(f"../../{fold}")
        files[f"fastvideo/{fold}/videos2caption.json"] = as_json(items)
    width, height = export.common_size
    rate = math.ceil(export.rate or max(clip.fps for clip in export.clips))
    longest = max(clip.num_frames / clip.fps for clip in export.clips)
    files["fastvideo.yaml"] = "\n".join(
        [
            "mode: preprocess",
            "workload-type: t2v",
            "preprocess:",
            "  dataset-type: merged",
            f"  dataset-path: {quoted(export.path('fastvideo/train'))}",
            f"  dataset-output-dir: {quoted(export.path('cache/fastvideo/train'))}",
            f"  max-height: {height}",
            f"  max-width: {width}",
            f"  num-frames: {export.fewest_frames}",
            f"  train-fps: {rate}",
            f"  video-length-tolerance-range: {math.floor(longest * rate / export.fewest_frames) + 1}",
            "",
        ]
    )
    files["fastvideo.sh"] = script(
        [
            "# MODEL: the model's folder or its name on the hub.",
            command(
                "torchrun", "--nproc_per_node=1", "-m", "fastvideo.pipelines.preprocess.v1_preprocessing_new",
                "--mode=preprocess", "--config", export.path("fastvideo.yaml"),
                "--model-path", "$MODEL", "$@",
            ),
        ]
    )  # fmt: skip
    return files


def diffsynth(export: Exported) -> Files:
    """Return DiffSynth-Studio's metadata of each fold: columns `video` and `prompt`.

    Source: modelscope/DiffSynth-Studio docs/en/Pipeline_Usage/Model_Training.md, diffsynth/core/data/
    unified_dataset.py: frames are read one by one at the file's rate.
    """
    files: Files = {}
    for fold in export.folds:
        items = [{"video": clip.path, "prompt": clip.caption} for clip in export.of(fold)]
        files[f"diffsynth.{fold}.json"] = as_json(items)
    width, height = export.common_size
    files["diffsynth.sh"] = script(
        [
            "# $1: the model's train.py; then its own arguments.",
            'TRAIN="$1"; shift',
            command(
                "accelerate", "launch", "$TRAIN", "--dataset_base_path", export.root,
                "--dataset_metadata_path", export.path("diffsynth.train.json"), "--data_file_keys", "video",
                "--height", height, "--width", width, "--num_frames", export.fewest_frames, "$@",
            ),
        ]
    )  # fmt: skip
    return files


def cogvideo(export: Exported) -> Files:
    """Return CogVideoX's lists of each fold: line i of the prompts is line i of the videos.

    Source: zai-org/CogVideo finetune/README.md, finetune/datasets/utils.py load_prompts, load_videos: blank
    lines are dropped and each line break starts a clip, so every prompt is one line that is not blank.
    """
    files: Files = {}
    for fold in export.folds:
        clips = export.of(fold)
        files[f"cogvideo.{fold}.prompts.txt"] = "".join(
            " ".join(clip.caption.split()) + "\n" for clip in clips
        )
        files[f"cogvideo.{fold}.videos.txt"] = "".join(f"{clip.path}\n" for clip in clips)
    width, height = export.common_size
    files["cogvideo.sh"] = script(
        [
            "# Arguments for accelerate_train_t2v.sh, in place of its DATA_ARGS.",
            command(
                "accelerate", "launch", "train.py", "--data_root", export.root,
                "--caption_column", "cogvideo.train.prompts.txt",
                "--video_column", "cogvideo.train.videos.txt",
                "--train_resolution", f"{export.fewest_frames}x{height}x{width}", "$@",
            ),
        ]
    )  # fmt: skip
    return files


def hf(export: Exported) -> Files:
    """Return what makes each fold a `videofolder` split: metadata.parquet, and README.md with the splits.

    Source: huggingface/datasets docs/source/video_dataset.mdx, folder_based_builder.py (METADATA_FILENAMES).
    Parquet, since other readers of the same folder take a metadata.csv or .jsonl for a clip. Own columns of
    the run are columns here.
    """
    files: Files = {}
    own = {name if name not in _HF_COLUMNS else f"own_{name}": name for name in export.own_dtypes}
    dtypes = {str(dtype): dtype for dtype in _OWN_DTYPES}
    schema = _HF_COLUMNS | {column: dtypes[export.own_dtypes[name]] for column, name in own.items()}
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    for fold in export.folds:
        rows = [
            {
                "file_name": clip.name,
                "text": clip.caption,
                "captions": list(clip.captions),
                "caption_names": list(clip.caption_names),
                "clip_id": clip.clip_id,
                "fps": clip.fps,
                "num_frames": clip.num_frames,
                "duration_seconds": clip.seconds,
                "width": clip.width,
                "height": clip.height,
                **{column: clip.own.get(name) for column, name in own.items()},
            }
            for clip in export.of(fold)
        ]
        buffer = io.BytesIO()
        pl.DataFrame(rows, schema=schema).write_parquet(buffer)
        files[f"{fold}/metadata.parquet"] = buffer.getvalue()
        lines += [f"  - split: {fold}", "    path:", f"    - {fold}/*.mp4", f"    - {fold}/metadata.parquet"]
    files["README.md"] = "\n".join(
        [*lines, "---", "", f"{counted(len(export.clips), 'clip')} with captions.", ""]
    )
    code = f"import datasets; print(datasets.load_dataset({str(export.root)!r}))"
    files["hf.sh"] = script([command("python", "-c", code)])
    return files
