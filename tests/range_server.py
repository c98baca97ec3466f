"""A web server of a test's own that answers byte ranges, and fails as servers and networks do."""

import hashlib
import re
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

from tests.failing_server import FailingHandler, FailingServer, running


class RangeServer(FailingServer):
    """Serves the files of `folder` by range, each with an ETag of its bytes.

    `faults`: what the next requests for a range meet, one each: None, a status such as 500, `slow`, `cut`
    (half the body), `reset`, `whole` (200 and the whole file) or `etag` (another ETag). `always`: what those
    after them meet.
    `ranges`: (path, first, last) of those that were answered; `asked`: requests by method and path.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(_Handler)
        self.folder = folder
        self.ranges: list[tuple[str, int, int]] = []
        self.asked: Counter[str] = Counter()


class _Handler(FailingHandler):
    server: RangeServer

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        server, path = self.server, self.server.folder / self.path.lstrip("/")
        with server.lock:
            server.asked[f"{self.command} {self.path}"] += 1
        if not path.is_file():
            self.send(404, b"", {})
            return
        data = path.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        fault = server.next_fault() if wanted and self.command == "GET" else None
        etag = hashlib.sha256(data).hexdigest()[:16] + ("x" if fault == "etag" else "")
        if isinstance(fault, int):
            self.send(fault, b"", {})
            return
        if self.fails(fault):
            return
        first, last = (int(wanted[1]), int(wanted[2])) if wanted else (0, len(data) - 1)
        last = min(last, len(data) - 1)
        is_part = wanted is not None and fault != "whole"
        if is_part and first > last:
            self.send(416, b"", {})
            return
        headers = {
            "ETag": f'"{etag}"',
            "Last-Modified": self.date_time_string(int(path.stat().st_mtime)),
            "Accept-Ranges": "bytes",
        }
        if is_part:
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            with server.lock:
                server.ranges.append((self.path, first, last))
        self.send(
            206 if is_part else 200,
            data[first : last + 1] if is_part else data,
            headers,
            is_cut=fault == "cut",
        )


def serving(folder: Path) -> AbstractContextManager[RangeServer]:
    """Serve `folder` until the end of the block."""
    return running(RangeServer(folder))
