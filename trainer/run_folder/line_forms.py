"""Forms of a run's files: which keys a line or document has, and of what kind.

Every reader of metrics.jsonl, validation.jsonl, events.jsonl, clip_losses.jsonl, samples.json and heartbeats
checks what it has read here first: a file may be cut, edited or forged, and later code relies on the kinds.
Keys that no form has are only shown as text. Stdlib only: reports and supervisors start fast.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]
Form = Mapping[str, Check]

MOST_STEPS = 10**12
MOST_SECONDS = 1e9
LAST_TIME = 2.5e11  # seconds since the epoch: the year 9892
MOST = 1e30
_NOT_FINITE = ("nan", "inf", "-inf")  # as `jsonl.to_json_value` writes them
_SHOWN_LETTERS = 40


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number such as a step."""
    return type(value) is int and 0 <= value <= MOST_STEPS


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_number(value: Any, low: float = -MOST, high: float = MOST) -> bool:
    """Whether a value is a finite number from `low` to `high`."""
    return type(value) in (int, float) and low <= value <= high


def is_measured(value: Any) -> bool:
    """Whether a value is what a loss or a norm can be: a number, nan or inf, as text too, or nothing."""
    is_not_finite = isinstance(value, float) and not math.isfinite(value)
    return value is None or value in _NOT_FINITE or is_not_finite or is_number(value)


def is_time(value: Any) -> bool:
    return is_number(value, 0, LAST_TIME)


def is_seconds(value: Any) -> bool:
    return is_number(value, 0, MOST_SECONDS)


def is_none_or(check: Check) -> Check:
    """Return the check of None, or of a value that passes `check`."""
    return lambda value: value is None or check(value)


def is_list_of(check: Check, length: int | None = None) -> Check:
    """Return the check of a list, of `length` if given, each item of which passes `check`."""
    return lambda value: (
        isinstance(value, list) and length in (None, len(value)) and all(check(one) for one in value)
    )


def is_map_of(check: Check) -> Check:
    """Return the check of an object, each value of which passes `check`."""
    return lambda value: isinstance(value, dict) and all(check(one) for one in value.values())


def is_of(form: Form) -> Check:
    """Return the check of an object that has every key of `form`, of its kind."""
    return lambda value: (
        isinstance(value, dict) and all(key in value and check(value[key]) for key, check in form.items())
    )


def _is_bucket(value: Any) -> bool:
    """Whether a value is [micro-batches, clips, predicted cost, seconds]."""
    return is_list_of(is_number, 4)(value) and min(value[:3]) > 0 and value[3] >= 0


_is_pair = is_list_of(lambda value: is_number(value, 0), 2)
_LOSSES: Form = dict.fromkeys(
    ("loss_by_bucket", "loss_by_source", "loss_by_level", "loss_by_timestep", "loss_by_clip"),
    is_map_of(is_measured),
)
_is_balance = is_of(
    {
        "ranks": lambda value: is_whole(value) and value > 0,
        "predicted": _is_pair,
        "measured": _is_pair,
        "of_ranks": is_list_of(_is_pair),
    }
)

_METRICS: Form = {
    "stage": is_text,
    "clips": is_whole,
    "tokens": is_whole,
    "data_seconds": is_seconds,
    **dict.fromkeys(
        ("grad_norm", "weight_norm", "lr", "tokens_per_second", "mfu", "peak_gib", "tflops_per_device"),
        is_measured,
    ),
    **_LOSSES,
    "cost_unit": is_text,
    "bucket_seconds": is_map_of(_is_bucket),
    "rank_balance": _is_balance,
}
_VALIDATION: Form = {
    "stage": is_text,
    "weights": is_text,
    "standard_error": is_measured,
    "change": is_measured,
    "change_standard_error": is_measured,
    **_LOSSES,
}
_EVENTS: Form = {
    "event": is_text,
    "seconds": is_number,  # of a clock that was set back, fewer than 0
    "process_began": is_time,
    "lost_from": is_time,
    "lost_until": is_time,
    "stall_seconds": is_seconds,
}
_SERVED: Form = dict.fromkeys(("folder", "digest", "preset"), is_text)
_ALL: Form = {"time": is_time, "seconds": is_seconds, "loss": is_measured}
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "metrics.jsonl": ("stage", "loss", "time", "seconds", "data_seconds"),
    "validation.jsonl": ("weights", "loss", "time", "seconds", "loss_by_clip"),
    "events.jsonl": ("event", "time"),
    "served.jsonl": ("event", "time"),
}
_FORMS: Mapping[str, Form] = {
    "metrics.jsonl": _METRICS,
    "validation.jsonl": _VALIDATION,
    "events.jsonl": _EVENTS,
    "served.jsonl": {**_EVENTS, **_SERVED},
}
_is_verdict = is_of({"ranks": is_list_of(is_whole), "reason": is_text})


def fault_of(line: Any, name: str) -> str:
    """Return what is wrong with a line of the file `name`; "" if nothing is."""
    if not isinstance(line, dict):
        return "it is no JSON object"
    if not is_whole(line.get("step")):
        return _unlike("step", line.get("step"))
    form = {**_ALL, **_FORMS.get(name, {})}
    if line.get("event") == "guard" and line.get("action") == "drain":
        form["verdict"] = _is_verdict
    needed = _NEEDED.get(name, ())
    if name == "served.jsonl" and line.get("event") == "served":
        needed = (*needed, *_SERVED)
    for key in needed:
        if key not in line:
            return f"it has no {key}"
    for key, check in form.items():
        if key in line and not check(line[key]):
            return _unlike(key, line[key])
    return ""


def _unlike(key: str, value: Any) -> str:
    shown = repr(value)
    return f"its {key} is {shown if len(shown) <= _SHOWN_LETTERS else f'{shown[:_SHOWN_LETTERS]} …'}"


CLIP_LISTS: Form = {
    "clip_ids": is_list_of(is_text),
    "buckets": is_list_of(is_text),
    "levels": is_list_of(is_text),
    "losses": is_list_of(lambda value: value is not None and is_measured(value)),
    "timesteps": is_list_of(lambda value: is_number(value, 0, 1e6)),
}
is_clip_losses = is_of({"step": is_whole, "stage": is_text, **CLIP_LISTS})

_is_sample = is_of(
    {"number": is_whole, "seed": lambda value: type(value) is int, "prompt": is_text, "file": is_text}
)
_is_asked = is_of(
    {
        **dict.fromkeys(("num_frames", "height", "width", "steps"), is_whole),
        **dict.fromkeys(("fps", "guidance"), is_number),
    }
)


def is_listing(value: Any) -> bool:
    """Whether a value is the samples.json of a round."""
    is_whole_one = is_of({"step": is_whole, "samples": is_list_of(_is_sample)})(value)
    return (
        is_whole_one and is_time(value.get("time", 0)) and ("asked" not in value or _is_asked(value["asked"]))
    )


_is_beat = is_of(
    {
        "time": is_time,
        "step": is_whole,
        "phase": is_text,
        "seconds_in_phase": is_number,
        "seconds_since_progress": is_number,
    }
)
_COLLECTIVE: Form = {
    "group": is_text,
    "ranks": is_list_of(is_whole),
    "name": is_text,
    **dict.fromkeys(("enqueued", "started", "completed"), lambda value: type(value) is int),
}


def is_heartbeat(value: Any) -> bool:
    """Whether a value is a rank's heartbeat; its `collectives`, if any, have no other keys than theirs."""
    return _is_beat(value) and is_list_of(
        lambda one: is_of(_COLLECTIVE)(one) and set(one) == set(_COLLECTIVE)
    )(value.get("collectives", []))
