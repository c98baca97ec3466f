"""Parent death: make this process exit when its parent exits, however that happens.

A light module: decode workers and save processes import it.
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
