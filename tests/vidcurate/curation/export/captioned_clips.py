"""A run of three clips with own columns and several captions, and its export."""

from pathlib import Path

from vidcurate.curation.export.clips import ExportSpec
from vidcurate.curation.export.stage import ExportSummary, run_export

FIELDS = [
    "video",
    "caption",
    "short_caption",
    "style_caption",
    "camera make",
    "shots",
    "score_2",
    "ok",
    "caption_names",
    "note",
]
ROWS: list[list[str]] = [
    [
        "a.mp4",
        "a dense caption,\nof two lines",
        "short a",
        "style ☂",
        "Çanon",
        "3",
        "0.25",
        "true",
        "own",
        "x",
    ],
    ["b.mp4", "dense b", "", "style b", "", "-4", "1e3", "false", "", "007"],
    ["c.mp4", "dense c", "short c", "", "日本", "", "", "true", "t", ""],
]


def exported(folder: Path, out: str, **spec: str) -> ExportSummary:
    names = ["diffusion-pipe", "fastvideo", "hf", "mochi", "simpletuner"]
    return run_export(
        folder / "run", folder / out, names, ExportSpec(model="wan2.1", **spec), videos=folder / "videos"
    )


EVERY = {
    "a": ["a dense caption,\nof two lines", "short a", "style ☂"],
    "b": ["dense b", "style b"],
    "c": ["dense c", "short c"],
}
EVERY_ON_ONE_LINE = {key: [" ".join(text.split()) for text in texts] for key, texts in EVERY.items()}
