"""Client of a server that speaks OpenAI's chat API: vLLM, SGLang, hosted ones.

A request that may succeed later (408, 409, 425, 429, 5xx, a lost connection, half an answer, JSON that is no
answer) is sent again after a pause that doubles, or after the server's Retry-After, for which all threads
wait. The key comes from the environment and is taken out of every text that the server sends; redirects are
refused, so that the key goes to the named host alone.
"""

import base64
import http.client
import json
import os
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from vidcurate.curation.captioning.request_deadline import Connection, HTTPHandler, HTTPSHandler, Request
from vidcurate.curation.captioning.spec import CaptionSpec
from vidcurate.errors import InputError, StorageError
from vidcurate.storage.http_pool import retry_after

KEYS = ("VIDCURATE_API_KEY", "OPENAI_API_KEY")
_MAY_PASS = {408, 409, 425, 429}
_LONGEST_PAUSE_SECONDS = 60.0
_LONGEST_ASKED_SECONDS = 600.0  # a longer Retry-After ends the command
_MOST_BYTES = 8 << 20
_MOST_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Final answer to one request.

    `finish` is the server's finish_reason, "" without. `problem` says why the server or the model declined,
    with the status where it is not 200; None for a plain answer. Tokens are None where the server counts
    none.
    """

    text: str
    finish: str
    problem: str | None
    tokens_in: int | None
    tokens_out: int | None
    seconds: float


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow no redirect."""


class _Passing(Exception):
    """Failure after which the same request may succeed; `wait_seconds`: what the server asks for."""

    def __init__(self, reason: str, wait_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds


def check_endpoint(endpoint: str) -> None:
    """Raise InputError, without the value, for an address that holds a user, a password or a query."""
    parts = urlsplit(endpoint)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise InputError(
            "--endpoint: give the address alone, without a user, a password or a query. The key comes from "
            f"the environment variable {KEYS[0]}."
        )


def api_key() -> str | None:
    """Return the key from the first of KEYS that is set. Raises InputError for what no header can hold."""
    for name in KEYS:
        if key := os.environ.get(name, "").strip():
            if not (key.isascii() and key.isprintable()):
                raise InputError(f"{name}: the key holds characters that no key has. Set {name} again.")
            return key
    return None


def payload(spec: CaptionSpec, name: str, frames: Sequence[bytes]) -> bytes:
    """Return the body of the request for one caption: the prompt, then the frames as data URLs."""
    prompt = spec.prompts[name]
    content: list[dict[str, Any]] = [{"type": "text", "text": prompt.text}]
    for frame in frames:
        url = f"data:image/jpeg;base64,{base64.b64encode(frame).decode()}"
        content.append({"type": "image_url", "image_url": {"url": url}})
    body = {
        "model": spec.model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": prompt.max_tokens,
        "temperature": spec.temperature,
        **spec.body,
    }
    return json.dumps({key: value for key, value in body.items() if value is not None}).encode()


class Server:
    """A chat server, for many threads at once. `stop` ends every pause, so that a stopped stage ends soon."""

    def __init__(self, spec: CaptionSpec, key: str | None) -> None:
        self._spec = spec
        self._key = key
        self._url = f"{spec.endpoint}/chat/completions"
        self._opener = urllib.request.build_opener(_NoRedirect, HTTPHandler, HTTPSHandler)
        self._lock = threading.Lock()
        self._resume_at = 0.0  # monotonic time before which nothing is sent
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End every pause and every further try."""
        self._stopped.set()

    def ask(self, body: bytes) -> Reply:
        """Send one request until it has a final answer.

        Raises InputError when the server refuses the key, the address or the model (401, 403, 404, a
        redirect), StorageError when the last try failed or the stage was stopped.
        """
        pause = self._spec.retry_seconds
        for tries_left in reversed(range(self._spec.tries)):
            self._wait_for_turn()
            try:
                return self._try(body)
            except _Passing as error:
                if not tries_left or (error.wait_seconds or 0) > _LONGEST_ASKED_SECONDS:
                    asked = f", which asks to wait {error.wait_seconds:g} s" if error.wait_seconds else ""
                    raise StorageError(
                        f"{self._url}: no answer{asked} ({error}). Run the same command again: it asks only "
                        "for what is missing."
                    ) from None
                if error.wait_seconds is None:
                    self._stopped.wait(pause * random.uniform(0.5, 1.0))
                else:
                    with self._lock:
                        self._resume_at = max(self._resume_at, time.monotonic() + error.wait_seconds)
                pause = min(_LONGEST_PAUSE_SECONDS, 2 * pause)
        raise AssertionError("the last try returns or raises")

    def _wait_for_turn(self) -> None:
        while not self._stopped.is_set() and (left := self._resume_at - time.monotonic()) > 0:
            self._stopped.wait(left)
        if self._stopped.is_set():
            raise StorageError(f"{self._url}: the stage was stopped.")

    def _try(self, body: bytes) -> Reply:
        headers = {"Content-Type": "application/json", "User-Agent": "vidcurate"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        connection = Connection()
        request = Request(self._url, data=body, headers=headers, method="POST", connection=connection)
        began = time.monotonic()
        limit = threading.Timer(self._spec.timeout_seconds, connection.end)
        limit.start()
        try:
            return self._answer(request, began)
        except _Passing as error:
            if connection.is_over:
                raise self._too_long() from None
            raise error from None
        finally:
            limit.cancel()

    def _answer(self, request: urllib.request.Request, began: float) -> Reply:
        try:
            with self._opener.open(request, timeout=self._spec.timeout_seconds) as response:
                data = self._read(response, began)
        except urllib.error.HTTPError as error:
            with error:
                return self._refused(error, began)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise _Passing(self._clean(f"{type(error).__name__}: {reason}")) from None
        return self._reply(data, time.monotonic() - began)

    def _read(self, response: Any, began: float) -> bytes:
        """Return the body, within the request's time. Raises _Passing, OSError, HTTPException."""
        parts: list[bytes] = []
        size = 0
        while part := response.read1(1 << 16):
            parts.append(part)
            size += len(part)
            if size > _MOST_BYTES:
                raise _Passing(f"an answer of more than {_MOST_BYTES >> 20} MiB")
            if time.monotonic() - began > self._spec.timeout_seconds:
                raise self._too_long()
        expected = response.headers.get("Content-Length", "")
        if expected.isdecimal() and len(expected) < 12 and int(expected) != size:
            raise _Passing(f"{size} of {expected} bytes of the answer came")
        return b"".join(parts)

    def _too_long(self) -> _Passing:
        return _Passing(f"the answer took longer than {self._spec.timeout_seconds:g} s")

    def _refused(self, error: urllib.error.HTTPError, began: float) -> Reply:
        """Return the reply of a status that is final. Raises _Passing, InputError."""
        try:
            data = self._read(error, began)
        except (OSError, http.client.HTTPException, _Passing):
            data = b""
        status, reason = error.code, self._clean(_reason(data))
        if status in _MAY_PASS or status >= 500:
            raise _Passing(f"HTTP {status}: {reason}", retry_after(error.headers.get("Retry-After")))
        if status in (401, 403):
            raise InputError(
                f"{self._url}: HTTP {status} ({reason}). Set the key of this server: "
                f"export {KEYS[0]}=… (never on the command line)."
            )
        if 300 <= status < 400:
            raise InputError(f"{self._url}: HTTP {status}, a redirect. Give the address it leads to.")
        if status in (404, 405):
            raise InputError(
                f"{self._url}: HTTP {status} ({reason}). Check --endpoint (with its /v1) and --model "
                f"{self._spec.model}: curl {self._spec.endpoint}/models lists the models."
            )
        return Reply(
            text="",
            finish="",
            problem=f"HTTP {status}: {reason}",
            tokens_in=None,
            tokens_out=None,
            seconds=round(time.monotonic() - began, 3),
        )

    def _reply(self, data: bytes, seconds: float) -> Reply:
        try:
            body = json.loads(data)
            choice = body["choices"][0]
            message = choice["message"]
            text, refusal = message.get("content"), message.get("refusal")
            finish, usage = choice.get("finish_reason"), body.get("usage") or {}
            if not (text is None or isinstance(text, str)) or not isinstance(usage, dict):
                raise TypeError("its content is no text")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            said = self._hidden(data.decode("utf-8", "replace"))[:80]  # hidden first: a cut key is no match
            raise _Passing(self._clean(f"no chat completion ({type(error).__name__}): {said!r}")) from None
        return Reply(
            text=self._hidden(text or ""),
            finish=finish if isinstance(finish, str) else "",
            problem=self._clean(refusal) if isinstance(refusal, str) and refusal.strip() else None,
            tokens_in=_count(usage.get("prompt_tokens")),
            tokens_out=_count(usage.get("completion_tokens")),
            seconds=round(seconds, 3),
        )

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text

    def _clean(self, text: str) -> str:
        """Return text of the server as one printable line without the key."""
        shown = "".join(letter if letter.isprintable() else " " for letter in self._hidden(text))
        return " ".join(shown.split())[:_MOST_REASON]


def _count(value: Any) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40
    return value if is_count else None


def _reason(data: bytes) -> str:
    """Return what an error's body says: OpenAI's error.message, vLLM's message, or its first letters."""
    text = data.decode("utf-8", "replace")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(body, dict):
        error = body.get("error", body)
        found = error.get("message", body.get("detail")) if isinstance(error, dict) else error
        return str(found) if found is not None else text
    return text
