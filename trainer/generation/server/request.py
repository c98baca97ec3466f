"""Generation request: allowed fields, limits, and replies."""

import io
import json
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from trainer.run_folder.sample_ranges import RANGES, number_fault, text_fault
from vidcurate.errors import counted

FIELDS = tuple(RANGES)  # the numbers; the run's recipe sets missing fields
WORDS = ("prompt", "checkpoint", "run")
MAX_PROMPT = 4000
MAX_BODY_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one request. `max_pixels` counts height x width x frames, `max_tokens` the model's patches.

    A step cannot be resumed after an interruption: its tokens bound its memory, and how long rounds wait.
    """

    max_queue: int = 4
    max_pixels: int = 102 * 720 * 1280
    max_tokens: int = 131_072
    max_frame_tokens: int = 16_384  # a request can end before an attention call, not within one
    time_limit_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP reply: code, body, headers."""

    code: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(cls, code: int, value: dict[str, Any], **headers: str) -> "Answer":
        """Return a reply of one line of JSON."""
        # Half of a surrogate pair is not UTF-8; its backslash form is JSON's own.
        body = (json.dumps(value, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
        return cls(code, body, {"Content-Type": "application/json", **headers})


class Refused(Exception):
    """A refused request: an HTTP code and one line."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        headers = {429: {"Retry-After": "10"}, 401: {"WWW-Authenticate": "Bearer"}}.get(code, {})
        self.code = code
        self.answer = Answer.of_json(code, {"error": message}, **headers)


@dataclass(slots=True, eq=False)
class Job:
    """A request in the queue: its fields, its deadline, and finally its reply."""

    asked: dict[str, Any]
    deadline: float  # of time.monotonic
    ended: threading.Event = field(default_factory=threading.Event)
    answer: Answer | None = None
    is_dropped: bool = False

    def check(self) -> None:
        """Raise Refused if the deadline has passed or the client has disconnected."""
        if self.is_dropped or time.monotonic() > self.deadline:
            raise Refused(504, "the time limit has passed. Ask for fewer frames, pixels or steps.")


class Arriving(io.RawIOBase):
    """A socket file with one deadline for the whole request: slow clients cannot prolong it."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._until = connection, time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request did not arrive completely in time")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


def body_bytes(length: str) -> int:
    """Return the bytes of a body by its Content-Length. Raises Refused: 411, or 413 for too large a body."""
    if not length.isdecimal():
        raise Refused(411, "Content-Length is needed.")
    digits = length.lstrip("0") or "0"
    if len(digits) > len(str(MAX_BODY_BYTES)) or int(digits) > MAX_BODY_BYTES:
        shown = digits if len(digits) <= 20 else f"more than 10^{len(digits) - 1}"
        raise Refused(413, f"the body has {shown} bytes; the limit is {MAX_BODY_BYTES}.")
    return int(digits)


def parse(body: bytes) -> dict[str, Any]:
    """Return the checked fields of a request's body. Raises Refused: 400, or 413 for too long a prompt."""
    try:
        asked = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is no JSON: {error}.") from error
    if not isinstance(asked, dict):
        raise Refused(400, 'the body is no JSON object; send {"prompt": TEXT, …}.')
    for name, value in asked.items():
        if name in WORDS:
            if not isinstance(value, str):
                raise Refused(400, f"{name} is {value!r}; text is needed.")
            if fault := text_fault(value):
                raise Refused(400, f"{name} {fault}.")
        elif name in FIELDS:
            if fault := number_fault(name, value):
                raise Refused(400, f"{name} is {value!r}; {fault}.")
        else:
            raise Refused(400, f"{name} is no field; the fields are {', '.join((*WORDS, *FIELDS))}.")
    prompt = asked.get("prompt", "").strip()
    if not prompt:
        raise Refused(400, 'prompt is missing or empty; send {"prompt": TEXT, …}.')
    if len(prompt) > MAX_PROMPT:
        raise Refused(413, f"the prompt has {len(prompt)} characters; the limit is {MAX_PROMPT}.")
    return {**asked, "prompt": prompt}


def check_pixels(num_frames: int, height: int, width: int, limits: Limits) -> None:
    """Raise Refused, 413, for a clip of more pixels than the limit."""
    pixels = num_frames * height * width
    if pixels > limits.max_pixels:
        raise Refused(
            413,
            f"{counted(num_frames, 'frame')} of {height} x {width} px are {pixels} pixels; the limit is "
            f"{limits.max_pixels}.",
        )


def check_tokens(num_tokens: int, num_frames: int, limits: Limits) -> None:
    """Raise Refused, 413, for more tokens than the limit, in the clip or in one of its latent frames."""
    if num_tokens > limits.max_tokens:
        raise Refused(413, f"the clip has {num_tokens} tokens; the limit is {limits.max_tokens}.")
    of_frame = num_tokens // num_frames
    if of_frame > limits.max_frame_tokens:
        raise Refused(
            413,
            f"a frame has {of_frame} tokens, which attend to each other at once; the limit is "
            f"{limits.max_frame_tokens}.",
        )
