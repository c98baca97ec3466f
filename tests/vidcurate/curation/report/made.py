"""The page as its readers take it: text, links and pictures."""

from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "img", "br"}
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></title><svg onload=alert(1)>",
    "{{ 7 * 7 }} {% include 'x' %}",
    "javascript:alert(1) &lt;b&gt;",
    "right \u202e to left, bell \x07, escape \x1b[31m",
]


class Page(HTMLParser):
    """Collects tags and text, and fails on a tag that is not closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read_page(run: Path) -> Page:
    return Page(text_of(run))


def text_of(run: Path) -> str:
    """Return the report as HTML, without the places at which names may break."""
    return (run / "report.html").read_text(encoding="utf-8").replace("<wbr>", "")
