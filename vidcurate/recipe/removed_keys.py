"""Removed and renamed recipe keys: error messages, and upgrade of saved recipes.

`REMOVED` maps a recipe model to its former keys. A person's recipe with such a key is refused with the
message of the table. A recipe that a run has saved holds every default, so `upgrade` renames its keys and
drops those that changed no number, or that have the default that is now the only way.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from pydantic import BaseModel

ANY = "any value"
"""as a default: the key changed no number, so a saved recipe may have any value of it"""


class Removed(NamedTuple):
    """A former key, a former value of one (`key=value`), or a former word in a mapping (`key.word`)."""

    message: str
    """what to write instead, or why the key is gone"""
    default: Any = ANY
    """the value with which a saved recipe means the same without the key"""
    now: Any = None
    """the new name of a key, or the new spelling of a value"""
    is_merged: bool = False
    """the key was a section, whose keys are now keys of the section around it"""
    is_value: bool = False
    """of a former word in a mapping: its value is now the value of the mapping's key"""


def _renamed(key: str) -> Removed:
    return Removed(f"write {key}", now=key)


def _limit(column: str, word: str) -> Removed:
    return Removed(f"write limits: {{{column}: {{{word}: …}}}}")


def _each(row: Removed, keys: str) -> dict[str, Removed]:
    return dict.fromkeys(keys.split(), row)


_LIMITED = "height width aspect_ratio duration_seconds num_frames fps caption_num_words noun_count"
_SENSITIVITY = Removed(
    "write sensitivity: low, normal or high; the thresholds are constants of trainer/recipe/guard_spec.py"
)
_COUNT = Removed("the count is a constant of trainer/recipe/guard_spec.py; max_rollbacks is a key")
_PREFLIGHT = Removed("the threshold is a constant of trainer/health/checks/spec.py")
_RATE = Removed("rates are compared with those of the other GPUs; write max_slowdown")
_WATCH = Removed("the value is a constant of trainer/health/watch/spec.py")
_READ = Removed("the value is a constant of vidcurate/loader/spec.py")
_EXCHANGE = Removed("the key of Open-Sora's config.json has no effect here; the converter reads and drops it")
_ENCODER = Removed("the model takes it from the encoder; leave it out")
_VAE = Removed("the value is a constant of trainer/model/encoders/vae.py")
_FRAMES = Removed("the value is a constant of vidcurate/curation/frame_scores/spec.py")
_MODELS = Removed("the value is a constant of vidcurate/curation/model_scores/spec.py")
_DEDUP = Removed("the value is a constant in vidcurate/curation/dedup")
_SPLIT = Removed("the value is a constant of vidcurate/curation/difficulty/spec.py")

REMOVED: Mapping[str, Mapping[str, Removed]] = {
    "GuardSpec": {
        "hardware": Removed("write watch.on_hardware: act or warn"),
        "lr": Removed("a learning rate that differs from the schedule's is logged and ends no run"),
        "rerun": Removed("a suspicious step is always computed again; watch.on_hardware: warn records it"),
        "most_warnings": Removed("warnings have no limit; choose a stricter policy for the finding"),
        "most_rollbacks": _renamed("max_rollbacks"),
        **_each(
            _SENSITIVITY,
            "rerun_tolerance spike_z spike_ratio gradient_z gradient_ratio divergence_window "
            "divergence_rise divergence_z weight_z weight_change",
        ),
        **_each(_COUNT, "most_skips most_scalings lr_factor lr_steps margin_steps"),
    },
    "PreflightSpec": {
        "bad_share": _renamed("max_slowdown"),
        "different_versions": Removed("a node with versions other than most nodes' is bad"),
        "xid_hours": Removed("Xids of the last 24 hours count; `xid: {NUMBER: ignore}` leaves one out"),
        **_each(_PREFLIGHT, "slow_share min_free_memory max_clock_offset_seconds"),
        **_each(
            _RATE,
            "min_tflops min_copy_gb_per_second min_all_reduce_gb_per_second "
            "min_link_gb_per_second min_write_mb_per_second",
        ),
    },
    "WatchSpec": {
        "slow_rank_factor": Removed("write max_slowdown, the factor less 1"),
        "on_throughput_drop": Removed("a drop of the throughput is recorded and ends no run"),
        "on_clock_step": Removed("a clock that was set is recorded and ends no run"),
        **_each(
            _WATCH, "slow_phase_seconds slow_rank_steps throughput_drop clock_step_seconds hardware_seconds"
        ),
    },
    "DataSpec": {
        "one_bucket_per": Removed("a micro-batch is of one bucket, a step is mixed", "micro_batch"),
        "ranks_per_node": Removed("nodes are mixed like any ranks", None),
        "conversion": Removed("scaled frames have the bytes that the ffmpeg program makes", "ffmpeg"),
        "small_cells=refuse": Removed("write merge, which refuses what fits no other bucket", now="merge"),
    },
    "Stage": {
        "passes": _renamed("epochs"),
        "mask_ratios.intepolate": Removed("write interpolate", now="interpolate"),
    },
    "PhaseSpec": {"passes": _renamed("epochs")},
    "TrainRecipe": {
        "blocks=readable": Removed("write eager", now="eager"),
        "float8_products": Removed("write precision: float8", False),
        "power_ema.widths": Removed("write power_ema: [NARROW, WIDE]", is_value=True),
    },
    "LoaderSpec": {
        "remote": Removed("write its cache_folder and cache_bytes in loader", is_merged=True),
        **_each(_READ, "max_worker_clips max_worker_bytes"),
    },
    "TrackersSpec": {
        "wandb.project": Removed("write wandb: PROJECT", is_value=True),
        "wandb.entity": Removed("set WANDB_ENTITY in the environment"),
        "wandb.name": Removed("set WANDB_NAME in the environment"),
        "wandb.group": Removed("set WANDB_RUN_GROUP in the environment"),
        "wandb.tags": Removed("set WANDB_TAGS in the environment"),
        "wandb.mode": Removed("set WANDB_MODE in the environment"),
    },
    "ParallelSpec": {"shard_size": Removed("write sharding: NUMBER")},
    "OptimSpec": {
        "muon.lr_factor": Removed("write muon: FACTOR", is_value=True),
        "muon.momentum": Removed("the value is a constant of trainer/training/optim/muon.py", 0.95),
    },
    "SegmentSpec": {
        "is_new_stage": Removed("write begins: resume for more of the previous stage in a new process")
    },
    "EncodedSpec": {"shard_bytes": Removed("the value is a constant of trainer/model/encoders/precision.py")},
    "ExperimentSpec": {"name": Removed("an experiment has the name of its recipe: write recipe: {name: …}")},
    "FlowSpec": {
        "timesteps": Removed("timesteps are logit-normal, as in all published stages", "logit-normal"),
        "shift": Removed("write shift_scale: 1.0, or shift_scale: null for no shift", True),
        "loc": Removed("the logit-normal has mean 0, as in all published stages", 0.0),
        "scale": Removed("the logit-normal has deviation 1, as in all published stages", 1.0),
    },
    "VaeSpec": {"micro_batch_size": _VAE, "chunk_batch_size": _VAE},
    "T5Spec": {"micro_batch_size": Removed("the value is a constant of trainer/model/encoders/t5.py")},
    "ValidationSpec": {
        "fold": Removed("the fold validation is read; split.validation_fraction sets its size"),
        "weights": Removed("the moving average is validated; the inference server validates raw weights"),
    },
    "ModelSpec": {
        "class_dropout_prob": Removed("write a stage's caption_dropout"),
        "patch_size": Removed("a token is 1 x 2 x 2 latents, as in all published weights", [1, 2, 2]),
        "mlp_ratio": Removed("an MLP is 4 times as wide as a token, as in all published weights", 4.0),
        "qk_norm": Removed("queries and keys are always normalised", True),
        **_each(_ENCODER, "in_channels caption_channels model_max_length"),
        **_each(_EXCHANGE, "enable_flash_attn enable_layernorm_kernel enable_sequence_parallelism drop_path"),
    },
    "ShardSpec": {
        "proxy": Removed("write its keys in transcode; mode: proxy has defaults of its own there"),
        "overwrite": Removed("run `vidcurate build-shards` with --overwrite"),
        "unprobed": Removed("run `vidcurate build-shards` with --unprobed"),
    },
    "IngestSpec": {
        "source_pattern": Removed("put a column source_id into the table, and name it in map", None)
    },
    "DedupSpec": {
        "packets": Removed("coded pictures are compared wherever score-frames has read them", True),
        "captions.threshold": Removed("write captions: SHARE", is_value=True),
        "semantic.threshold": Removed("write semantic: COSINE", is_value=True),
        "semantic.clips_per_cluster": _DEDUP,
        "semantic.embeddings": Removed("put the file at RUN/embeddings.parquet (clip_id, embedding)", None),
    },
    "OutlierRule": {
        "missing": Removed(
            "a clip without the value is rejected; add limits: {COLUMN: {missing: …}}", "reject"
        )
    },
    "FilterSpec": {
        "keep_duplicates": Removed("run the curation without `vidcurate dedup`", False),
        "max_failure_share": Removed("run `vidcurate filter` with --max-failure-share", None),
        "max_rejected_share": Removed("run `vidcurate filter` with --max-rejected-share", None),
        **{
            f"{word}_{column}": _limit(column, word) for column in _LIMITED.split() for word in ("min", "max")
        },
        "min_short_side": _limit("short_side", "min"),
        "max_file_size_bytes": _limit("file_size_bytes", "max"),
    },
    "FramesSpec": {
        **_each(
            _FRAMES,
            "motion_pairs_per_second cut_window_frames min_scene_seconds short_side_px "
            "details_per_second cut_threshold",
        )
    },
    "ModelsSpec": {
        "match": Removed("clip always scores the match of frames and caption"),
        "dtype": Removed("CLIP and the classifier compute in float32"),
        "device": Removed("the first GPU is used; set CUDA_VISIBLE_DEVICES= for the CPU"),
        **_each(_MODELS, "text_short_side_px text_threshold batch_frames positions"),
    },
    "PerceptualSpec": {
        "orientations": Removed("rotated and mirrored copies are always looked for", "any"),
        **_each(_DEDUP, "min_set_bits min_frames"),
    },
    "SplitSpec": {
        "clips_per_step": Removed("a ramp has no more steps than its level has clips", None),
        **_each(_SPLIT, "warn_effect_size warn_tail_ratio warn_ks_distance steps_per_increment passes"),
    },
}


def message(models: frozenset[str], key: str) -> str:
    """Return what to say of a former key of one of `models`, by name, or ""."""
    found = [REMOVED[name][key].message for name in sorted(models & REMOVED.keys()) if key in REMOVED[name]]
    return found[0] if found else ""


@cache
def schema_of(model: type[BaseModel]) -> Mapping[str, Any]:
    """Return the JSON Schema of a recipe's model; to make that of a training takes 16 ms."""
    return model.model_json_schema()


def upgrade(document: Any, model: type[BaseModel]) -> Any:
    """Return a saved recipe with the keys of now; what has another meaning now stays, to be refused."""
    schema = schema_of(model)
    return _upgraded(document, [schema], schema.get("$defs", {}))


def branches(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of a JSON Schema that a value may be: the node, or what it refers to."""
    if "$ref" in node:
        yield from branches(definitions[node["$ref"].rsplit("/", 1)[-1]], definitions)
        return
    yield node
    for word in ("anyOf", "oneOf", "allOf"):
        for inner in node.get(word, []):
            yield from branches(inner, definitions)


def _without_former_words(mapping: Mapping[str, Any], rows: Mapping[str, Removed | None]) -> Any:
    """Return a mapping with the words of now, or its value if a former word's value is now the mapping's."""
    whole = next((word for word, row in rows.items() if row and row.is_value), None)
    if whole is None:
        return {row.now if (row := rows[word]) else word: each for word, each in mapping.items()}
    defaults = {word: row.default for word, row in rows.items() if row}
    is_same = all(word == whole or defaults.get(word) in (ANY, each) for word, each in mapping.items())
    return mapping[whole] if is_same else mapping


def _upgraded(value: Any, nodes: Sequence[Mapping[str, Any]], definitions: Mapping[str, Any]) -> Any:
    nodes = [inner for node in nodes for inner in branches(node, definitions)]
    if isinstance(value, list):
        items = [node["items"] for node in nodes if isinstance(node.get("items"), dict)]
        return [_upgraded(each, items, definitions) for each in value]
    if not isinstance(value, dict):
        return value
    former: dict[str, Removed] = {}
    for node in nodes:
        former |= REMOVED.get(node.get("title", ""), {})
    kept: dict[str, Any] = {}
    for key, inner in value.items():
        gone = former.get(key)
        if gone is not None and gone.is_merged and isinstance(inner, dict):
            known = {name for node in nodes for name in node.get("properties", {})}
            kept |= {name: each for name, each in inner.items() if name in known}
            continue
        if gone is not None and gone.now is None and (gone.default is ANY or gone.default == inner):
            continue
        name = key if gone is None or gone.now is None else gone.now
        replaced = former.get(f"{key}={inner}") if isinstance(inner, str) else None
        within = [
            place
            for node in nodes
            for place in (node.get("properties", {}).get(name), node.get("additionalProperties"))
            if isinstance(place, dict)
        ]
        if isinstance(inner, dict):
            inner = _without_former_words(inner, {word: former.get(f"{key}.{word}") for word in inner})
        kept[name] = replaced.now if replaced else _upgraded(inner, within, definitions)
    return kept
