"""Write the kept figures into the README's table "Measured".

    python benchmarks/readme_figures.py

Each line names the rows of benchmarks/results that it shows; what stands between the table's marks is
replaced.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from rows import RESULTS, Row

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- figures: python benchmarks/readme_figures.py -->", "<!-- end of figures -->"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table. `what`, `here` and `beside` are formats of the rows that `rows` names.

    `rows`: {name in the formats: what the row of `file` has under its keys}.
    """

    what: str
    here: str
    beside: str
    file: str
    rows: dict[str, dict[str, str]]


LOADER = "clips/s, 51 frames 240x426, 2 workers"
STEP = "360p_51f"
VAE = "VAE v1.2 encode, 51 x 480 x 848: kept up"
LINES = (
    Line(
        "damaged files found, of 247, full decode",
        "{full[value]:.0%}",
        "{full[peer_value]:.0%}, `ffmpeg -v error`",
        "integrity",
        {"full": {"metric": "recall at full, 247 damaged files"}},
    ),
    Line(
        "truncated files found without decoding",
        "{found[value]:.0%} at {index[value]:.0f} files per CPU second",
        "full decode: {index[peer_value]:.1f} files",
        "integrity",
        {
            "found": {"metric": "truncations found at index"},
            "index": {"metric": "index, CPU time, 8 s 720p clips"},
        },
    ),
    Line(
        "all frame scores of a 3 s 720p clip",
        "{all[value]:.1f} clips per CPU second",
        "a decode for each score: {all[peer_value]:.1f}",
        "frame_scores",
        {"all": {"metric": "all scores, 3 s 720p clips", "unit": "clips/CPU s"}},
    ),
    Line(
        "nouns of captions, one core",
        "{speed[value]:,.0f} captions/s, F1 {f1[value]:.1f}",
        "spaCy's tagger, same training text: {speed[peer_value]:,.0f}, F1 {f1[peer_value]:.1f}",
        "nouns",
        {"speed": {"metric": "captions, one core"}, "f1": {"metric": "F1 in raw text, en_ewt-ud-test"}},
    ),
    Line(
        "copies among a million clips, 5 frames, 8 orientations",
        "{look[value]:.0f} s",
        "numpy, all pairs, 1 frame, 1 orientation: {look[peer_value]:.0f} s (scaled)",
        "dedup",
        {"look": {"metric": "twins by look, 1,000,000 clips x 5 frames x 8 orientations"}},
    ),
    Line(
        "loader, 51 frames of 240p, 2 workers",
        "{bare[value]:.1f} clips/s",
        "bare decoding {bare[peer_value]:.1f}, webdataset + PyAV {other[peer_value]:.1f}",
        "loader",
        {
            "bare": {"metric": LOADER, "peer": "bare decode"},
            "other": {"metric": LOADER, "peer": "webdataset + PyAV"},
        },
    ),
    Line(
        "from start to first batch, 10 million clips",
        "{far[value]:.1f} s",
        "51 clips: {far[peer_value]:.1f} s",
        "resume_time",
        {"far": {"metric": "from the start until first batch, 10,000,000 clips"}},
    ),
    Line(
        "STDiT3-XL/2, training step, 360p x 51 frames",
        "{fast[value]:,.0f} tokens/s; float8 {float8[value]:,.0f}",
        "plain eager: {fast[peer_value]:,.0f}; Open-Sora's own step: {original[peer_value]:,.0f}",
        "train_step_h200",
        {
            "fast": {"metric": f"{STEP}_tokens_per_s"},
            "float8": {"metric": f"{STEP}_float8_tokens_per_s"},
            "original": {"metric": f"{STEP}_over_original"},
        },
    ),
    Line(
        "a real training run in float8, five shapes mixed",
        "{run[value]:,.0f} tokens/s",
        "{run[peer_value]:,.0f} predicted from the shapes alone",
        "mixture_h200_float8",
        {"run": {"metric": "tokens/s, real run"}},
    ),
    Line(
        "Open-Sora's VAE, encoding 480p, kept up at {power[value]:.0f} W",
        "{kept[value]:.0f} frames/s, {energy[value]:.1f} J a frame",
        "the readable encoders: {kept[peer_value]:.0f}, {energy[peer_value]:.1f} J",
        "encoders_h200",
        {
            "kept": {"metric": VAE},
            "power": {"metric": f"{VAE}, power"},
            "energy": {"metric": f"{VAE}, energy"},
        },
    ),
    Line(
        "Open-Sora's published speedrun, projected on 48 GPUs, latents precomputed",
        "{hours[value]:,.0f} GPU hours; float8 {float8[value]:,.0f}",
        "published: {hours[peer_value]:,.0f} H100 hours, encoding included",
        "project_speedrun",
        {
            "hours": {"metric": "gpu_hours_ahead_48_ranks"},
            "float8": {"metric": "gpu_hours_ahead_48_ranks_float8"},
        },
    ),
    Line(
        "demo samples with the right colour and motion, shares",
        "{colour[value]:.2f} and {motion[value]:.2f}",
        "chance: {colour[peer_value]:.2f}",
        "follows",
        {
            "colour": {"metric": "demo samples with the right colour, step 700"},
            "motion": {"metric": "demo samples with the right motion, step 700"},
        },
    ),
)


def kept_row(file: str, wanted: dict[str, str]) -> Row:
    """Return the one kept row of a file that has these values."""
    rows: list[Row] = json.loads((RESULTS / f"{file}.json").read_text())
    (found,) = [row for row in rows if wanted.items() <= row.items()]
    return found


def to_text(hardware: str) -> str:
    """Return the hardware of a row in short: "2 x Intel(R) Xeon(R) Processor" is 2 Xeon cores."""
    cores = re.fullmatch(r"(\d+) x .*?(Xeon|EPYC|Core|Ryzen).*", hardware)
    if cores:
        return f"{cores[1]} {cores[2]} cores"
    return hardware.replace("NVIDIA ", "" if "," in hardware else "one ")


def table() -> str:
    """Return the table of all lines as Markdown."""
    cells = ["| what | here | beside | hardware | file |", "| --- | ---: | ---: | --- | --- |"]
    for line in LINES:
        rows = {name: kept_row(line.file, which) for name, which in line.rows.items()}
        (hardware,) = {row["hardware"] for row in rows.values()}
        texts = [text.format(**rows).replace("%", " %") for text in (line.what, line.here, line.beside)]
        cells.append(f"| {' | '.join(texts)} | {to_text(hardware)} | `{line.file}.json` |")
    return "\n".join(cells)


def main() -> None:
    page = README.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
