"""Zips, whole or in pieces, and a server that hands out ranges of them."""

import hashlib
import http.server
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np


def content(name: str, size: int = 5000) -> bytes:
    """Return bytes that belong to the name; every other member can be compressed."""
    seed = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
    return np.random.default_rng(seed).integers(0, 256 if seed % 2 else 4, size, dtype=np.uint8).tobytes()


def write_zip(path: Path, names: list[str], *, method: int = zipfile.ZIP_DEFLATED, prefix: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(prefix + name), content(name), method)
    return path


def split(path: Path, pieces: int, form: str) -> None:
    """Replace a zip by its pieces, named by `form`."""
    data = path.read_bytes()
    size = -(-len(data) // pieces)
    for number in range(pieces):
        name = form.format(stem=path.stem, letter="a" + chr(97 + number), number=number + 1)
        path.with_name(name).write_bytes(data[number * size : (number + 1) * size])
    path.unlink()


NAMES = [f"clip{n:02d}.mp4" for n in range(20)]


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves byte ranges; `fault` may answer in another way."""

    problem: Callable[["Handler"], bool] = staticmethod(lambda _: False)
    asked: list[str]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        type(self).asked.append(f"{path.name} {self.headers['Range']}")
        if type(self).problem(self):
            return
        data = path.read_bytes()
        first, last = (int(end) for end in self.headers["Range"].removeprefix("bytes=").split("-"))
        body = data[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", hashlib.md5(data).hexdigest())
        self.end_headers()
        self.wfile.write(body)


def places(address: str, parts: Path) -> list[str]:
    return [f"{address}/{path.name}" for path in sorted(parts.iterdir())]


def fetched(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


WANTED = {name: content(name) for name in NAMES[:18] if int(name[4:6]) % 2}
