"""Caption cleaning of DeepFloyd IF, as PixArt and Open-Sora's inference use it.

It was written for alt texts of the web: it removes addresses, mark-up, file names, codes, advertising and
Chinese characters, unifies dashes and quotes, and makes lower case. The rules run in this order, and all of
them twice, because one rule's output can match another.
"""

import html
import re
import urllib.parse
import warnings
from typing import Any

from trainer.model.encoders.weights import need

FILES = "(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)"
DOMAIN = r"[a-zA-Z0-9.\-]+[.](?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@)"
DASHES = (
    "\u002d\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0"
    "\ufe31\ufe32\ufe58\ufe63\uff0d"
)

Rule = tuple[re.Pattern[str], str]


def _rules(*pairs: tuple[str, str]) -> tuple[Rule, ...]:
    return tuple((re.compile(pattern), replacement) for pattern, replacement in pairs)


BEFORE_MARKUP = _rules(
    ("<person>", "person"),
    (rf"\b(?:https?:(?:/{{1,3}}|[a-zA-Z0-9%])|{DOMAIN})", ""),
    (rf"\b(?:www:(?:/{{1,3}}|[a-zA-Z0-9%])|{DOMAIN})", ""),
)
AFTER_MARKUP = _rules(
    (r"@\w+\b", ""),
    ("[\u31c0-\u4dff\u4e00-\u9fff]+", ""),  # strokes, enclosed and compatible letters, ideographs
    (f"[{DASHES}]+", "-"),
    ("[`´«»“”¨]", '"'),
    ("[‘’]", "'"),
    ("&quot;?", ""),
    ("&amp", ""),
    (r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}", " "),  # internet addresses
    (r"\d:\d\d\s+$", ""),
    (r"\\n", " "),
    (r"#\d{1,3}\b", ""),
    (r"#\d{5,}\b", ""),
    (r"\b\d{6,}\b", ""),
    (rf"\S+\.{FILES}", ""),
    ("[\"']{2,}", '"'),
    (r"\.{2,}", " "),
    (r"[#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+", " "),
    (r"\s+\.\s+", " "),
)
JOINT = re.compile("[-_]")
MOST_JOINTS = 3  # more of them, and the caption is taken for words-joined-like-this
AFTER_REPAIR = _rules(
    (r"\b[a-zA-Z]{1,3}\d{3,15}\b", ""),  # codes of letters and digits
    (r"\b[a-zA-Z]+\d+[a-zA-Z]+\b", ""),
    (r"\b\d+[a-zA-Z]+\d+\b", ""),
    (r"(worldwide\s+)?(free\s+)?shipping", ""),
    (r"(free\s)?download(\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (rf"\b{FILES}(\simages?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b", " "),
    (r"\b\d+\.?\d*[xх×]\d+\.?\d*\b", ""),  # sizes
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
    (r"^[\"']([\w\W]+)[\"']$", r"\1"),
    (r"^[',\-:;_]", ""),
    (r"[',\-:+_]$", ""),
    (r"^\.\S+$", ""),
)
TIMES = 2


def _applied(rules: tuple[Rule, ...], text: str) -> str:
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text


def _text_of_markup(text: str, bs4: Any) -> str:
    with warnings.catch_warnings():
        # A caption may look like a file name or an address to the parser; it is none.
        warnings.simplefilter("ignore", bs4.MarkupResemblesLocatorWarning)
        return str(bs4.BeautifulSoup(text, features="html.parser").text)


def clean(caption: str) -> str:
    """Return the caption as the published pipelines give it to T5. May be empty.

    Raises InputError if beautifulsoup4 or ftfy, which read mark-up and repair broken Unicode, are missing.
    """
    bs4, ftfy = need("bs4", "text_encoder.clean"), need("ftfy", "text_encoder.clean")
    for _ in range(TIMES):
        caption = urllib.parse.unquote_plus(caption).strip().lower()
        caption = _text_of_markup(_applied(BEFORE_MARKUP, caption), bs4)
        caption = _applied(AFTER_MARKUP, caption)
        if len(JOINT.findall(caption)) > MOST_JOINTS:
            caption = JOINT.sub(" ", caption)
        caption = html.unescape(html.unescape(ftfy.fix_text(caption)))
        caption = _applied(AFTER_REPAIR, caption).strip()
    return caption
