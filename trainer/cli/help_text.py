"""Help pages that fit the terminal: prose, commands and lists.

argparse either fills a description and what follows the options into one paragraph, or leaves their lines as
long as they are. Here prose is filled, a command is broken after a backslash, and what a list says of a name
stays in its column.
"""

import argparse
import itertools
import re
import textwrap

_LISTED = re.compile(r" +\S.*?\S {2,}(?=\S)")  # a name and the blanks before what is said of it
_FLAG = re.compile(r"(?<= )(-{1,2}[\w-]+) (?=[^-\s])")  # a flag before its value
_KEPT = "\0"  # for a blank at which no line ends


class HelpFormatter(argparse.HelpFormatter):
    """Formatter of all commands: fits the width, keeps empty lines and the lines of commands and lists."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for is_prose, group in itertools.groupby(text.splitlines(), key=_is_prose):
            own = list(group)
            each = [" ".join(own)] if is_prose else own
            lines += [part for line in each for part in _fitted(line, width - len(indent))]
        return "\n".join(indent + line if line else "" for line in lines)


def _is_prose(line: str) -> bool:
    return bool(line) and not line.startswith(" ") and not line.endswith(":")


def _fitted(line: str, width: int) -> list[str]:
    """Return a paragraph, or a line of a list or a command, broken where it is longer than `width`."""
    if len(line) <= width:
        return [line]
    listed = _LISTED.match(line)
    margin = len(line) - len(line.lstrip())
    if listed or not margin:
        return _wrap(line, width, len(listed[0]) if listed else 0)
    parts = _wrap(_FLAG.sub(r"\1" + _KEPT, line), width - 2, margin + 2)
    return [*(f"{part} \\" for part in parts[:-1]), parts[-1]]


def _wrap(line: str, width: int, hang: int) -> list[str]:
    parts = textwrap.wrap(
        line, width, subsequent_indent=" " * hang, break_long_words=False, break_on_hyphens=False
    )
    return [part.replace(_KEPT, " ") for part in parts]
