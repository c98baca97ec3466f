"""Filter presets: published thresholds, their sources, and what they leave out.

A preset has a threshold only for a column of this table in the same unit. Thresholds on scores that this
table does not have (LPIPS, codec motion vectors, UniMatch flow, DOVER) are listed in `left_out`.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Preset: `settings` of a FilterSpec as plain JSON values; `left_out` lists what they lack."""

    title: str
    source: str
    settings: dict[str, Any]
    left_out: tuple[str, ...]


PRESETS: dict[str, Preset] = {
    "lambda": Preset(
        title="Lambda's Open-Sora tutorial: a caption, under 50 MiB, decodes without an error",
        source="LambdaLabsML/Open-Sora docs/tutorial/_tabs/dataset.md (2024-10)",
        settings={
            "limits": {
                "file_size_bytes": {"max": 50 * 2**20 - 1},
                "caption_num_words": {"min": 1},
                "num_frames_damaged": {"max": 0},
            },
        },
        left_out=(),
    ),
    "open-sora-1.2": Preset(
        title="Open-Sora 1.2, the Panda-70M stage: aesthetic score of 4.5 and more",
        source="hpcaitech/Open-Sora v1.2 report and docs/data_processing.md (--fmin 1, --aesmin)",
        settings={"limits": {"num_frames": {"min": 1}, "clip_aesthetic_mean": {"min": 4.5}}},
        left_out=(
            "UniMatch flow above 3, used at times with an aesthetic score above 5 (issue 353)",
            "text boxes by DBNet++ (counted, no threshold published)",
        ),
    ),
    "open-sora-data-1.1": Preset(
        title="Open-Sora's data processing page: aesthetic score of 5 and more",
        source="hpcaitech/Open-Sora v1.2 docs/data_processing.md (--fmin 1, --aesmin 5)",
        settings={"limits": {"num_frames": {"min": 1}, "clip_aesthetic_mean": {"min": 5.0}}},
        left_out=(),
    ),
    "open-sora-plan-1.3": Preset(
        title="Open-Sora-Plan 1.3: aesthetic score of 4.75 and more",
        source="PKU-YuanGroup/Open-Sora-Plan v1.3 report (keeps 27 % of Panda-70M)",
        settings={"limits": {"clip_aesthetic_mean": {"min": 4.75}}},
        left_out=(
            "LPIPS between frames from 0.001 (static) to 0.3 (jitter)",
            "DOVER technical quality of 0 and more",
            "crop of at most 20 % to remove text (EasyOCR)",
        ),
    ),
    "nemo-curator": Preset(
        title="NeMo Curator: short side of 256 px, aesthetic score of 3.5 and more",
        source="NVIDIA-NeMo/Curator video docs and nightly benchmark (3.5; the code's default is 0.5)",
        settings={"limits": {"short_side": {"min": 256}, "clip_aesthetic_mean": {"min": 3.5}}},
        left_out=("codec motion vectors: global mean of 0.00098, smallest of 256 patches 1e-6",),
    ),
    "videox-fun": Preset(
        title="VideoX-Fun: 3 to 10 s, 512 x 512 and more, text on at most 2 % of the picture",
        source="aigc-apps/VideoX-Fun video_caption/ and its scripts",
        settings={
            "limits": {
                "duration_seconds": {"min": 3.0, "max": 10.0},
                "width": {"min": 512},
                "height": {"min": 512},
                "text_area_mean": {"max": 0.02},
            },
        },
        left_out=(
            "SigLIP aesthetic score of 4.0 and more",
            "Farneback motion of 2 and more",
            "VideoCLIP-XL match of 0.20 and more",
            "semantic consistency of 0.8 and more between the ends of a clip",
        ),
    ),
    "mindone": Preset(
        title="MindONE's t2v curation: 2 to 30 s, aesthetic score, text area, CLIP match",
        source="mindspore-lab/mindone tools/t2v_curation",
        settings={
            "limits": {
                "duration_seconds": {"min": 2.0, "max": 30.0},
                "clip_aesthetic_mean": {"min": 5.0},
                "text_area_mean": {"max": 0.2},
                "clip_match_mean": {"min": 20.0},
            },
        },
        left_out=(
            "LPIPS motion of 0.2 and more",
            "image hashes of the first frame within 15 of 64 bits (duplicates)",
        ),
    ),
    "crush-smol": Preset(
        title="Hugging Face's crush-smol: every frame above 5.5 and without a watermark",
        source="huggingface/blog PR 2631 (kept 47 of 1,493; its authors call it too strict)",
        settings={"limits": {"clip_aesthetic_min": {"min": 5.5}, "watermark_max": {"max": 0.1}}},
        left_out=(),
    ),
}
