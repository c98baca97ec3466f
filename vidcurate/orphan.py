"""A process that ends with the one that started it, however that ends.

A light module.
"""

import ctypes
import os
import signal
import sys
import threading
import time

_WATCH_SECONDS = 0.5


def die_with_parent(parent: int) -> None:
    """End this process as soon as `parent` has ended, whatever it is doing then."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
