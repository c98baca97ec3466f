"""Manifests that are no table: JSON arrays and maps, pairs of texts, data-juicer.

Each is read as rows (a dict each) that the adapter `table` takes as JSON Lines. The layouts: diffusion-pipe
(utils/dataset.py: captions.json maps a file to its captions), FastVideo (videos2caption.json: path, cap,
resolution), VideoX-Fun, LTX and Automodel (arrays of objects), CogVideoX and finetrainers (prompts.txt and
videos.txt, line by line), data-juicer (`videos` and a text with `<__dj__video>` for each).
"""

import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vidcurate.curation.ingest.adapters.table import ALIASES, CAPTION
from vidcurate.curation.ingest.source import normal
from vidcurate.errors import InputError
from vidcurate.storage import regular_file

Row = dict[str, Any]
PROMPTS = ("prompts.txt", "prompt.txt", "captions.txt", "caption.txt")
VIDEOS = ("videos.txt", "video.txt")
_VIDEO = {normal(name) for name in (*ALIASES["video_path"], *ALIASES["clip_id"])}
_TOKEN = "<__dj__video>"
_TOKENS = re.compile(r"<__dj__(?:video|image|audio)>|<\|__dj__eoc\|>")
_END_OF_CHUNK = "<|__dj__eoc|>"


def _read(path: Path, encoding: str) -> str:
    try:
        return regular_file.read_text(path, encoding).removeprefix("\ufeff")
    except UnicodeError as error:
        raise InputError(f"{path}: is not {encoding} ({error}). Set the right encoding.") from error
    except OSError as error:
        raise InputError(f"{path}: the metadata cannot be read ({error.strerror}).") from error


def json_rows(path: Path, encoding: str = "utf-8") -> Iterator[Row]:
    """Yield the rows of a JSON file: an array of objects, or a map from file to caption, captions or facts.

    An object with one array of objects, such as {"data": […]}, is read as that array. Raises InputError.
    """
    try:
        document = json.loads(_read(path, encoding))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no JSON ({error}).") from error
    if isinstance(document, dict):
        arrays = [value for value in document.values() if _is_table(value)]
        if len(arrays) == 1 and not any(isinstance(value, dict) for value in document.values()):
            document = arrays[0]
        else:
            yield from _of_map(path, document)
            return
    if not isinstance(document, list):
        raise InputError(f"{path}: is neither an array of objects nor a map from file to caption.")
    for number, row in enumerate(document, start=1):
        if not isinstance(row, dict):
            raise InputError(
                f"{path}: entry {number} is {json.dumps(row)[:60]}, not an object with a video and a caption."
            )
        yield _flat(row)


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _of_map(path: Path, document: Mapping[str, Any]) -> Iterator[Row]:
    keys = {normal(key) for key in document}
    if keys & _VIDEO and keys & {normal(name) for name in CAPTION}:
        yield _flat(document)  # one clip
        return
    for name, value in document.items():
        if isinstance(value, dict):
            known = {normal(key) for key in value} & _VIDEO
            yield _flat({("key" if known else "video"): name, **value})
        elif value is None or isinstance(value, str) or _is_texts(value):
            yield {"video": name, "caption": value}
        else:
            raise InputError(
                f"{path}: {name!r} maps to {json.dumps(value)[:60]}, which is no caption, list of captions "
                "or object."
            )


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _flat(row: Mapping[str, Any]) -> Row:
    """Return a row with FastVideo's resolution {width, height} as two columns."""
    size = row.get("resolution")
    if isinstance(size, dict) and set(size) == {"width", "height"} and not size.keys() & row.keys():
        return {**{key: value for key, value in row.items() if key != "resolution"}, **size}
    return dict(row)


def _lines(path: Path, encoding: str) -> list[str]:
    """Return the lines of a file as `open` ends them: U+2028 and form feeds are parts of a caption."""
    return [line.rstrip("\n") for line in io.StringIO(_read(path, encoding), newline=None)]


def pair_of(folder: Path) -> tuple[Path, Path] | None:
    """Return the files of prompts and of videos in a folder, None without both."""
    prompts = [folder / name for name in PROMPTS if (folder / name).is_file()]
    videos = [folder / name for name in VIDEOS if (folder / name).is_file()]
    return (prompts[0], videos[0]) if prompts and videos else None


def pair_rows(prompts: Path, videos: Path, encoding: str = "utf-8") -> Iterator[Row]:
    """Yield a row for each line of both files. Raises InputError when they have other numbers of lines."""
    said, named = (_lines(path, encoding) for path in (prompts, videos))
    while said and not said[-1].strip() and len(said) > len(named):
        said.pop()
    while named and not named[-1].strip():
        named.pop()
    if len(said) != len(named):
        raise InputError(
            f"{prompts}: has {len(said)} lines and {videos.name} {len(named)}; a line of both is a clip."
        )
    for caption, video in zip(said, named, strict=True):
        yield {"video": video.strip(), "caption": caption.strip()}


def data_juicer_rows(path: Path, encoding: str = "utf-8") -> Iterator[Row]:
    """Yield a row for each video of each line: its caption is the text of its chunk, without tokens.

    Raises InputError for a line that is no object, or has other numbers of videos and of `<__dj__video>`.
    """
    for number, line in enumerate(_lines(path, encoding), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            videos, text = row.pop("videos") or [], row.pop("text") or ""
        except (ValueError, KeyError, AttributeError) as error:
            raise InputError(f"{path}: line {number} has no videos and text ({error}).") from error
        chunks = [chunk for chunk in text.split(_END_OF_CHUNK) for _ in range(chunk.count(_TOKEN))]
        if _TOKEN not in text:
            chunks = [text] * len(videos)
        if len(chunks) != len(videos):
            raise InputError(
                f"{path}: line {number} has {len(videos)} videos and {len(chunks)} {_TOKEN} in its text."
            )
        for video, chunk in zip(videos, chunks, strict=True):
            yield {"video": video, "caption": _TOKENS.sub(" ", chunk).strip(), **row}
