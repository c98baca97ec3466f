"""Argument types of outputs: a file to write whole, a folder to write into.

A file is written beside its place and renamed: without this check, a device node or a pipe would be replaced.
"""

import argparse
import os
from pathlib import Path

_LOG = ".jsonl"


def output_file(text: str) -> Path:
    """Return the path of a file to write, for argparse; refuse what is there and is no regular file."""
    path = Path(text)
    if path.suffix == _LOG:
        raise argparse.ArgumentTypeError(f"{text}: ends in {_LOG}, as the logs of a run; give another name")
    if os.path.exists(path) and not path.is_file():
        raise argparse.ArgumentTypeError(f"{text}: is no regular file; give another name")
    output_folder(path.parent)
    return path


def output_folder(text: str | Path) -> Path:
    """Return the path of a folder to write into or make, for argparse; refuse a path through a file."""
    path = Path(text)
    there = next((one for one in (path, *path.parents) if os.path.lexists(one)), path)
    if os.path.lexists(there) and not there.is_dir():
        raise argparse.ArgumentTypeError(f"{there}: is no folder; give another")
    return path
