"""Video folder listing, and matching of rows to files.

The folder is listed once and a row's path is only compared with that listing, so a path outside the folder is
never opened. The listing does not follow links to folders, which could form cycles.
"""

import hashlib
import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from vidcurate.errors import InputError

VIDEO_SUFFIXES = tuple(
    f".{name}"
    for name in (
        *("3g2", "3gp", "asf", "avi", "f4v", "flv", "m1v", "m2ts", "m2v", "m4v", "mj2", "mkv", "mov", "mp4"),
        *("mpeg", "mpg", "mts", "mxf", "ogv", "ts", "vob", "webm", "wmv", "y4m"),
    )
)

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
_LINKED = (pl.String, pl.String, pl.Boolean, pl.Int64)
_MOST_FOLDERS = 64  # folders below the root in which `better_root` looks


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Files below `root`, sorted by path.

    `files`: path (relative, forward slashes), size_bytes (null: no file to read, such as a link to nothing, a
    pipe, or a name that is not UTF-8, which no table can hold), leaves (a link out of the
    root), is_video. `links`: links to folders. `digest` covers names and sizes.
    """

    root: Path
    files: pl.DataFrame
    links: tuple[str, ...]
    digest: str


def _walk(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield (path below root, entry) of all files; hidden files and folders are passed over."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(path)
                    else:
                        yield path, entry
        except OSError as error:
            raise InputError(f"{root / folder}: the folder cannot be read ({error.strerror}).") from error


def _size_bytes(entry: os.DirEntry[str]) -> int | None:
    """Return the size of a regular file that a table can name; of anything else None: its row is missing."""
    if printable(entry.path) != entry.path:
        return None
    try:
        found = entry.stat()
    except OSError:  # a link to nothing, or to itself
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def printable(path: str) -> str:
    """Return a name as valid text: bytes that are not UTF-8 become `\\xNN`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def list_folder(root: Path) -> Listing:
    """List the folder `root` with sizes. Raises InputError when it is not a folder or cannot be read."""
    if not root.exists():
        raise InputError(f"{root}: no such folder of videos. Give the folder with --videos.")
    if not root.is_dir():
        raise InputError(f"{root}: is a file; the folder that holds the videos is needed.")
    real = root.resolve()
    found: list[tuple[str, int | None, bool]] = []
    links: list[str] = []
    for path, entry in _walk(root):
        leaves = False
        size: int | None = None
        if entry.is_symlink():
            target = Path(os.path.realpath(entry.path))  # of a loop, the link itself: then there is no file
            leaves = not target.is_relative_to(real)
            if target.is_dir():
                links.append(path)
                continue
        if not leaves:
            size = _size_bytes(entry)
        found.append((printable(path), size, leaves))
    found.sort()
    whole = hashlib.sha256()
    for path, size, leaves in found:
        whole.update(f"{path}\0{size}\0{leaves}\n".encode())
    for path in sorted(links):
        whole.update(f"{path}\0link\n".encode(errors="surrogateescape"))
    files = pl.DataFrame(
        found, schema={"path": pl.String, "size_bytes": pl.Int64, "leaves": pl.Boolean}, orient="row"
    ).with_columns(is_video=pl.col("path").str.to_lowercase().str.contains(_suffixes()))
    return Listing(root=root, files=files, links=tuple(sorted(links)), digest=whole.hexdigest())


def _suffixes() -> str:
    return "(?:" + "|".join(suffix.replace(".", r"\.") for suffix in VIDEO_SUFFIXES) + ")$"


def holds_videos(root: Path) -> bool:
    """Say whether a file below `root` has a video's extension."""
    return any(path.lower().endswith(VIDEO_SUFFIXES) for path, _ in _walk(root))


def holds_captioned_images(root: Path) -> bool:
    """Return whether a `.txt` or `.json` below `root` has the name of an image beside it."""
    images, texts = set(), set()
    for path, _ in _walk(root):
        stem, suffix = posixpath.splitext(path.lower())
        if suffix in IMAGE_SUFFIXES:
            images.add(stem)
        elif suffix in (".txt", ".json"):
            texts.add(stem)
    return not images.isdisjoint(texts)


def relative(paths: pl.Series, root: Path | None) -> pl.DataFrame:
    """Return `path` (relative to `root`, slashes only forward, no `.` and `..`) and `leaves` for each path.

    An absolute path below the root becomes relative; outside it, after too many `..`, and with a NUL byte,
    `leaves` is true. Without a root an absolute path stays as it is and leaves nothing. Links are not looked
    at here.
    """
    roots = [] if root is None else sorted({posixpath.abspath(root), str(root.resolve())})
    path = pl.col("path")
    if paths.str.contains("\\", literal=True).any():  # else the text is shared, not copied
        path = path.str.replace_all("\\", "/", literal=True)
    for prefix in roots:
        path = path.str.strip_prefix(prefix + "/")
    frame = pl.DataFrame({"path": paths}).select(path=path, leaves=pl.lit(False))
    # Only the odd ones meet Python: absolute, with an empty, `.` or `..` part, or with a NUL.
    odd = pl.col("path").str.contains(r"^/|(?:^|/)\.{0,2}(?:/|$)|\x00") & ~pl.col("path").str.contains(
        "://", literal=True
    )
    odd_paths = frame.filter(odd)["path"].unique().to_list()
    if not odd_paths:
        return frame
    checked = [_normal(path, roots) for path in odd_paths]
    known = pl.DataFrame(
        {"path": odd_paths, "plain": [plain for plain, _ in checked], "out": [out for _, out in checked]},
        schema={"path": pl.String, "plain": pl.String, "out": pl.Boolean},
    )
    return frame.join(known, on="path", how="left", maintain_order="left").select(
        path=pl.coalesce("plain", "path"), leaves=pl.coalesce("out", "leaves")
    )


def _normal(path: str, roots: list[str]) -> tuple[str, bool]:
    if "\0" in path:
        return path, True
    plain = posixpath.normpath(path)
    for root in roots:
        if plain.startswith(root + "/"):
            return plain[len(root) + 1 :], False
    if plain.startswith("/"):
        return plain, bool(roots)
    return plain, plain == ".." or plain.startswith("../")


def match(paths: pl.DataFrame, listing: Listing, *, finds_by_name: bool) -> pl.DataFrame:
    """Find the file of each row: `paths` has path and leaves (both from `relative`).

    Returns, row by row: path (that of the file where one was found), size_bytes, leaves, is_there, by_name (a
    bare name that was found below the root), is_ambiguous (a bare name that several folders hold). Names are
    looked for with `finds_by_name`, and never among files that another row names by their path: that row's
    caption belongs to the file.
    """
    paths = _through_links(paths.select("path", "leaves"), listing)
    wanted = paths.with_columns(pl.when(~pl.col("leaves")).then("path").alias("wanted"))
    files = listing.files.select("path", "size_bytes", pl.col("leaves").alias("link_leaves"))
    found = wanted.join(files, left_on="wanted", right_on="path", how="left", maintain_order="left")
    found = found.with_columns(by_name=pl.lit(False), is_ambiguous=pl.lit(False))
    found = found.with_columns(size_bytes=pl.coalesce("size_through_link", "size_bytes"))
    missing = pl.col("link_leaves").is_null() & pl.col("size_through_link").is_null() & ~pl.col("leaves")
    below = files.filter(pl.col("path").str.contains("/", literal=True)) if finds_by_name else files.clear()
    if below.height and found.select(missing.any()).item():
        names = (
            below.join(wanted.select("wanted"), left_on="path", right_on="wanted", how="anti")
            .with_columns(name=pl.col("path").str.extract(r"([^/]+)$", 1))
            .group_by("name")
            .agg(
                pl.col("path").first().alias("path_below"),
                pl.col("size_bytes").first().alias("size_below"),
                pl.col("link_leaves").first().alias("leaves_below"),
                pl.len().alias("homes"),
            )
        )
        bare = missing & ~pl.col("path").str.contains("/", literal=True)
        one = bare & (pl.col("homes") == 1)
        found = found.join(names, left_on="path", right_on="name", how="left", maintain_order="left")
        found = found.with_columns(
            path=pl.when(one).then("path_below").otherwise("path"),
            size_bytes=pl.when(one).then("size_below").otherwise("size_bytes"),
            link_leaves=pl.when(one).then("leaves_below").otherwise("link_leaves"),
            by_name=one.fill_null(False),
            is_ambiguous=(bare & (pl.col("homes") > 1)).fill_null(False),
        )
    return found.select(
        "path",
        "size_bytes",
        leaves=pl.col("leaves") | pl.col("link_leaves").fill_null(False),
        is_there=pl.col("size_bytes").is_not_null(),
        by_name="by_name",
        is_ambiguous="is_ambiguous",
    )


# What two names may differ in and still be taken for each other by a person: words, and what removes it.
_FOLDS: dict[str, Callable[[pl.Expr], pl.Expr]] = {
    "with other blanks": lambda path: path.str.replace_all(r"\s+", ""),
    "and a table's \\ is a /": lambda path: path.str.replace_all("\\", "/", literal=True),
    "in another Unicode normal form": lambda path: path.str.normalize("NFC"),
    "in other letter case": lambda path: path.str.to_lowercase(),
}


def _folded(path: pl.Expr, but: str | None = None) -> pl.Expr:
    for words, fold in _FOLDS.items():
        path = path if words == but else fold(path)
    return path


def near_names(missing: pl.DataFrame, extra: pl.Series) -> pl.Series:
    """Return for each missing file which one of the `extra` files has nearly its name, as text; else null.

    `missing` has path and written_path. Names are near when they differ only in blanks, backslashes, letter
    case or the Unicode normal form. No row takes such a file, because another file may be meant.
    """
    files = pl.DataFrame({"file": extra}).with_columns(_folded(pl.col("file")).alias("folded"))
    near = missing.with_columns(_folded(pl.col("path")).alias("folded")).join(
        files.filter(pl.col("folded").is_unique()), on="folded", how="left", maintain_order="left"
    )
    differs = [
        pl.when(_folded(pl.col("path"), words) != _folded(pl.col("file"), words)).then(pl.lit(words))
        for words in _FOLDS
    ]
    text = pl.format(
        "names '{}'; the file is '{}', {}",
        "written_path",
        "file",
        pl.concat_str(differs, separator=", ", ignore_nulls=True),
    )
    return near.select(pl.when(pl.col("file").is_not_null()).then(text)).to_series()


def _through_links(paths: pl.DataFrame, listing: Listing) -> pl.DataFrame:
    """Return `paths` with the real path of each file named through a link to a folder, one by one.

    Adds size_through_link, null for all other rows: the listing may pass over the folder that a link names.
    """
    if not listing.links:
        return paths.with_columns(size_through_link=pl.lit(None, dtype=pl.Int64))
    real, links = Path(os.path.realpath(listing.root)), set(listing.links)
    found: list[tuple[str, str, bool, int | None]] = []
    for path in paths.filter(~pl.col("leaves"))["path"].drop_nulls().unique():
        if not any(path[: place.start()] in links for place in re.finditer("/", path)):
            continue
        target = Path(os.path.realpath(listing.root / path))  # of a loop, a link: then there is no file
        leaves = not target.is_relative_to(real)
        if leaves or not target.is_file():
            found.append((path, path, leaves, None))
        else:
            found.append((path, target.relative_to(real).as_posix(), False, target.stat().st_size))
    names = ["path", "real_path", "goes_out", "size_through_link"]
    known = pl.DataFrame(found, schema=dict(zip(names, _LINKED, strict=True)), orient="row")
    return paths.join(known, on="path", how="left", maintain_order="left").select(
        path=pl.coalesce("real_path", "path"),
        leaves=pl.coalesce("goes_out", "leaves"),
        size_through_link="size_through_link",
    )


def better_root(paths: Sequence[str], root: Path) -> Path | None:
    """Return the folder below which at least half of these missing `paths` are files, None without one.

    Two mistakes are common: the paths repeat the name of the folder (`videos/a.mp4` with `--videos videos`),
    or they leave out one folder below it.
    """
    real = root.resolve()
    above = [parent for parent in (real.parent, real.parent.parent) if parent != parent.parent]
    repeats = [folder for folder in above if any(_is_below(path, real, folder) for path in paths)]
    try:
        below = sorted(entry for entry in real.iterdir() if entry.is_dir())[:_MOST_FOLDERS]
    except OSError:
        below = []
    for folder in [*repeats, *below]:
        if paths and 2 * sum((folder / path).is_file() for path in paths) >= len(paths):
            return root.parent if folder == real.parent else folder
    return None


def _is_below(path: str, real: Path, folder: Path) -> bool:
    return path.startswith(f"{real.relative_to(folder).as_posix()}/")
