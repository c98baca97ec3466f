"""Access to the review app: token, loopback host names, one origin, headers.

A page on the internet can make the reader's browser send requests to 127.0.0.1. Four things stand against
that: the token (a cookie that no other site can send), the Host header (a name that was rebound to 127.0.0.1
is not a loopback name), the Origin header of a write, and Sec-Fetch-Site.
"""

import hmac
import re
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from vidcurate.curation.report.review_link import OPEN

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

COOKIE = "vidcurate_review"
HOSTS = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(?P<name>\[[0-9a-f:]+\]|[^:\[\]]+)(?::(?P<port>\d{1,5}))?", re.IGNORECASE)
_ENTRY = '<!doctype html><meta http-equiv="refresh" content="0;url=/"><title>Review</title>'
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; media-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}


def cookie_name(port: int) -> str:
    """Return the cookie's name; cookies of one host are shared by its ports, so the port is in the name."""
    return f"{COOKIE}_{port}"


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), token.encode())


def refusal(
    method: str, path: str, headers: dict[str, str], query: dict[str, list[str]], *, token: str, cookie: str
) -> str | None:
    """Return why a request is refused, None when it may pass. `headers` have lower-case names.

    A request for `/` that brings the token in its address passes without a cookie, also from a link; so does
    one for `/open`, which is the same page for everybody.
    """
    host = _HOST.fullmatch(headers.get("host", ""))
    if host is None or host["name"].lower() not in HOSTS:
        return "host: this server answers on 127.0.0.1 and localhost only"
    if path == OPEN and method == "GET":
        return None
    is_entry = path == "/" and method == "GET"
    brings = query.get("token", [""])[0]
    if is_entry and brings and _same(brings, token):
        return None
    try:
        held = SimpleCookie(headers.get("cookie", "")).get(cookie)
    except CookieError:
        held = None
    if held is None or not _same(held.value, token):
        return "token: open the address that `vidcurate review` printed"
    if not is_entry and headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return "origin: this request comes from another site"
    if method not in ("GET", "HEAD"):
        if headers.get("origin") != f"http://{headers['host']}":
            return "origin: this request comes from another site"
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return "content-type: send application/json"
    return None


class Access:
    """ASGI middleware that lets through what `refusal` does not refuse, and adds the headers.

    The right token in the address of `/` becomes a cookie (HttpOnly, SameSite=Strict), and the address loses
    it.
    """

    def __init__(self, app: App, *, token: str, cookie: str) -> None:
        self._app, self._token, self._cookie = app, token, cookie

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        query = parse_qs(scope["query_string"].decode("latin-1"))
        why = refusal(scope["method"], scope["path"], headers, query, token=self._token, cookie=self._cookie)
        if why is not None:
            await _answer(send, 403, f"refused: {why}.\n", {})
        elif "token" in query and scope["path"] == "/":
            cookie = f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict"
            found = {"set-cookie": cookie, "cache-control": "no-store"}
            if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
                await _answer(send, 303, "", {"location": "/", **found})
            else:  # from a link on another site the redirect would come without the cookie
                await _answer(send, 200, _ENTRY, {"content-type": "text/html; charset=utf-8", **found})
        else:
            await self._app(scope, receive, _with_headers(send))


async def _answer(send: Send, status: int, text: str, headers: dict[str, str]) -> None:
    every = {
        "content-type": "text/plain; charset=utf-8",
        "content-length": str(len(text.encode())),
        **headers,
    }
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [(name.encode(), value.encode()) for name, value in (_HEADERS | every).items()],
    }
    await send(start)
    await send({"type": "http.response.body", "body": text.encode()})


def _with_headers(send: Send) -> Send:
    async def added(message: Message) -> None:
        if message["type"] == "http.response.start":
            have = {name.lower() for name, _ in message["headers"]}
            extra = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            message["headers"] = [*message["headers"], *(one for one in extra if one[0] not in have)]
        await send(message)

    return added
