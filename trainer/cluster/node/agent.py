"""Node agent of the cluster tools: read one JSON request on stdin and answer it.

echo '{"action": "status", "limit_seconds": 20}' | python -m trainer.cluster.node.agent

The agent first acknowledges, so that an unreachable node costs no more than the connection timeout. The agent
exits when its limit has passed or the connection closes, so nothing stays behind on a node. It must start
quickly, and on machines that cannot train.
"""

import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from trainer.cluster.node import processes
from vidcurate.errors import VidcurateError

# action → module with `answers(request)`.
ACTIONS = {
    "status": "trainer.cluster.node.status",
    "health": "trainer.cluster.node.health",
    "stop": "trainer.cluster.node.stop",
    "dump": "trainer.cluster.node.dump",
}
BEGIN, END = b"<<<trainer-answer ", b" trainer-answer>>>"  # a login script's output is outside the marks
LATE, ALONE = 3, 4  # exit codes: the time limit has passed; nobody reads any more


def marked(document: dict[str, Any]) -> bytes:
    """Return the document on one line, between marks that the document cannot contain."""
    text = json.dumps(document).replace("<", "\\u003c").replace(">", "\\u003e")
    return b"\n" + BEGIN + text.encode() + END + b"\n"


def _say(document: dict[str, Any]) -> None:
    data = marked({"host": socket.gethostname()} | document)
    while data:
        data = data[os.write(1, data) :]


def _leave(code: int) -> None:
    """Exit at once, with everything started here: a command, py-spy, nvidia-smi."""
    for process in processes.below([os.getpid()], processes.everything()):
        with suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)
    os._exit(code)


def _leave_after(seconds: float) -> None:
    time.sleep(seconds)
    _leave(LATE)


def _leave_when_alone() -> None:
    while os.read(0, 1 << 12):
        pass
    _leave(ALONE)


def main() -> None:
    request: dict[str, Any] = json.loads(sys.stdin.readline() or "{}")
    if request.get("action") not in ACTIONS:
        _say({"refused": f"knows no {request.get('action')!r}; its trainer is of another version"})
        return
    _say({"progress": "reached"})
    threading.Thread(target=_leave_after, args=(request["limit_seconds"],), daemon=True).start()
    threading.Thread(target=_leave_when_alone, daemon=True).start()
    answers: Callable[[dict[str, Any]], Iterator[dict[str, Any]]]
    answers = importlib.import_module(ACTIONS[request["action"]]).answers
    try:
        for document in answers(request):
            _say(document)
    except VidcurateError as error:
        _say({"refused": str(error)})
    os._exit(0)  # a thread may hang in a dead file system: do not wait for it


if __name__ == "__main__":
    main()
