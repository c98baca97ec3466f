"""Node comparison: deviations from the other nodes' median, and likely reasons."""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Document = Mapping[str, Any]
FEWEST_OTHERS = 2  # with fewer nodes there is no median to deviate from
# Clock reasons of a GPU that mean nothing: idle, or as configured.
QUIET = ("gpu_idle", "applications_clocks_setting", "display_clock_setting")


@dataclass(frozen=True, slots=True)
class Measure:
    """A value of a node, or of each of its GPUs.

    A node is off if its value differs in the bad direction by more than `absolute` and by more than `share`
    of the others' median.
    """

    name: str
    unit: str
    of: Callable[[Document], list[tuple[str, float | None]]]
    bad: Literal["low", "high"]
    absolute: float
    share: float


def _of_gpus(key: str) -> Callable[[Document], list[tuple[str, float | None]]]:
    return lambda document: [(f"GPU {gpu['index']}", gpu[key]) for gpu in document["gpus"]]


def _memory_gib(document: Document) -> list[tuple[str, float | None]]:
    return [
        (
            f"GPU {gpu['index']}",
            None if gpu["memory_used_bytes"] is None else gpu["memory_used_bytes"] / 2**30,
        )
        for gpu in document["gpus"]
    ]


def _load(document: Document) -> list[tuple[str, float | None]]:
    return [("", document["machine"]["load"] / (document["machine"]["cores"] or 1))]


def _free_memory(document: Document) -> list[tuple[str, float | None]]:
    memory = document["machine"]["memory"]
    return [("", 100 * memory["available_bytes"] / memory["total_bytes"])]


def _network(key: str) -> Callable[[Document], list[tuple[str, float | None]]]:
    def of(document: Document) -> list[tuple[str, float | None]]:
        return [("", sum(port[key] or 0.0 for port in document["network"].values()) / 1e6)]

    return of


MEASURES = (
    Measure("SM clock", "MHz", _of_gpus("sm_clock_mhz"), "low", absolute=50.0, share=0.1),
    Measure("power", "W", _of_gpus("power_watts"), "low", absolute=50.0, share=0.25),
    Measure("temperature", "C", _of_gpus("temperature_celsius"), "high", absolute=12.0, share=0.0),
    Measure("utilisation", "%", _of_gpus("utilisation_percent"), "low", absolute=30.0, share=0.0),
    Measure("memory held", "GiB", _memory_gib, "high", absolute=4.0, share=0.25),
    Measure("memory held", "GiB", _memory_gib, "low", absolute=4.0, share=0.25),
    Measure("load per core", "", _load, "high", absolute=0.5, share=1.0),
    Measure("free memory", "%", _free_memory, "low", absolute=20.0, share=0.5),
    Measure("received", "MB/s", _network("received_bytes_per_second"), "low", absolute=50.0, share=0.5),
    Measure("sent", "MB/s", _network("sent_bytes_per_second"), "low", absolute=50.0, share=0.5),
)


def off_the_median(documents: Mapping[str, Document]) -> dict[str, list[str]]:
    """Return each node's deviations from the median of the others as text; none below three nodes."""
    found: dict[str, list[str]] = {name: [] for name in documents}
    for name, document in documents.items():
        others = [other for key, other in documents.items() if key != name]
        if len(others) >= FEWEST_OTHERS:
            found[name] = [*_figures(document, others), *_words(document, others)]
    return found


def _figures(document: Document, others: list[Document]) -> list[str]:
    lines = []
    for measure in MEASURES:
        have = [other for other in others if any(value is not None for _, value in measure.of(other))]
        if len(have) < FEWEST_OTHERS:
            continue
        median = statistics.median(
            value for other in have for _, value in measure.of(other) if value is not None
        )
        limit = max(measure.absolute, measure.share * abs(median))
        for where, value in measure.of(document):
            worse = 0.0 if value is None else (median - value if measure.bad == "low" else value - median)
            if value is not None and worse > limit:
                place = f"{where}: " if where else ""
                figures = f"{_number(value)} {measure.unit}".strip()
                why = _reason(document, where) if measure.name in ("SM clock", "power") else ""
                lines.append(f"{place}{measure.name} {figures}, the others' median is {_number(median)}{why}")
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _reason(document: Document, where: str) -> str:
    """The GPU's own reason for its clocks."""
    for gpu in document["gpus"]:
        reasons = [reason for reason in gpu["throttle_reasons"] if reason not in QUIET]
        if where == f"GPU {gpu['index']}" and reasons:
            return f" ({', '.join(reasons)})"
    return ""


def _words(document: Document, others: list[Document]) -> list[str]:
    """What must be equal on all nodes: the number of GPUs, their driver, the state of InfiniBand ports."""
    lines = []
    for key, title in (("driver", "driver"), ("num_gpus", "number of GPUs")):
        mine, theirs = _word(document, key), Counter(_word(other, key) for other in others)
        usual, times = theirs.most_common(1)[0]
        if mine != usual and times > len(others) / 2:
            lines.append(f"{title} {mine}, the others have {usual}")
    lines += [
        f"{name}: the link is {port['state']}"
        for name, port in document["network"].items()
        if port["kind"] == "infiniband" and port["state"] != "ACTIVE"
    ]
    return lines


def _word(document: Document, key: str) -> str:
    return str(len(document["gpus"]) if key == "num_gpus" else document.get(key) or "none")
