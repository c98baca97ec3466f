"""Node tables: plain text tables within 100 columns, sizes and rates with units."""

from collections.abc import Sequence
from typing import Any

from trainer.cluster.ask_nodes import Answer

WIDTH = 100
GIB = 1 << 30


def table(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,), indent: str = "") -> list[str]:
    """Return the lines of a table, its first row the headers; the last column is cut at the width.

    `left`: the left-aligned columns; the last column always is.
    """
    last = len(rows[0]) - 1
    widths = [max(len(row[column]) for row in rows) for column in range(last)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append(cut(f"{indent}{'  '.join([*cells, row[last]])}".rstrip()))
    return lines


def cut(line: str, width: int = WIDTH) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"


def wrapped(line: str, indent: str) -> list[str]:
    """Return a long line as several, the later ones indented."""
    lines, words = [], line.split(" ")
    now = words[0]
    for word in words[1:]:
        if len(now) + 1 + len(word) > WIDTH:
            lines.append(now)
            now = indent + word
        else:
            now += f" {word}"
    return [*lines, now]


def size(num_bytes: float | None) -> str:
    """Return bytes as 512 B, 1.5 MiB, 139.8 GiB; "?" for None."""
    if num_bytes is None:
        return "?"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:,.0f} B" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} TiB"


def rate(bytes_per_second: float | None) -> str:
    return f"{size(bytes_per_second)}/s"


def figure(value: float | None, form: str = ",.0f") -> str:
    return "-" if value is None else format(value, form)


def silence(answer: Answer) -> list[str]:
    """Return the line of a node without an answer; a long reason continues below."""
    return wrapped(f"{answer.node.name}  no answer: {answer.error}", "  ")


def count(answers: Sequence[Answer]) -> str:
    """Return the last line of a partial answer: 2 of 3 nodes answered."""
    return f"{sum(answer.document is not None for answer in answers)} of {len(answers)} nodes answered"


def to_json(command: str, answers: Sequence[Answer], **more: Any) -> dict[str, Any]:
    """Return the answers as JSON values: command, nodes (node, error, seconds, document), and more."""
    nodes = [
        {"node": answer.node.name, "error": answer.error or None, "seconds": round(answer.seconds, 3)}
        | (answer.document or {})
        for answer in answers
    ]
    return {"command": command, "nodes": nodes, **more}
