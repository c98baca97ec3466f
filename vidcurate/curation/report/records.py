"""Tables of records for the terminal: no number and no name is broken."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table

from vidcurate.errors import printable

_GAP = 2  # blank columns between two columns
_LONGEST_NAME = 32  # of a measure or rule, which readers copy; a longer word, such as a path, may be folded


class Records:
    """Rows of equal keys as a table; where numbers and names are wider than the screen, one block per row."""

    def __init__(
        self,
        title: str,
        rows: Sequence[Mapping[str, Any]],
        cell: Callable[[Any], str] = lambda value: printable(str(value)),
    ) -> None:
        self._title = title
        self._rows = [{key: "" if row[key] is None else cell(row[key]) for key in rows[0]} for row in rows]
        self._words = {
            key for key in rows[0] if any(isinstance(row[key], str | list | tuple | dict) for row in rows)
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table() if self._least_width() <= options.max_width else self._blocks()

    def _least(self, key: str) -> int:
        """Return the least width of a column: its longest number, or the longest word of title and text."""
        title = max(map(len, key.split("_")))
        if key not in self._words:
            return max(title, *(len(row[key]) for row in self._rows))
        words = (len(word) for row in self._rows for word in row[key].split())
        return max(title, min(_LONGEST_NAME, max(words, default=0)))

    def _least_width(self) -> int:
        return sum(self._least(key) + _GAP for key in self._rows[0])

    def _table(self) -> RenderableType:
        table = Table(title=self._title, title_justify="left", box=None, padding=(0, _GAP, 0, 0))
        for key in self._rows[0]:
            table.add_column(key.replace("_", " "), overflow="fold", min_width=self._least(key))
        for row in self._rows:
            table.add_row(*row.values())
        return table

    def _blocks(self) -> RenderableType:
        table = Table(
            title=self._title, title_justify="left", show_header=False, box=None, padding=(0, _GAP, 0, 0)
        )
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for number, row in enumerate(self._rows):
            if number:
                table.add_row("", "")
            for key, value in row.items():
                table.add_row(key.replace("_", " "), value)
        return table
