"""Sentences of a Universal Dependencies treebank: texts with the span and part of speech of each token."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

NOUNS = ("NOUN", "PROPN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One sentence of a treebank: its text, and each token's span in it with its part of speech."""

    text: str
    tokens: tuple[tuple[int, int, str], ...]


def read_sections(name: str) -> dict[str, list[str]]:
    """Return section -> its lines of a text file beside this one; a section begins with "[its name]"."""
    sections: dict[str, list[str]] = {}
    for line in Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            sections[line.strip("[]")] = []
        elif line:
            sections[list(sections)[-1]].append(line)
    return sections


def read_lines(path: Path) -> list[str]:
    """Return the lines of a CoNLL-U file."""
    return path.read_text(encoding="utf-8").splitlines()


def read_conllu(path: Path) -> Iterator[Text]:
    """Yield the sentences of a CoNLL-U file, as `read_sentences` does."""
    yield from read_sentences(read_lines(path))


def read_sentences(lines: Iterable[str]) -> Iterator[Text]:
    """Yield the sentences of CoNLL-U lines; tokens are found in `# text` (those of a multiword token share
    its span)."""
    text, place, last, end = "", 0, 0, 0
    tokens: list[tuple[int, int, str]] = []
    for line in lines:
        if line.startswith("# text = "):
            text, tokens, place, last, end = line[9:], [], 0, 0, 0
        elif line and not line.startswith("#"):
            number, form, _, part_of_speech = line.split("\t")[:4]
            if "-" in number:
                last = int(number.split("-")[1])
                end = text.index(form, place) + len(form)
            elif "." not in number:
                if int(number) <= last:
                    found = text.find(form, place, end)
                    start = place if found < 0 else found
                    stop = end if int(number) == last else min(start + len(form), end)
                else:
                    start = text.index(form, place)
                    stop = start + len(form)
                tokens.append((start, stop, part_of_speech))
                place = stop
        elif not line and text:
            yield Text(text=text, tokens=tuple(tokens))
            text = ""


def marked_text(sentence: str) -> Text:
    """Return the text of "The *dog barks , and runs .": tokens stand apart, nouns have a mark."""
    text = ""
    tokens: list[tuple[int, int, str]] = []
    for word in sentence.split():
        text += " " if text and word not in (",", ".") else ""
        written = word.removeprefix("*")
        tokens.append((len(text), len(text) + len(written), "NOUN" if word != written else "X"))
        text += written
    return Text(text=text, tokens=tuple(tokens))


def joined(texts: list[Text], size: int) -> list[Text]:
    """Return every `size` neighbouring sentences as one text, as the sentences of a caption stand."""
    result = []
    for first in range(0, len(texts), size):
        text = ""
        parts: list[tuple[int, int, str]] = []
        for sentence in texts[first : first + size]:
            at = len(text) + 1 if text else 0
            text = text.ljust(at) + sentence.text
            parts.extend((start + at, stop + at, part) for start, stop, part in sentence.tokens)
        result.append(Text(text=text, tokens=tuple(parts)))
    return result


def lowered(texts: list[Text]) -> list[str]:
    """Return each text in lower case, or as written where lower case would move the spans."""
    return [text.text.lower() if len(text.text.lower()) == len(text.text) else text.text for text in texts]
