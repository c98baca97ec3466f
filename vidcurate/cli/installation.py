"""Commands on the installation: recipes that come with the package, and versions."""

import ast
import platform
import re
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer

from vidcurate import __version__
from vidcurate.cli.common import Json, app, print_summary
from vidcurate.errors import InputError, StorageError
from vidcurate.storage import atomic_file

# recipes/ of the repository, by a symbolic link; a wheel holds the files themselves.
BUNDLED = Path(__file__).resolve().parents[1] / "recipe" / "bundled"
PACKAGES = ("av", "polars", "pyarrow", "torch")
# Codec → decoders that PyAV may have been built with, by their names in FFmpeg.
DECODERS = {
    "h264": ("h264",),
    "hevc": ("hevc",),
    "vp9": ("vp9", "libvpx-vp9"),
    "av1": ("libdav1d", "libaom-av1", "av1"),
}


def _about(path: Path) -> str:
    """Return the first sentence of a recipe's comment, or the first line of a module's docstring."""
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "$schema=" not in line]
    start = next(number for number, line in enumerate(lines) if line.startswith("# "))
    comment = takewhile(lambda line: re.match(r"# \S", line), lines[start:])
    text = " ".join(line[2:] for line in comment)
    found = re.match(r".*?[.?](?=\s|$)", text)
    return found[0] if found else text


def _schema(path: Path) -> list[Path]:
    """Return the JSON Schema that a recipe names in its first line."""
    with path.open(encoding="utf-8") as file:
        named = re.search(r"\$schema=(\S+)", file.readline())
    return [path.with_name(named[1])] if named else []


def _chosen(names: list[str]) -> list[Path]:
    """Return the files of `names` with their schemas, all files where there are none. Raises InputError."""
    files = sorted(path for path in BUNDLED.iterdir() if path.is_file())
    if not names:
        return files
    recipes = {path.stem: path for path in files if path.suffix != ".json"}
    found: list[Path] = []
    for name in names:
        path = recipes.get(name) or next((path for path in files if path.name == name), None)
        if path is None:
            raise InputError(f"{name}: unknown recipe. Recipes: {', '.join(recipes)}.")
        found += [path, *_schema(path)]
    return list(dict.fromkeys(found))


def copy_recipes(names: list[str], folder: Path, *, force: bool = False) -> dict[str, Any]:
    """Copy bundled recipes and their schemas into a folder; return the paths written and left unchanged.

    A file that differs from the bundled one is replaced only with `force`: otherwise nothing is written.
    Raises InputError, StorageError.
    """
    chosen = [(path, folder / path.name) for path in _chosen(names)]
    differ = [to for path, to in chosen if to.exists() and to.read_bytes() != path.read_bytes()]
    if differ and not force:
        more = f" (and {len(differ) - 1} more)" if len(differ) > 1 else ""
        raise InputError(
            f"{differ[0]}: exists with other contents{more}; nothing was copied. Add --force to overwrite, "
            "or --to FOLDER."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = {to: atomic_file.write_if_absent(to, path.read_bytes()) for path, to in chosen}
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written ({error.strerror or error}).") from error
    return {
        "written": [str(to) for to, is_new in written.items() if is_new],
        "unchanged": [str(to) for to, is_new in written.items() if not is_new],
    }


@app.command()
def recipes(
    action: Annotated[str, typer.Argument(help="list or copy.", metavar="ACTION")],
    names: Annotated[
        list[str] | None, typer.Argument(help="With copy: which. Default: all.", metavar="NAME")
    ] = None,
    to: Annotated[
        Path, typer.Option("--to", help="With copy: the folder to write.", metavar="FOLDER")
    ] = Path("recipes"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files with other contents.")] = False,
    to_json: Json = False,
) -> None:
    """List the recipes that come with this package, or copy them with their schemas into a folder.

    Example: vidcurate recipes copy smoke --to my-recipes
    """
    if action == "copy":
        print_summary(copy_recipes(names or [], to, force=force), title=f"recipes → {to}", to_json=to_json)
        return
    if action != "list" or names:
        raise InputError(f"recipes {' '.join([action, *(names or [])])}: use `list`, or `copy NAME…`.")
    files = [path for path in _chosen([]) if path.suffix != ".json"]
    rows = [{"recipe": path.name, "about": _about(path)} for path in files]
    print_summary({"recipes": rows}, title="recipes", to_json=to_json)


def _installed(package: str) -> str | None:
    """Return a package's version from its metadata, without importing it; None where it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, Any]:
    """Return the versions that a bug report needs, as plain values; None for what is not installed."""
    import av
    from av import library_versions

    def is_built_in(name: str) -> bool:
        try:
            av.Codec(name, "r")
        except av.codec.codec.UnknownCodecError:
            return False
        return True

    return {
        "vidcurate": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _installed(name) for name in PACKAGES},
        "ffmpeg": {name: ".".join(map(str, parts)) for name, parts in library_versions.items()},
        "decoders": {
            codec: [name for name in names if is_built_in(name)] for codec, names in DECODERS.items()
        },
    }


@app.command()
def version(to_json: Json = False) -> None:
    """Print the versions of vidcurate, Python, FFmpeg's libraries, its decoders and the main packages.

    Example: vidcurate version --json
    """
    found = versions()
    if not to_json:
        found["decoders"] = {codec: ", ".join(names) or "none" for codec, names in found["decoders"].items()}
    print_summary(found, title="version", to_json=to_json)
