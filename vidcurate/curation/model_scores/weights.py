"""Model weights: a local folder or file, or a name on the Hugging Face hub."""

import hashlib
import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

from vidcurate.errors import InputError, StorageError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model", "pytorch_model*.bin")
_WEIGHTS = (".safetensors", ".bin", ".pth", ".pt", ".onnx")
_BLOCK = 1 << 20


def is_there(package: str, setting: str) -> None:
    """Raise InputError, with what to install, unless the package is installed; `setting` is the setting that
    asks for it."""
    if importlib.util.find_spec(package) is None:
        raise InputError(
            f"models.{setting} needs {package}, which is not installed. Run `pip install "
            "'vidcurate[models]'`."
        )


def need(package: str, setting: str) -> Any:
    """Import and return an optional package. Raises InputError as `is_there`."""
    is_there(package, setting)
    return importlib.import_module(package)


def folder_of(source: str, setting: str) -> Path:
    """Return the model folder: `source` itself, or for a hub name the hub's cache.

    Raises InputError for neither, StorageError when the download fails.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if not _HUB_NAME.fullmatch(source):
        raise InputError(
            f"models.{setting} is {source}: neither a folder nor a name on the hub (owner/name)."
        )
    hub = need("huggingface_hub", setting)
    try:
        return Path(hub.snapshot_download(source, allow_patterns=list(_PATTERNS)))
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
        raise StorageError(
            f"models.{setting} is {source}: no such folder, and the download from the hub failed "
            f"({type(error).__name__}). Run `hf download {source}` on a machine with a network, and set the "
            "folder that it prints."
        ) from error


def file_of(path: Path, setting: str) -> Path:
    """Return `path`. Raises InputError when there is no such file."""
    if not path.is_file():
        raise InputError(f"models.{setting} is {path}: no such file.")
    return path


def name_of(path: Path) -> str:
    """Return the name of a model's folder or file with a digest of its weights and settings."""
    files = [path] if path.is_file() else sorted(path.iterdir())
    whole = hashlib.sha256()
    for file in files:
        if file.is_file() and file.suffix in (".json", *_WEIGHTS):
            whole.update(file.name.encode() if path.is_dir() else b"")
            with file.open("rb") as opened:
                while block := opened.read(_BLOCK):
                    whole.update(block)
    return f"{path.name}+{whole.hexdigest()[:8]}"
