"""Table adapter: any table with a clip and a caption, by a column map.

A column of ours that is not in the map is taken by one of the names that people give it. The same names
serve the JSON beside a video and inside a shard.
"""

import difflib
import json
from pathlib import Path
from typing import Any

from vidcurate.curation.ingest import captions
from vidcurate.curation.ingest.own_cells import rows_of
from vidcurate.curation.ingest.rows import CELLS, Rows
from vidcurate.curation.ingest.source import Source, demand, listed, normal, pick, text
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.errors import ColumnError, InputError

CAPTION = ("caption", "text", "prompt", "video_caption", "cap", "captions")
ALIASES: dict[str, tuple[str, ...]] = {
    "clip_id": ("clip_id", "id"),
    "source_dataset": ("source_dataset",),
    "source_id": ("source_id",),
    "video_path": (
        *("video_path", "path", "video", "media_path", "file_path", "file_name", "filename", "file"),
    ),
    "caption": CAPTION,
    "start_seconds": ("start_seconds", "start"),
    "end_seconds": ("end_seconds", "end"),
    "width": ("width", "width_from_metadata"),
    "height": ("height", "height_from_metadata"),
    "fps": ("fps", "fps_from_metadata"),
    "num_frames": ("num_frames", "frames", "frame", "num_frames_from_metadata"),
    "duration_seconds": ("duration_seconds", "seconds", "duration", "duration_seconds_from_metadata"),
    **{name: (name,) for name in CELLS if name.endswith(("_score", "_motion", "_filtering"))},
}


def our_column(name: str) -> str:
    """Return the column that a map's key means: `video` is video_path, caption_NAME the caption NAME.

    Raises InputError with the nearest one.
    """
    if name.startswith("caption_") and name != "caption_":
        return f"{captions.PART}{name.removeprefix('caption_')}"
    ours = "video_path" if name == "video" else name.removesuffix("_from_metadata")
    if ours in CELLS:
        return ours
    near = difflib.get_close_matches(name, CELLS, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"It is one of {', '.join(CELLS)}."
    raise InputError(f"map: {name} is not a column that a table can fill. {hint}")


def read_rows(source: Source, spec: IngestSpec, scratch: Path) -> Rows:
    """Return the rows of a table read by `spec.map` and the usual names. Raises ColumnError, InputError."""
    mapped = {our_column(ours): demand(source, column, f"map: {ours}") for ours, column in spec.map.items()}
    found = {**pick(source, {k: v for k, v in ALIASES.items() if k not in mapped}), **mapped}
    wanted = mapped.get("caption", spec.caption_column)
    asked = spec.model_copy(update={"caption_column": wanted})
    hint = " Name it: --map caption=COLUMN."
    taken = set(mapped.values())
    named = captions.columns(source, asked, *CAPTION, hint=hint)
    found |= {part: column for part, column in named.items() if part == "caption" or column not in taken}
    if "video_path" not in found and "clip_id" not in found:
        raise ColumnError(
            f"{source.path}: no column names the video; it has {listed(source.dtypes)}. "
            "Name it: --map video=COLUMN."
        )
    return rows_of(source, text(source, found), found)


def json_row(document: str, caption: str | None) -> dict[str, Any]:
    """Return the row of a JSON object that describes one clip: cells as text, captions, and `own` values.

    Numbers among the cells keep the digits they were written with. `caption` names the key of the caption, if
    not one of the usual. Raises ValueError when it is not a JSON object.
    """
    facts = json.loads(document, parse_float=str, parse_int=str, parse_constant=str)
    if not isinstance(facts, dict):
        raise ValueError("not a JSON object")
    json.dumps(facts, ensure_ascii=False).encode()  # a lone surrogate is no text
    keys = {normal(key): key for key in reversed(facts)}
    plain = [keys[normal(name)] for name in CAPTION if normal(name) in keys]
    row, taken = captions.of_facts(facts, caption, plain)
    for ours, accepted in {**ALIASES, "caption": (), "clip_id": ("clip_id",)}.items():
        for name in accepted:
            key = keys.get(normal(name))
            value: Any = facts.get(key) if key is not None else None
            if key is not None and isinstance(value, str | bool):
                taken.add(key)
                row[ours] = str(value).strip()
                break
    given = json.loads(document).items()
    own = {key: value for key, value in given if value is not None and key not in taken}
    return {**row, "own": own}
