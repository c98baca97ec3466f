"""Files on web servers: size and version, byte ranges, whole bodies.

Each is one request, which has `seconds` for its headers, and for each 64 KiB of a whole body. All raise
OSError and http.client.HTTPException for what may pass, `http_pool.StatusError` for another answer.
"""

import re
import string
import time
from collections.abc import Callable, Iterator
from urllib.parse import quote

from vidcurate.errors import InputError, ShardError
from vidcurate.storage import http_pool

NO_RANGES = "the server ignores byte ranges; clips are read by range."
_SCHEMES = ("http://", "https://")
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_SIZE = re.compile(r"\d{1,18}")


def is_http(url: str) -> bool:
    return url.startswith(_SCHEMES)


def _ask(url: str, headers: dict[str, str], seconds: float, method: str = "GET") -> http_pool.Answer:
    try:  # a URL as a person writes it may have spaces and letters of any language
        return http_pool.ask(quote(url, safe=string.punctuation), headers, seconds, method)
    except ValueError as error:
        raise InputError(f"{url}: cannot be asked for ({error}).") from error


def _tag(answer: http_pool.Answer) -> str:
    return answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""


def head(url: str, seconds: float) -> tuple[int, str]:
    """Return the size in bytes and the version tag of a file. Raises InputError, ShardError."""
    with _ask(url, {}, seconds, "HEAD") as answer:
        size = answer.headers.get("Content-Length", "")
        if not _SIZE.fullmatch(size):
            raise ShardError(f"{url}: the server does not tell the file's size (Content-Length).")
        return int(size), _tag(answer)


def read_range(
    url: str, first: int, size: int, seconds: float, check: Callable[[int, str], None] = lambda *_: None
) -> bytes:
    """Return the bytes of a file from `first` on, `size` of them or to its end, all within `seconds`.

    `check` gets the file's size and version tag first. Raises InputError, ShardError for a server that
    ignores ranges.
    """
    with _ask(url, {"Range": f"bytes={first}-{first + size - 1}"}, seconds) as answer:
        if answer.status != 206:
            raise ShardError(f"{url}: {NO_RANGES}")
        found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != first or not first <= int(found[2]) < first + size:
            raise OSError(f"asked for bytes {first}-{first + size - 1}, the server sends others")
        check(int(found[3]), _tag(answer))
        due, data = time.monotonic() + seconds, []
        for chunk in answer.chunks(int(found[2]) - first + 1):
            data.append(chunk)
            if time.monotonic() > due:
                raise TimeoutError(f"the server sent {sum(map(len, data)):,} bytes in {seconds:g} s")
        return b"".join(data)


def chunks(url: str, seconds: float) -> Iterator[bytes]:
    """Yield the bytes of a file. Raises InputError."""
    with _ask(url, {}, seconds) as answer:
        yield from answer.chunks()
