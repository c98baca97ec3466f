"""Manifests of trainers that read a folder of KEY.mp4 and KEY.txt.

finetrainers, diffusion-pipe, musubi-tuner, Mochi's fine-tuner, SimpleTuner, NeMo Automodel, Cosmos-Predict2.
"""

import math
from fractions import Fraction

from vidcurate.curation.export.trainers.exported import (
    Exported,
    ExportedClip,
    Files,
    Link,
    as_json,
    as_jsonl,
    command,
    quoted,
    script,
)

_MOST_VALIDATED = 8  # clips that finetrainers generates at each validation
# Model → how musubi-tuner's scripts for it begin; those for Wan otherwise.
_MUSUBI_SCRIPTS = {"hunyuan": "", "hunyuan1.5": "hv_1_5_"}
_MOST_ASPECTS = 16  # buckets of diffusion-pipe; of more, most would hold too few clips for a batch
_SHORTEST_BUCKET = 17  # frames of diffusion-pipe's first bucket for clips of unequal shape


def finetrainers(export: Exported) -> Files:
    """Return finetrainers' folder of links for each fold, its dataset and validation configurations.

    Source: a-r-r-o-w/finetrainers docs/dataset/README.md "Caption-Data filename pair format" and "Validation
    Dataset Format"; finetrainers/data/dataset.py _initialize_local_dataset: a folder with a Parquet file, as
    `hf` writes one beside the clips, is read as a WebDataset, so these folders hold clips and texts only.
    """
    files: Files = {
        f"finetrainers/{clip.fold}/{clip.key}{ending}": Link(f"../../{clip.fold}/{clip.key}{ending}")
        for clip in export.clips
        for ending in (".mp4", ".txt")
    }
    files |= {
        "finetrainers.json": as_json(
            {
                "datasets": [
                    {
                        "data_root": export.path("finetrainers/train"),
                        "dataset_type": "video",
                        "id": "vidcurate",
                        "video_resolution_buckets": [[f, h, w] for w, h, f in export.buckets],
                        "reshape_mode": "bicubic",
                        "remove_common_llm_caption_prefixes": True,
                    }
                ]
            }
        )
    }
    validated = export.of("validation")[:_MOST_VALIDATED]
    if validated:
        items = [
            {
                "caption": clip.caption,
                "height": clip.height,
                "width": clip.width,
                "num_frames": clip.num_frames,
                "frame_rate": clip.fps,
            }
            for clip in validated
        ]
        files["finetrainers.validation.json"] = as_json({"data": items})
    validation = (
        ["--validation_dataset_file", export.path("finetrainers.validation.json")] if validated else []
    )
    files["finetrainers.sh"] = script(
        [
            command(
                "torchrun",
                "train.py",
                "--dataset_config",
                export.path("finetrainers.json"),
                *validation,
                "$@",
            )
        ]
    )
    return files


def _estimates(clip: ExportedClip) -> tuple[int, int]:
    """Return the frames that diffusion-pipe may count: decoded, or int(fps x duration) of a header.

    A header that is printed to hundredths of a second loses one: 81 frames at 16 frames/s last 5.06 s.
    """
    hundredths = math.floor(clip.num_frames / clip.rate * 100)
    return clip.num_frames, math.floor(Fraction(hundredths, 100) * clip.rate)


def diffusion_pipe(export: Exported) -> Files:
    """Return diffusion-pipe's captions.json (lists) in each fold, and dataset.toml of each fold.

    Source: tdrussell/diffusion-pipe utils/dataset.py DirectoryDataset (skipped suffixes, captions.json,
    _find_closest_ar_bucket), examples/dataset.toml. Aspect and frame buckets, no `size_buckets`: there the
    trainer drops equal aspect ratios, and then takes a clip's bucket from the wrong place of the list. Each
    frame count is there as headers round it, too, for versions that estimate frames. One resolution only: a
    clip is read once for each.
    """
    files: Files = {}
    for fold in export.folds:
        clips = export.of(fold)
        files[f"{fold}/captions.json"] = as_json({clip.name: list(clip.captions) for clip in clips})
        files[f"diffusion-pipe.{fold}.toml"] = _diffusion_pipe_toml(export, fold, clips)
    train = export.path("diffusion-pipe.train.toml")
    lines = [f"# In your configuration: dataset = {quoted(train)}"]
    if "validation" in export.folds:
        name = export.path("diffusion-pipe.validation.toml")
        lines.append(f"# and eval_datasets = [{{name = 'validation', config = {quoted(name)}}}]")
    lines.append(command("deepspeed", "--num_gpus=1", "train.py", "--deepspeed", "--config", "$1"))
    files["diffusion-pipe.sh"] = script(lines)
    return files


def _diffusion_pipe_toml(export: Exported, fold: str, clips: list[ExportedClip]) -> str:
    shapes = sorted({(clip.width, clip.height) for clip in clips})
    if export.model is not None and len(shapes) <= _MOST_ASPECTS:
        width, height = export.common_size
        aspects = [f"ar_buckets = {quoted([list(shape) for shape in shapes])}"]
    else:
        width, height = min(shapes, key=lambda shape: shape[0] * shape[1])
        ratios = [shape[0] / shape[1] for shape in shapes]
        aspects = [
            f"min_ar = {min(ratios):.6g}",
            f"max_ar = {max(ratios):.6g}",
            f"num_ar_buckets = {min(_MOST_ASPECTS, len(shapes))}",
        ]
    if export.model is not None:
        most_valid = export.model.most_valid
        counts = {most_valid(frames) for clip in clips for frames in _estimates(clip)} - {0}
    else:
        counts = set(range(_SHORTEST_BUCKET, max(clip.num_frames for clip in clips) + 1, 16))
    return "\n".join(
        [
            f"resolutions = [[{width}, {height}]]",
            "enable_ar_bucket = true",
            *aspects,
            f"frame_buckets = {quoted([1, *sorted(counts)])}",
            "",
            "[[directory]]",
            f"path = {quoted(export.path(fold))}",
            "num_repeats = 1",
            "",
        ]
    )


def musubi(export: Exported) -> Files:
    """Return musubi-tuner's dataset configurations and JSONL files, one for each frame rate of a fold.

    Source: kohya-ss/musubi-tuner docs/dataset_config.md, src/musubi_tuner/dataset/image_video_dataset.py.
    Clips of a fit have no `source_fps`, so that every frame is used; others have theirs, a decimal number,
    without which the trainer plays each clip at the model's speed.
    """
    files: Files = {}
    for fold in export.folds:
        clips = export.of(fold)
        rates = sorted({clip.rate for clip in clips})
        is_kept = export.model is not None and export.model.fps is not None
        width, height = export.common_size
        lines = [
            "[general]",
            f"resolution = [{width}, {height}]",
            "batch_size = 1",
            "enable_bucket = true",
            "bucket_no_upscale = true",
        ]
        for rate in rates:
            name = f"musubi.{fold}.jsonl" if len(rates) == 1 else f"musubi.{fold}.{float(rate):.3f}.jsonl"
            chosen = [clip for clip in clips if clip.rate == rate]
            files[name] = as_jsonl(
                [{"video_path": export.path(clip.path), "caption": clip.caption} for clip in chosen]
            )
            lines += [
                "",
                "[[datasets]]",
                f"video_jsonl_file = {quoted(export.path(name))}",
                f"cache_directory = {quoted(export.path('cache/' + name.removesuffix('.jsonl')))}",
                'frame_extraction = "full"',
                f"max_frames = {max(clip.num_frames for clip in chosen)}",
            ]
            lines += [] if is_kept else [f"source_fps = {float(rate)!r}"]
        files[f"musubi.{fold}.toml"] = "\n".join([*lines, ""])
    prefix = _MUSUBI_SCRIPTS.get(export.model.name if export.model is not None else "", "wan_")
    files["musubi.sh"] = script(
        [
            "# VAE, T5: your weights. The train fold; the validation fold has musubi.validation.toml.",
            command(
                "python", f"src/musubi_tuner/{prefix}cache_latents.py",
                "--dataset_config", export.path("musubi.train.toml"), "--vae", "$VAE",
            ),
            command(
                "python", f"src/musubi_tuner/{prefix}cache_text_encoder_outputs.py",
                "--dataset_config", export.path("musubi.train.toml"), "$@",
            ),
        ]
    )  # fmt: skip
    return files


def mochi(export: Exported) -> Files:
    """Return the command that prepares the train fold for Mochi's fine-tuner.

    Source: genmoai/mochi demos/fine_tuner/README.md: a folder of x.mp4 and x.txt; each video is cut to its
    first `num_frames` frames at 30 frames/s, so the count is that of the shortest clip.
    """
    lines = [
        command(
            "bash", "demos/fine_tuner/preprocess.bash", "-v", export.path("train") + "/",
            "-o", export.path("mochi_prepared") + "/", "-w", "weights/", "--num_frames", export.fewest_frames,
        ),
        command("bash", "./demos/fine_tuner/run.bash", "-c", "./demos/fine_tuner/configs/lora.yaml", "-n", 1),
    ]  # fmt: skip
    return {"mochi.sh": script(lines)}


def simpletuner(export: Exported) -> Files:
    """Return SimpleTuner's dataloader configuration and a folder of links for each fold.

    Source: bghira/SimpleTuner documentation/DATALOADER.md: `textfile` takes each line beside a video as one
    of its captions, so these folders have text files of their own; clips shorter than `min_frames` are
    skipped, so the count is that of the shortest clip.
    """
    files: Files = {}
    backends: list[dict[str, object]] = []
    width, height = export.common_size
    for fold in export.folds:
        for clip in export.of(fold):
            base = f"simpletuner/{fold}/{clip.key}"
            files[f"{base}.mp4"] = Link(f"../../{clip.path}")
            files[f"{base}.txt"] = "".join(" ".join(caption.split()) + "\n" for caption in clip.captions)
        backends.append(
            {
                "id": f"vidcurate-{fold}",
                "type": "local",
                "dataset_type": "video" if fold == "train" else "eval",
                "instance_data_dir": export.path(f"simpletuner/{fold}"),
                "caption_strategy": "textfile",
                "metadata_backend": "discovery",
                "crop": False,
                "resolution": min(width, height),
                "resolution_type": "pixel",
                "cache_dir_vae": export.path(f"cache/simpletuner/{fold}"),
                "repeats": 0,
                "video": {"num_frames": export.fewest_frames, "min_frames": export.fewest_frames},
            }
        )
    backends.append(
        {
            "id": "text-embeds",
            "type": "local",
            "dataset_type": "text_embeds",
            "default": True,
            "cache_dir": export.path("cache/simpletuner/text"),
        }
    )
    files["simpletuner.json"] = as_json(backends)
    name = export.path("simpletuner.json")
    files["simpletuner.sh"] = script([command("simpletuner", "train", f"--data_backend_config={name}", "$@")])
    return files


def automodel(export: Exported) -> Files:
    """Return NeMo Automodel's meta.json of each fold, and the preprocessing command.

    Source: NVIDIA-NeMo/Automodel docs/guides/diffusion/dataset.mdx, tools/diffusion/processors/
    caption_loaders.py: without a caption the file name becomes one, so every clip is listed.
    """
    files: Files = {}
    lines = []
    for fold in export.folds:
        items = [{"file_name": clip.name, "caption": clip.caption} for clip in export.of(fold)]
        files[f"{fold}/meta.json"] = as_json(items)
        processor = "hunyuan" if export.model is not None and export.model.name == "hunyuan1.5" else "wan"
        lines.append(
            command(
                "python", "-m", "tools.diffusion.preprocessing_multiprocess", "video",
                "--video_dir", export.path(fold), "--output_dir", export.path(f"cache/automodel/{fold}"),
                "--processor", processor, "--target_frames", export.fewest_frames,
                "--caption_format", "meta_json",
            )
        )  # fmt: skip
    files["automodel.sh"] = script(lines)
    width, height = export.common_size
    files["automodel.yaml"] = "\n".join(
        [
            "data:",
            "  dataloader:",
            "    _target_: nemo_automodel.components.datasets.diffusion."
            "build_video_multiresolution_dataloader",
            f"    cache_dir: {quoted(export.path('cache/automodel/train'))}",
            f"    model_type: {processor}",
            f"    base_resolution: [{width}, {height}]",
            "    dynamic_batch_size: false",
            "    shuffle: true",
            "",
        ]
    )
    return files


def cosmos_predict2_frames(fewest_frames: int) -> int:
    """Return the `num_frames` (4n+1) that Cosmos-Predict2 can read of a clip of `fewest_frames`.

    Source: nvidia-cosmos/cosmos-predict2 cosmos_predict2/data/dataset_video.py _load_video: the start is
    drawn by randint(0, frames - num_frames), which fails for a clip of exactly `num_frames` frames.
    """
    return max(fewest_frames - 2, 0) // 4 * 4 + 1


def cosmos_predict2(export: Exported) -> Files:
    """Return Cosmos-Predict2's `videos` and `metas` (links to the fold), and the data loader's settings.

    Source: nvidia-cosmos/cosmos-predict2 documentations/post-training_video2world.md, cosmos_predict2/data/
    dataset_video.py: a video needs more frames than `num_frames` (`cosmos_predict2_frames`).
    """
    files: Files = {}
    lines = []
    for fold in export.folds:
        files |= {f"cosmos-predict2/{fold}/{name}": Link(f"../../{fold}") for name in ("videos", "metas")}
        lines.append(
            command(
                "python", "-m", "scripts.get_t5_embeddings",
                "--dataset_path", export.path(f"cosmos-predict2/{fold}"),
            )
        )  # fmt: skip
    width, height = export.common_size
    files["cosmos-predict2.py"] = "\n".join(
        [
            "example_video_dataset = L(Dataset)(",
            f"    dataset_dir={export.path('cosmos-predict2/train')!r},",
            f"    num_frames={cosmos_predict2_frames(export.fewest_frames)},",
            f"    video_size=({height}, {width}),",
            ")",
            "",
        ]
    )
    files["cosmos-predict2.sh"] = script(lines)
    return files
