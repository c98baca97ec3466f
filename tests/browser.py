"""Chromium without a window, driven over a pipe: pages are opened, read, clicked and photographed.

`with Browser(folder) as browser: browser.open(page); browser.value("document.title")`. No package is needed:
DevTools listens on two pipes (`--remote-debugging-pipe`), JSON messages that end with a zero byte.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

ANSWER_SECONDS = 60.0
# What DevTools answers while one page gives way to another.
LEFT = ("target navigated or closed", "context was destroyed", "Cannot find context")


def chromium() -> str:
    """Return the browser's path; skip the test where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium here: the page's structure is checked by reading it")
    return found


class Browser:
    """One browser with one page. `complaints` are the errors and warnings of its console so far."""

    def __init__(self, folder: Path) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        words = [
            chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--autoplay-policy=no-user-gesture-required", "--remote-debugging-pipe",
            f"--user-data-dir={folder / 'profile'}",
        ]  # fmt: skip
        # DevTools reads file descriptor 3 and writes 4.
        shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *words],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest, self._number, self._session = b"", 0, ""
        self.complaints: list[str] = []
        self.asked: list[str] = []
        attached = self.call("Target.attachToTarget", targetId=self._page(), flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def _page(self) -> str:
        """Return the id of the one page, which may come a moment after the browser."""
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            targets = self.call("Target.getTargets")["targetInfos"]
            pages: list[str] = [target["targetId"] for target in targets if target["type"] == "page"]
            if pages:
                (page,) = pages
                return page
            assert time.monotonic() < until, "the browser has no page"
            time.sleep(0.05)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)
        os.close(self._in)
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _message(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], max(0.0, until - time.monotonic()))[0], "no answer"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser has ended"
            self._rest += data
        first, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command of the DevTools protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            answer = self._message(until)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self._hear(answer)

    def _hear(self, event: dict[str, Any]) -> None:
        given = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(given["exceptionDetails"]["text"])
        if event.get("method") == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning"):
            self.complaints.append(str([one.get("value") for one in given["args"]]))
        if event.get("method") == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.complaints.append(given["entry"]["text"])
        if event.get("method") == "Network.requestWillBeSent":
            self.asked.append(given["request"]["url"])

    def size(self, width: int, height: int) -> None:
        """Give the window a size in CSS pixels."""
        sizes = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **sizes)

    def scheme(self, name: str) -> None:
        """Prefer light or dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def leave(self) -> None:
        """Leave the page of an earlier test, whose files or server may be gone, and forget its console."""
        self.call("Page.navigate", url="about:blank")
        self.complaints.clear()
        self.asked.clear()

    def open(self, page: Path) -> None:
        self.call("Page.navigate", url=page.as_uri())
        self.until("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """Return what an expression of JavaScript gives, as JSON; a promise is waited for."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, expression: str, seconds: float = 60.0) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + seconds
        while not self._is_true(expression):
            assert time.monotonic() < until, f"still not true: {expression}"
            time.sleep(0.1)

    def _is_true(self, expression: str) -> bool:
        """Return whether an expression is true; false while the page gives way to another one."""
        try:
            return bool(self.value(expression))
        except AssertionError as error:
            if not any(words in str(error) for words in LEFT):
                raise
            return False

    def picture(self, path: Path) -> Path:
        """Write what the window shows as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
        return path
