"""Parent death: make this process exit when its parent exits, also after a crash.

A light module: decode workers and save processes import it.
"""

import ctypes
import os
import signal
import sys
import threading
import time

_POLL_SECONDS = 0.5


def die_with_parent(parent: int, *, poll: bool = True) -> None:
    """Exit as soon as process `parent` has ended, also while native code holds the GIL.

    With `poll` a thread also looks for the parent twice a second, for systems without PR_SET_PDEATHSIG.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # the parent died before the call
        os._exit(1)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os._exit(1)

    if poll:
        threading.Thread(target=watch, daemon=True).start()
