"""Table schema: every column with its dtype, unit and meaning; sample keys.

All stages share one table with one row per clip. Stages add columns; no stage removes a row. A clip id is
always a string: `12.10` is not `12.1`.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from vidcurate.errors import ColumnError, InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Column of the table: `stage` writes it; `unit` is "" without a unit."""

    dtype: pl.DataType
    unit: str
    meaning: str
    stage: str


def _column(stage: str, dtype: type[pl.DataType] | pl.DataType, unit: str, meaning: str) -> Column:
    whole = dtype if isinstance(dtype, pl.DataType) else dtype()
    return Column(dtype=whole, unit=unit, meaning=meaning, stage=stage)


# Named captions of a clip, the main one first; no text is null or empty, no name occurs twice.
CAPTIONS = pl.List(pl.Struct({"name": pl.String, "text": pl.String}))

# Aggregates of a per-frame score over a clip; `first` is the first frame with a score.
AGGREGATES: tuple[str, ...] = ("min", "mean", "median", "max", "first")

# Stages in order; each reads the table of the nearest earlier stage that has been run.
STAGES: tuple[str, ...] = (
    "ingest",
    "probe",
    "caption",
    "score",
    "frames",
    "models",
    "own_scores",
    "dedup",
    "filter",
    "split",
)

COLUMNS: dict[str, Column] = {
    # ── ingest: what the metadata says ──────────────────────────────────────────────────────────────
    "clip_id": _column("ingest", pl.String, "", "the clip's name, unique in the table"),
    "sample_key": _column(
        "ingest", pl.String, "", "clip_id made safe as a WebDataset key, unique in the table"
    ),
    "source_dataset": _column(
        "ingest", pl.String, "", "the data set that the row comes from, such as openvid"
    ),
    "source_id": _column(
        "ingest", pl.String, "", "the video that the clip was cut from; a split never parts it"
    ),
    "video_path": _column(
        "ingest", pl.String, "", "the file, relative to the video folder, with forward slashes"
    ),
    "caption": _column("ingest", pl.String, "", "the text that describes the clip; null when there is none"),
    "captions": _column(
        "ingest",
        CAPTIONS,
        "",
        "all captions of a clip that has several, `caption` among them; null for one caption",
    ),
    "caption_name": _column(
        "ingest", pl.String, "", "name in `captions` of the one that is `caption`; null for one caption"
    ),
    "start_seconds": _column(
        "ingest", pl.Float64, "s", "start of the clip in its file; null: the file's start"
    ),
    "end_seconds": _column(
        "ingest", pl.Float64, "s", "end of the clip in its file (exclusive); null: the file's end"
    ),
    "width_from_metadata": _column("ingest", pl.Int32, "px", "width as the metadata says"),
    "height_from_metadata": _column("ingest", pl.Int32, "px", "height as the metadata says"),
    "fps_from_metadata": _column("ingest", pl.Float64, "frames/s", "frame rate as the metadata says"),
    "num_frames_from_metadata": _column("ingest", pl.Int64, "frames", "frame count as the metadata says"),
    "duration_seconds_from_metadata": _column("ingest", pl.Float64, "s", "duration as the metadata says"),
    "aesthetic_score": _column("ingest", pl.Float64, "", "aesthetic score that came with the metadata"),
    "motion_score": _column("ingest", pl.Float64, "", "motion score that came with the metadata"),
    "temporal_consistency_score": _column(
        "ingest", pl.Float64, "", "temporal consistency that came with the metadata"
    ),
    "matching_score": _column("ingest", pl.Float64, "", "caption-video match that came with the metadata"),
    "clarity_score": _column("ingest", pl.Float64, "", "clarity that came with the metadata"),
    "suitability_score": _column(
        "ingest", pl.Float64, "", "training suitability that came with the metadata"
    ),
    "camera_motion": _column("ingest", pl.String, "", "camera motion that came with the metadata"),
    "desirable_filtering": _column("ingest", pl.String, "", "Panda-70M's label of a clip's suitability"),
    # ── best known: from the metadata at ingest, from the file once it is probed ────────────────────
    "width": _column(
        "ingest",
        pl.Int32,
        "px",
        "width as displayed (pixel shape, then rotation); the best known so far",
    ),
    "height": _column("ingest", pl.Int32, "px", "height as displayed, after rotation; the best known so far"),
    "fps": _column("ingest", pl.Float64, "frames/s", "frame rate; the best known so far"),
    "num_frames": _column("ingest", pl.Int64, "frames", "frames of the clip; the best known so far"),
    "duration_seconds": _column("ingest", pl.Float64, "s", "duration of the clip; the best known so far"),
    "file_size_bytes": _column("ingest", pl.Int64, "B", "size of the file; null when there is no file"),
    "ingest_problem": _column(
        "ingest",
        pl.String,
        "",
        "why later stages skip the row: empty_caption, duplicate_id, missing_file, extra_file, "
        "path_outside_root, bad_value; else null",
    ),
    # ── probe: what the file says, without decoding ─────────────────────────────────────────────────
    "probe_status": _column(
        "probe",
        pl.String,
        "",
        "ok, or what is wrong. Not checked: missing, empty, unreadable, no_video_stream, timeout, "
        "crashed, io_error, not_probed. Rejecting findings: truncated, no_frames, damaged_container, "
        "damaged_packets, damaged_frames, missing_frames, frame_count_mismatch, duration_mismatch, "
        "decoder_complaints, or another finding that the recipe rejects",
    ),
    "probe_problem": _column("probe", pl.String, "", "the problem as text; null when probe_status is ok"),
    "integrity_level": _column(
        "probe", pl.String, "", "how far the file was examined: header, index, keyframes or full"
    ),
    "probe_findings": _column(
        "probe", pl.String, "", "names of all findings, also of those that do not reject; null without one"
    ),
    "container": _column("probe", pl.String, "", "container format, FFmpeg's short name"),
    "codec": _column("probe", pl.String, "", "video codec as FFmpeg names it, not its decoder: av1"),
    "pixel_format": _column("probe", pl.String, "", "pixel format as coded"),
    "coded_width": _column("probe", pl.Int32, "px", "width as coded, before rotation"),
    "coded_height": _column("probe", pl.Int32, "px", "height as coded, before rotation"),
    "rotation_degrees": _column(
        "probe", pl.Int32, "degrees", "clockwise turn for display: 0, 90, 180 or 270"
    ),
    "sample_aspect_ratio": _column("probe", pl.Float64, "", "width over height of one pixel as coded"),
    "fps_from_header": _column("probe", pl.Float64, "frames/s", "average frame rate in the header"),
    "num_frames_from_header": _column(
        "probe", pl.Int64, "frames", "frame count in the header; null when it has none"
    ),
    "num_frames_from_index": _column(
        "probe", pl.Int64, "frames", "video packets in the index (or read one by one)"
    ),
    "num_keyframes_from_index": _column("probe", pl.Int64, "frames", "video packets marked as key frames"),
    "duration_seconds_from_header": _column("probe", pl.Float64, "s", "duration in the header"),
    "duration_seconds_from_index": _column("probe", pl.Float64, "s", "span of the video packets"),
    "num_frames_from_decode": _column("probe", pl.Int64, "frames", "frames that decode, at the level full"),
    "duration_seconds_from_decode": _column("probe", pl.Float64, "s", "span of the decoded frames"),
    "num_damaged_packets": _column(
        "probe",
        pl.Int64,
        "packets",
        "video packets with bytes that no encoder writes; from level keyframes on",
    ),
    "num_corrupt_frames": _column(
        "probe", pl.Int64, "frames", "frames marked as damaged or not decodable; from level keyframes on"
    ),
    "num_corrupt_audio_packets": _column(
        "probe", pl.Int64, "packets", "audio packets that do not decode, at the level full"
    ),
    "num_timestamp_gaps": _column(
        "probe", pl.Int64, "frames", "frames missing between evenly spaced frames; null for uneven spacing"
    ),
    "file_sha256": _column(
        "probe", pl.String, "", "SHA-256 of the file as hex; from level keyframes on, or with a finding"
    ),
    "is_variable_fps": _column("probe", pl.Boolean, "", "packet durations differ by more than half a frame"),
    "bit_rate": _column("probe", pl.Int64, "bits/s", "bit rate of the whole file"),
    "has_audio": _column("probe", pl.Boolean, "", "the file has an audio stream"),
    "audio_codec": _column("probe", pl.String, "", "codec of the first audio stream"),
    "missing_bytes": _column("probe", pl.Int64, "B", "bytes that the index lists beyond the end of the file"),
    # ── caption: captions that a model wrote ─────────────────────────────────────────────────────────
    "caption_status": _column(
        "caption",
        pl.String,
        "",
        "ok (every answer became a caption), not_captioned (no answer), why the first answer that did not is "
        "none (refused, empty, cut, boilerplate, bad_text, bad_request), or why no frames were read, such as "
        "unreadable",
    ),
    "caption_problem": _column(
        "caption", pl.String, "", "names of the captions without text, and why; null when there is none"
    ),
    "caption_models": _column(
        "caption", pl.String, "", "caption names with the model of each, such as long: MODEL; null without"
    ),
    # ── score ───────────────────────────────────────────────────────────────────────────────────────
    "noun_count": _column("score", pl.Int32, "nouns", "NOUN and PROPN tokens of the caption: the difficulty"),
    "noun_engine": _column("score", pl.String, "", "engine, model and version that counted; one per table"),
    "caption_num_words": _column("score", pl.Int32, "words", "words of the caption"),
    "caption_num_characters": _column("score", pl.Int32, "characters", "characters of the caption"),
    "proper_noun_count": _column(
        "score", pl.Int32, "nouns", "PROPN tokens of the caption: names; part of noun_count"
    ),
    "noun_count_without_proper": _column(
        "score", pl.Int32, "nouns", "NOUN tokens of the caption: noun_count less the names"
    ),
    "caption_num_t5_tokens": _column(
        "score",
        pl.Int32,
        "tokens",
        "T5 tokens of the caption with the end token; only with t5_tokenizer set",
    ),
    "caption_language": _column(
        "score", pl.String, "", "likeliest language of the caption, ISO 639-1; only with language set"
    ),
    "caption_language_confidence": _column(
        "score", pl.Float64, "share", "probability of caption_language among the known languages"
    ),
    "caption_boilerplate": _column(
        "score",
        pl.String,
        "",
        "opening of the caption that does not describe the clip, such as The video shows; null without",
    ),
    "caption_repeats": _column(
        "score",
        pl.Int32,
        "rows",
        "rows of the table with this caption, ignoring case and punctuation; 1 for a unique caption",
    ),
    # ── frames: scores from one decode of the frames; null where nothing was decoded ────────────────
    "frames_status": _column(
        "frames",
        pl.String,
        "",
        "ok, or why there are no scores: not_scored (an earlier stage found it broken), missing, empty, "
        "unreadable, no_video_stream, no_frames, timeout, crashed",
    ),
    "frames_problem": _column(
        "frames", pl.String, "", "the problem as text; null when frames_status is ok or not_scored"
    ),
    "num_frames_decoded": _column("frames", pl.Int32, "frames", "frames of the clip that decoded"),
    "num_frames_damaged": _column(
        "frames", pl.Int32, "frames", "decoded frames in which the decoder concealed damage"
    ),
    **{
        f"motion_px_per_frame_{aggregate}": _column(
            "frames",
            pl.Float64,
            "px/frame",
            f"{aggregate} over the frames of the mean optical flow to the next frame, "
            "scaled to a shorter side of 144 px",
        )
        for aggregate in AGGREGATES
    },
    **{
        f"sharpness_{aggregate}": _column(
            "frames",
            pl.Float64,
            "1/px",
            f"{aggregate} over the frames of 1 / blur, where blur is the sigma, in px as displayed, of the "
            "Gaussian that would blur a sharp edge as much as the frame's strongest edges; null "
            "without an edge",
        )
        for aggregate in AGGREGATES
    },
    **{
        f"brightness_{aggregate}": _column(
            "frames",
            pl.Float64,
            "luma 0-255",
            f"{aggregate} over the frames of the mean luma, 0 is black",
        )
        for aggregate in AGGREGATES
    },
    "flicker": _column(
        "frames",
        pl.Float64,
        "luma 0-255",
        "mean over the frames of how far the brightness is above, or below, that of both neighbours",
    ),
    "black_share": _column("frames", pl.Float64, "share", "black frames over all frames"),
    "black_head_seconds": _column("frames", pl.Float64, "s", "length of the black part at the start"),
    "black_tail_seconds": _column("frames", pl.Float64, "s", "length of the black part at the end"),
    "frozen_share": _column(
        "frames",
        pl.Float64,
        "share",
        "frames that repeat the previous frame, over all frames but the first",
    ),
    "frozen_longest_seconds": _column("frames", pl.Float64, "s", "longest time without a change"),
    **{
        f"letterbox_{side}_px": _column(
            "frames", pl.Int32, "px", f"rows or columns at the {side}, as displayed, that are a black bar"
        )
        for side in ("top", "bottom", "left", "right")
    },
    "num_cuts": _column("frames", pl.Int32, "cuts", "cuts inside the clip"),
    "cut_seconds": _column(
        "frames",
        pl.List(pl.Float64),
        "s",
        "time of the first frame after each cut, from the clip's start",
    ),
    "perceptual_hashes": _column(
        "frames",
        pl.List(pl.UInt64),
        "",
        "64-bit DCT hash of the upright frame without its bars at 10, 30, 50, 70 and 90 % of the clip; 0 "
        "for a flat frame, which is not compared",
    ),
    "perceptual_thumbnail": _column(
        "frames",
        pl.List(pl.UInt8),
        "0-255",
        "the upright middle frame of the clip without its bars: 8 x 8 cells of R, G, B, row by row",
    ),
    "packet_hash": _column(
        "frames",
        pl.String,
        "",
        "hash of the clip's coded frames without their container: equal for a file and its remux",
    ),
    "is_audio_silent": _column(
        "frames", pl.Boolean, "", "the sound never rises above -60 dBFS; null without sound"
    ),
    # ── models: scores by neural networks; null without the model or a decoded frame ────────────────
    **{
        f"clip_aesthetic_{aggregate}": _column(
            "models",
            pl.Float64,
            "1-10",
            f"{aggregate} over the frames of the aesthetic score by an MLP on CLIP",
        )
        for aggregate in AGGREGATES
    },
    **{
        f"clip_match_{aggregate}": _column(
            "models",
            pl.Float64,
            "cosine x 100",
            f"{aggregate} over the frames of the CLIP similarity of frame and caption",
        )
        for aggregate in AGGREGATES
    },
    **{
        f"watermark_{aggregate}": _column(
            "models",
            pl.Float64,
            "probability",
            f"{aggregate} over the frames of the probability of a watermark",
        )
        for aggregate in AGGREGATES
    },
    **{
        f"text_area_{aggregate}": _column(
            "models",
            pl.Float64,
            "share",
            f"{aggregate} over the frames of the share of the frame that is written text",
        )
        for aggregate in AGGREGATES
    },
    "models_status": _column(
        "models",
        pl.String,
        "",
        "ok, or why there are no scores: not_scored (an earlier stage found it broken), or a decoder "
        "status as in frames_status",
    ),
    "models_problem": _column(
        "models", pl.String, "", "the problem as text; null when models_status is ok or not_scored"
    ),
    "models_used": _column(
        "models", pl.String, "", "the models that scored, each with a digest of its weights; one per table"
    ),
    # ── own_scores: functions of the user ───────────────────────────────────────────────────────────
    "own_scores_status": _column(
        "own_scores", pl.String, "", "ok, not_scored, timeout, crashed, error or why frames could not be read"
    ),
    "own_scores_problem": _column(
        "own_scores", pl.String, "", "the problems of the functions as text; null when there is none"
    ),
    # ── dedup: duplicate clips; null for a clip without a duplicate ─────────────────────────────────
    "duplicate_cluster": _column(
        "dedup", pl.String, "", "cluster of duplicates, named by its smallest clip_id; null without one"
    ),
    "duplicate_rank": _column(
        "dedup", pl.Int32, "", "rank in the cluster by preference; 1 is the clip to keep"
    ),
    "duplicate_of": _column(
        "dedup", pl.String, "", "clip_id of the duplicate to keep; null for that clip itself"
    ),
    "duplicate_kind": _column(
        "dedup",
        pl.String,
        "",
        "how it duplicates duplicate_of: exact (the same bytes), packets (the same coded frames), "
        "perceptual, caption or semantic",
    ),
    "duplicate_distance": _column(
        "dedup",
        pl.Float64,
        "",
        "distance to duplicate_of: 0 for exact and packets, bits of 63 for perceptual, 1 - Jaccard for "
        "caption, 1 - cosine for semantic",
    ),
    "duplicate_orientation": _column(
        "dedup", pl.String, "", "for a perceptual duplicate: same, or how duplicate_of is turned to match"
    ),
    "duplicate_kept_because": _column(
        "dedup", pl.String, "", "column by which duplicate_of is preferred, with both values"
    ),
    # ── filter: the verdict ─────────────────────────────────────────────────────────────────────────
    "is_kept": _column("filter", pl.Boolean, "", "no rule rejected the clip"),
    "reject_stage": _column(
        "filter", pl.String, "", "the stage whose rule rejected the clip; null when kept"
    ),
    "reject_rule": _column("filter", pl.String, "", "the first rule that rejected the clip; null when kept"),
    "reject_value": _column("filter", pl.String, "", "the clip's value under that rule"),
    "reject_threshold": _column("filter", pl.String, "", "what the rule asked for"),
    "review": _column(
        "filter", pl.String, "", "who kept or rejected the clip by eye, and why; only with review decisions"
    ),
    "review_tags": _column(
        "filter", pl.String, "", "the reviewers' tags with commas; only with review decisions"
    ),
    "caption_original": _column(
        "filter", pl.String, "", "the caption before a reviewer edited it; null where nobody did"
    ),
    # ── split ───────────────────────────────────────────────────────────────────────────────────────
    "level": _column("split", pl.Int32, "", "difficulty level, 1 is the easiest; null when rejected"),
    "fold": _column(
        "split", pl.String, "", "train or validation; no source video is in both; null when rejected"
    ),
}


# Columns of earlier stages that a stage overwrites.
RESTATED: dict[str, tuple[str, ...]] = {
    "probe": ("width", "height", "fps", "num_frames", "duration_seconds", "file_size_bytes"),
    "caption": ("caption", "captions", "caption_name", "ingest_problem"),
    "split": ("is_kept", "reject_stage", "reject_rule", "reject_value", "reject_threshold"),
}

# Scores that an earlier stage gave the old caption; null for a clip whose caption a reviewer edited.
OF_OLD_CAPTION = ("matching_score", "caption_repeats", *(f"clip_match_{name}" for name in AGGREGATES))
# Columns of earlier stages that the filter overwrites when a caption was edited.
OF_CAPTION = (
    "caption",
    "captions",
    *(name for name, column in COLUMNS.items() if column.stage == "score"),
    *OF_OLD_CAPTION,
)


def written_by(stage: str) -> set[str]:
    """Return the columns in the stage's own file: those it adds or overwrites, and the clip id."""
    own = {name for name, column in COLUMNS.items() if column.stage == stage}
    return {"clip_id", *own, *RESTATED.get(stage, ())}


def require(columns: Iterable[str], names: Iterable[str], where: str, hint: str = "") -> None:
    """Raise ColumnError unless all `names` are among `columns` of `where` (a table's name)."""
    have = set(columns)
    missing = [name for name in names if name not in have]
    if missing:
        step = f" {hint}" if hint else ""
        raise ColumnError(
            f"{where}: the column {', '.join(missing)} is missing; it has {', '.join(sorted(have))}.{step}"
        )


_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
MAX_KEY_BYTES = 80  # with an extension below the 99 bytes that every tar reader accepts


def sample_key(clip_id: str) -> str:
    """Return `clip_id` as a WebDataset key that any reader accepts: ASCII letters, digits, _ and -.

    A safe id is its own key. Otherwise unsafe runs become `_` and eight hex digits of the id's SHA-256
    follow, so that `12.1` and `12.10` differ. Dots split keys in webdataset (issues 237, 288) and datasets
    (PR 6888).
    """
    if clip_id and len(clip_id) <= MAX_KEY_BYTES and clip_id[0] not in "_-" and not _UNSAFE.search(clip_id):
        return clip_id
    digest = hashlib.sha256(clip_id.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    stem = _UNSAFE.sub("_", clip_id).strip("_-")[: MAX_KEY_BYTES - 9]
    return f"{stem or 'clip'}-{digest}"


def sample_keys(clip_ids: Iterable[str]) -> list[str]:
    """Return the key of each id. Raises InputError when two different ids would share a key."""
    owner: dict[str, str] = {}
    keys: list[str] = []
    for clip_id in clip_ids:
        key = sample_key(clip_id)
        first = owner.setdefault(key, clip_id)
        if first != clip_id:
            raise InputError(
                f"clip ids {first!r} and {clip_id!r} would share the sample key {key!r}; rename one of them."
            )
        keys.append(key)
    return keys
