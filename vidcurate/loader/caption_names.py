"""Names of the captions that a loader shows, checked before the first step."""

import json
from collections.abc import Sequence
from pathlib import Path

from vidcurate.errors import InputError
from vidcurate.sampler.plan import Plan
from vidcurate.shards.index import Index

CLIPS_READ = 16


def check_caption_names(index: Index, plan: Plan, names: Sequence[str]) -> None:
    """Raise InputError for names of captions that no clip has, and for none.

    The loader replaces a missing caption by `caption`, so a typing error would train on other texts than the
    caller names. The index knows the names of captions and the own columns; other keys are looked for in the
    JSON of CLIPS_READ clips, and only of shards on this machine. A shard that cannot be read is left to the
    loader, which names the clip.
    """
    if not names:
        raise InputError("captions names none; give one name or more, such as caption.")
    known = {"caption", *index.caption_names}
    known |= {name for name in index.own_columns if index.is_text(name)}
    unknown = [name for name in names if name not in known]
    if not unknown:
        return
    count = len(index)
    if index.remote is None:
        rows = [int(row) for cell in plan.cells for row in cell.rows[: -(-CLIPS_READ // len(plan.cells))]]
        texts = _texts(index, rows[:CLIPS_READ])
        if texts is None:
            return
        known, count = known | texts, len(rows[:CLIPS_READ])
    elif known == {"caption"}:
        return  # shards of an older version: their JSON may have the key
    for name in unknown:
        if name not in known:
            which = "of" if count == len(index) else "looked at in"
            raise InputError(
                f"captions names {name!r}, which none of {count} clips {which} {index.place} has; they have "
                f"{', '.join(sorted(known))}."
            )


def _texts(index: Index, rows: Sequence[int]) -> set[str] | None:
    """Return the keys of texts in the JSON of these clips; None where one cannot be read."""
    seen: set[str] = set()
    try:
        for row in rows:
            with Path(index.shard_place(row)).open("rb") as file:
                file.seek(index.at("json_offset", row))
                facts = json.loads(file.read(index.at("json_size", row)))
            seen |= {key for key, value in facts.items() if isinstance(value, str) and value}
    except (OSError, ValueError, AttributeError):
        return None
    return seen
