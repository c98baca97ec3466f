"""Table schema: every column with its dtype, unit and meaning; sample keys.

All stages share one table with one row per clip. Stages add columns; no stage removes a row. A clip id is
always a string: `12.10` is not `12.1`.
"""

import difflib
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import polars as pl

from vidcurate.errors import ColumnError, InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Column of the table: `stage` writes it; `unit` is "" without a unit."""

    dtype: pl.DataType
    unit: str
    meaning: str
    stage: str


_Facts = tuple[pl.DataType, str, str]  # dtype, unit, meaning


def _of(dtype: pl.DataType, unit: str, meaning: str) -> _Facts:
    return dtype, unit, meaning


_text = partial(_of, pl.String(), "")
_bool = partial(_of, pl.Boolean(), "")
_int32 = partial(_of, pl.Int32())
_int64 = partial(_of, pl.Int64())
_float = partial(_of, pl.Float64())


def _aggregates(name: str, unit: str, what: str) -> dict[str, _Facts]:
    return {f"{name}_{each}": _float(unit, f"{each} over the frames of {what}") for each in AGGREGATES}


# Named captions of a clip, the main one first; no text is null or empty, no name occurs twice.
CAPTIONS = pl.List(pl.Struct({"name": pl.String, "text": pl.String}))

# Aggregates of a per-frame score over a clip; `first` is the first frame with a score.
AGGREGATES: tuple[str, ...] = ("min", "mean", "median", "max", "first")

_BY_STAGE: dict[str, dict[str, _Facts]] = {
    "ingest": {  # what the metadata says
        "clip_id": _text("the clip's name, unique in the table"),
        "sample_key": _text("clip_id made safe as a WebDataset key, unique in the table"),
        "source_dataset": _text("the data set that the row comes from, such as openvid"),
        "source_id": _text("the video that the clip was cut from; a split never parts it"),
        "video_path": _text("the file, relative to the video folder, with forward slashes"),
        "caption": _text("the text that describes the clip; null when there is none"),
        "captions": _of(
            CAPTIONS,
            "",
            "all captions of a clip that has several, `caption` among them; null for one caption",
        ),
        "caption_name": _text("name in `captions` of the one that is `caption`; null for one caption"),
        "start_seconds": _float("s", "start of the clip in its file; null: the file's start"),
        "end_seconds": _float("s", "end of the clip in its file (exclusive); null: the file's end"),
        "width_from_metadata": _int32("px", "width as the metadata says"),
        "height_from_metadata": _int32("px", "height as the metadata says"),
        "fps_from_metadata": _float("frames/s", "frame rate as the metadata says"),
        "num_frames_from_metadata": _int64("frames", "frame count as the metadata says"),
        "duration_seconds_from_metadata": _float("s", "duration as the metadata says"),
        "aesthetic_score": _float("", "aesthetic score that came with the metadata"),
        "motion_score": _float("", "motion score that came with the metadata"),
        "temporal_consistency_score": _float("", "temporal consistency that came with the metadata"),
        "matching_score": _float("", "caption-video match that came with the metadata"),
        "clarity_score": _float("", "clarity that came with the metadata"),
        "suitability_score": _float("", "training suitability that came with the metadata"),
        "camera_motion": _text("camera motion that came with the metadata"),
        "desirable_filtering": _text("Panda-70M's label of a clip's suitability"),
        # best known: from the metadata at ingest, from the file once it is probed
        "width": _int32("px", "width as displayed (pixel shape, then rotation); the best known so far"),
        "height": _int32("px", "height as displayed, after rotation; the best known so far"),
        "fps": _float("frames/s", "frame rate; the best known so far"),
        "num_frames": _int64("frames", "frames of the clip; the best known so far"),
        "duration_seconds": _float("s", "duration of the clip; the best known so far"),
        "file_size_bytes": _int64("B", "size of the file; null when there is no file"),
        "ingest_problem": _text(
            "why later stages skip the row: empty_caption, duplicate_id, missing_file, extra_file, "
            "path_outside_root, bad_value; else null"
        ),
    },
    "probe": {  # what the file says, without decoding
        "probe_status": _text(
            "ok, or what is wrong. Not checked: missing, empty, unreadable, no_video_stream, timeout, "
            "crashed, io_error, not_probed. Rejecting findings: truncated, no_frames, encrypted, "
            "damaged_container, damaged_packets, damaged_frames, missing_frames, frame_count_mismatch, "
            "duration_mismatch, decoder_complaints, or another finding that the recipe rejects"
        ),
        "probe_problem": _text("the problem as text; null when probe_status is ok"),
        "integrity_level": _text("how far the file was examined: header, index, keyframes or full"),
        "probe_findings": _text("names of all findings, also of those that do not reject; null without one"),
        "container": _text("container format, FFmpeg's short name"),
        "codec": _text("video codec as FFmpeg names it, not its decoder: av1"),
        "pixel_format": _text("pixel format as coded"),
        "coded_width": _int32("px", "width as coded, before rotation"),
        "coded_height": _int32("px", "height as coded, before rotation"),
        "rotation_degrees": _int32("degrees", "clockwise turn for display: 0, 90, 180 or 270"),
        "sample_aspect_ratio": _float("", "width over height of one pixel as coded"),
        "fps_from_header": _float("frames/s", "average frame rate in the header"),
        "num_frames_from_header": _int64("frames", "frame count in the header; null when it has none"),
        "num_frames_from_index": _int64("frames", "video packets in the index (or read one by one)"),
        "num_keyframes_from_index": _int64("frames", "video packets marked as key frames"),
        "duration_seconds_from_header": _float("s", "duration in the header"),
        "duration_seconds_from_index": _float("s", "span of the video packets"),
        "num_frames_from_decode": _int64("frames", "frames that decode, at the level full"),
        "duration_seconds_from_decode": _float("s", "span of the decoded frames"),
        "num_damaged_packets": _int64(
            "packets", "video packets with bytes that no encoder writes; from level keyframes on"
        ),
        "num_corrupt_frames": _int64(
            "frames", "frames marked as damaged or not decodable; from level keyframes on"
        ),
        "num_corrupt_audio_packets": _int64("packets", "audio packets that do not decode, at the level full"),
        "num_timestamp_gaps": _int64(
            "frames", "frames missing between evenly spaced frames; null for uneven spacing"
        ),
        "file_sha256": _text("SHA-256 of the file as hex; from level keyframes on, or with a finding"),
        "is_variable_fps": _bool("packet durations differ by more than half a frame"),
        "bit_rate": _int64("bits/s", "bit rate of the whole file"),
        "has_audio": _bool("the file has an audio stream"),
        "audio_codec": _text("codec of the first audio stream"),
        "missing_bytes": _int64("B", "bytes that the index lists beyond the end of the file"),
    },
    "caption": {  # captions that a model wrote
        "caption_status": _text(
            "ok (every answer became a caption), not_captioned (no answer), why the first answer that "
            "did not is none (refused, empty, cut, boilerplate, bad_text, bad_request), or why no frames "
            "were read, such as unreadable"
        ),
        "caption_problem": _text("names of the captions without text, and why; null when there is none"),
        "caption_models": _text("caption names with the model of each, such as long: MODEL; null without"),
    },
    "score": {
        "noun_count": _int32("nouns", "NOUN and PROPN tokens of the caption: the difficulty"),
        "noun_engine": _text("engine, model and version that counted; one per table"),
        "caption_num_words": _int32("words", "words of the caption"),
        "caption_num_characters": _int32("characters", "characters of the caption"),
        "proper_noun_count": _int32("nouns", "PROPN tokens of the caption: names; part of noun_count"),
        "noun_count_without_proper": _int32("nouns", "NOUN tokens of the caption: noun_count less the names"),
        "caption_num_t5_tokens": _int32(
            "tokens", "T5 tokens of the caption with the end token; only with t5_tokenizer set"
        ),
        "caption_language": _text(
            "language of the caption, ISO 639-1: en by its words, else as py3langid finds; und when neither "
            "can tell, null without a letter; with language set, as py3langid finds for each caption"
        ),
        "caption_language_confidence": _float(
            "share", "py3langid's probability of caption_language; null where the words alone decided"
        ),
        "caption_boilerplate": _text(
            "opening of the caption that does not describe the clip, such as The video shows; null without"
        ),
        "caption_repeats": _int32(
            "rows",
            "rows of the table with this caption, ignoring case and punctuation; 1 for a unique caption",
        ),
    },
    "frames": {  # scores from one decode of the frames; null where nothing was decoded
        "frames_status": _text(
            "ok, or why there are no scores: not_scored (an earlier stage found it broken), missing, "
            "empty, unreadable, no_video_stream, no_frames, timeout, crashed"
        ),
        "frames_problem": _text("the problem as text; null when frames_status is ok or not_scored"),
        "num_frames_decoded": _int32("frames", "frames of the clip that decoded"),
        "num_frames_damaged": _int32("frames", "decoded frames in which the decoder concealed damage"),
        **_aggregates(
            "motion_px_per_frame",
            "px/frame",
            "the mean optical flow to the next frame, scaled to a shorter side of 144 px",
        ),
        **_aggregates(
            "sharpness",
            "1/px",
            "1 / blur, where blur is the sigma, in px as displayed, of the Gaussian that would blur a "
            "sharp edge as much as the frame's strongest edges; null without an edge",
        ),
        **_aggregates("brightness", "luma 0-255", "the mean luma, 0 is black"),
        "flicker": _float(
            "luma 0-255",
            "mean over the frames of how far the brightness is above, or below, that of both neighbours",
        ),
        "black_share": _float("share", "black frames over all frames"),
        "black_head_seconds": _float("s", "length of the black part at the start"),
        "black_tail_seconds": _float("s", "length of the black part at the end"),
        "frozen_share": _float(
            "share", "frames that repeat the previous frame, over all frames but the first"
        ),
        "frozen_longest_seconds": _float("s", "longest time without a change"),
        **{
            f"letterbox_{side}_px": _int32(
                "px", f"rows or columns at the {side}, as displayed, that are a black bar"
            )
            for side in ("top", "bottom", "left", "right")
        },
        "num_cuts": _int32("cuts", "cuts inside the clip"),
        "cut_seconds": _of(
            pl.List(pl.Float64), "s", "time of the first frame after each cut, from the clip's start"
        ),
        "perceptual_hashes": _of(
            pl.List(pl.UInt64),
            "",
            "64-bit DCT hash of the upright frame without its bars at 10, 30, 50, 70 and 90 % of the "
            "clip; 0 for a flat frame, which is not compared",
        ),
        "perceptual_thumbnail": _of(
            pl.List(pl.UInt8),
            "0-255",
            "the upright middle frame of the clip without its bars: 8 x 8 cells of R, G, B, row by row",
        ),
        "packet_hash": _text(
            "hash of the clip's coded frames without their container: equal for a file and its remux"
        ),
        "is_audio_silent": _bool("the sound never rises above -60 dBFS; null without sound"),
    },
    "models": {  # scores by neural networks; null without the model or a decoded frame
        **_aggregates("clip_aesthetic", "1-10", "the aesthetic score by an MLP on CLIP"),
        **_aggregates("clip_match", "cosine x 100", "the CLIP similarity of frame and caption"),
        **_aggregates("watermark", "probability", "the probability of a watermark"),
        **_aggregates("text_area", "share", "the share of the frame that is written text"),
        "models_status": _text(
            "ok, or why there are no scores: not_scored (an earlier stage found it broken), or a decoder "
            "status as in frames_status"
        ),
        "models_problem": _text("the problem as text; null when models_status is ok or not_scored"),
        "models_used": _text("the models that scored, each with a digest of its weights; one per table"),
    },
    "own_scores": {  # functions of the user
        "own_scores_status": _text("ok, not_scored, timeout, crashed, error or why frames could not be read"),
        "own_scores_problem": _text("the problems of the functions as text; null when there is none"),
    },
    "dedup": {  # duplicate clips; null for a clip without a duplicate
        "duplicate_cluster": _text("cluster of duplicates, named by its smallest clip_id; null without one"),
        "duplicate_rank": _int32("", "rank in the cluster by preference; 1 is the clip to keep"),
        "duplicate_of": _text("clip_id of the duplicate to keep; null for that clip itself"),
        "duplicate_kind": _text(
            "how it duplicates duplicate_of: exact (the same bytes), packets (the same coded frames), "
            "perceptual, caption or semantic"
        ),
        "duplicate_distance": _float(
            "",
            "distance to duplicate_of: 0 for exact and packets, bits of 63 for perceptual, 1 - Jaccard "
            "for caption, 1 - cosine for semantic",
        ),
        "duplicate_orientation": _text(
            "for a perceptual duplicate: same, or how duplicate_of is turned to match"
        ),
        "duplicate_kept_because": _text("column by which duplicate_of is preferred, with both values"),
    },
    "filter": {  # the verdict
        "is_kept": _bool("no rule rejected the clip"),
        "reject_stage": _text("the stage whose rule rejected the clip; null when kept"),
        "reject_rule": _text("the first rule that rejected the clip; null when kept"),
        "reject_value": _text("the clip's value under that rule"),
        "reject_threshold": _text("what the rule asked for"),
        "review": _text("who kept or rejected the clip by eye, and why; only with review decisions"),
        "review_tags": _text("the reviewers' tags with commas; only with review decisions"),
        "caption_original": _text("the caption before a reviewer edited it; null where nobody did"),
    },
    "split": {
        "level": _int32("", "difficulty level, 1 is the easiest; null when rejected"),
        "fold": _text("train or validation; no source video is in both; null when rejected"),
    },
}

# Stages in order; each reads the table of the nearest earlier stage that has been run.
STAGES: tuple[str, ...] = tuple(_BY_STAGE)

COLUMNS: dict[str, Column] = {
    name: Column(dtype=dtype, unit=unit, meaning=meaning, stage=stage)
    for stage, columns in _BY_STAGE.items()
    for name, (dtype, unit, meaning) in columns.items()
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
        near = [f"Did you mean {name}?" for name in difflib.get_close_matches(missing[0], sorted(have), n=1)]
        known = ", ".join([*sorted(have)[:20], *(["…"] if len(have) > 20 else [])])
        text = f"{where}: the column {', '.join(missing)} is missing; it has {known}."
        raise ColumnError(" ".join([text, *near, hint]).strip())


_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
MAX_KEY_BYTES = 80  # with an extension below the 99 bytes that every tar reader accepts
SAFE_KEY = rf"^[A-Za-z0-9][A-Za-z0-9_-]{{0,{MAX_KEY_BYTES - 1}}}$"


def sample_key(clip_id: str) -> str:
    """Return `clip_id` as a WebDataset key that any reader accepts: ASCII letters, digits, _ and -.

    A safe id is its own key. Otherwise unsafe runs become `_` and eight hex digits of the id's SHA-256
    follow, so that `12.1` and `12.10` differ. Dots split keys in webdataset (issues 237, 288) and datasets
    (PR 6888).
    """
    if re.fullmatch(SAFE_KEY, clip_id):
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
