"""Banned words: each has a term of the field, and a search for that term must find the code."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Banned words and the terms to use. Matched as whole words, in prose and as parts of names.
BANNED = {
    "crew|crowd": "executor, worker pool",
    "deal|deals|dealt|dealing": "assign, rank balance",
    "diary|diaries": "log, metrics, events",
    "firm|firmer|firmly": "strict, kill",
    "foretell|foretells|foretold": "predict",
    "goes on|go on|gone on|went on|going on": "resume, continue",
    "hang on|hangs on|hung on": "depend on",
    "in words": "as text",
    "judge|judges|judged|judging|judgement|judgment": "check, decide, evaluate, verdict",
    "of its own accord": "automatically",
    "quicken": "apply fused blocks",
    "road": "pipeline",
    "slab|slabs|shelf": "shared memory",
    "spare|spares": "fallback clip, free",
    "stand in|stands in|stand ins|stood in|standin": "substitute, replace",
    "tally|tallies": "counts",
    "telling|told": "log, report, progress",
    "trouble|troubles|troubled": "problem",
}
PATTERN = re.compile(r"\b(" + "|".join(BANNED).replace(" ", r"[\s_-]+") + r")\b", re.IGNORECASE)
# The part of a page that lists old words or names beside the new ones.
FORMERLY = re.compile("<!-- formerly -->.*?<!-- /formerly -->", re.DOTALL)
# The name of a random stream: the order of the clips depends on the bytes of this string.
KEPT = {ROOT / "vidcurate/sampler/order.py": '"spare"'}
# This file names them all; data of others and kept figures stay as they were.
EXEMPT = {"tests/test_words.py", "LICENSE"}
SUFFIXES = (".py", ".md", ".yaml", ".toml", ".json", ".html", ".sbatch", "Makefile")


def _name_parts(name: str) -> str:
    return re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name).replace("_", " ")


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of a file: of a Python file its names, strings and comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        text = FORMERLY.sub(lambda found: "\n" * found[0].count("\n"), text)
        yield from enumerate(text.splitlines(), 1)
        return
    if not PATTERN.search(_name_parts(text)):
        return  # to read a file's tokens takes a hundred times as long
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], _name_parts(token.string)
        elif token.type in (tokenize.STRING, tokenize.COMMENT) and token.string != KEPT.get(path.resolve()):
            for number, line in enumerate(token.string.splitlines()):
                yield token.start[0] + number, _name_parts(line)


def banned_words(paths: Iterable[Path]) -> list[str]:
    """Return "file:line: word (say: …)" of every banned word."""
    found = []
    for path in paths:
        for number, text in _texts(path):
            for match in PATTERN.finditer(text):
                word = " ".join(match[1].lower().replace("_", " ").replace("-", " ").split())
                term = next(term for words, term in BANNED.items() if word in words.split("|"))
                found.append(f"{path}:{number}: {match[1]} (say: {term})")
    return found


def _tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [
        ROOT / name
        for name in listed
        if name not in EXEMPT and name.endswith(SUFFIXES) and not name.startswith("benchmarks/results/")
    ]


def test_no_banned_word_in_code_docs_recipes_and_messages() -> None:
    assert banned_words(_tracked()) == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("def deal(): ...", "deal"),
        ("class SlabPart: ...", "Slab"),
        ('raise ValueError("the run goes on")', "goes on"),
        ("x = 1  # is told", "told"),
    ],
)
def test_a_banned_word_is_found_in_names_strings_and_comments(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "file.py"
    path.write_text(text + "\n")
    (line,) = banned_words([path])
    assert f"file.py:1: {word} (say: " in line


def test_a_module_docstring_begins_with_one_line_of_80_characters() -> None:
    long = {}
    for path in _tracked():
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in ("vidcurate", "trainer"):
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
            first = (docstring or "").partition("\n")[0]
            if not 0 < len(first) <= 80:
                long[str(path.relative_to(ROOT))] = first
    assert long == {}


if __name__ == "__main__":  # python tests/test_words.py FILE…
    print("\n".join(banned_words(Path(name) for name in sys.argv[1:])))
