"""The review app's page as its users handle it: keys, mouse, what is shown."""

import json
from typing import Any
from urllib.parse import quote

from tests.browser import Browser
from tests.vidcurate.curation.review.conftest import TOKEN, Server


def visit(browser: Browser, server: Server, query: dict[str, Any] | None = None) -> None:
    """Open the app by its address with the token, at a query."""
    browser.leave()
    # The query is part of the address: one set on an open page would replace its cards at some later time.
    fragment = "" if query is None else "#" + quote(json.dumps(query), safe="")
    browser.call("Page.navigate", url=f"{server.origin}/?token={TOKEN}{fragment}")
    browser.until("document.readyState === 'complete'")
    browser.until("document.querySelector('.card[aria-label]') !== null")
    browser.until("document.querySelector('#decided option[value=keep]').textContent.includes('(')")
    browser.value("document.getElementById('grid').focus()")


CODES = {
    "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38,
    "ArrowRight": 39, "ArrowDown": 40,
}  # fmt: skip


def press(browser: Browser, *keys: str, modifiers: int = 0) -> None:
    for key in keys:
        facts: dict[str, Any] = {"key": key, "modifiers": modifiers}
        facts["windowsVirtualKeyCode"] = CODES.get(key, ord(key[0].upper()))
        text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
        browser.call("Input.dispatchKeyEvent", type="keyDown", **facts, **text)
        browser.call("Input.dispatchKeyEvent", type="keyUp", **facts)


def write(browser: Browser, text: str) -> None:
    browser.call("Input.insertText", text=text)


def point(browser: Browser, selector: str) -> tuple[float, float]:
    """Return the middle of an element on the screen."""
    box = browser.value(
        f"(() => {{ const found = document.querySelector({json.dumps(selector)});"
        " found.scrollIntoView({block: 'nearest'});"
        " const box = found.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; })()"
    )
    return box[0] + box[2] / 2, box[1] + box[3] / 2


def mouse(browser: Browser, kind: str, x: float, y: float, **more: Any) -> None:
    browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)


def click(browser: Browser, selector: str) -> None:
    x, y = point(browser, selector)
    for kind in ("mousePressed", "mouseReleased"):
        mouse(browser, kind, x, y, button="left", clickCount=1)


def shown(browser: Browser) -> str:
    return str(browser.value("document.getElementById('count').textContent"))


def selected(browser: Browser) -> str:
    """Return the id of the clip under the cursor."""
    label = browser.value("document.querySelector('.card[aria-selected=true]')?.ariaLabel ?? ''")
    return str(label).partition(",")[0]


def names(server: Server) -> list[str]:
    """Return the ids of all clips, in the table's order."""
    return server.session.rows.column("clip_id").to_list()
