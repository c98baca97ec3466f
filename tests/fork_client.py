"""Stands for `python -m MODULE …`: forked_runs.py forks a process that runs it, on the streams of this one.

    python -S fork_client.py SOCKET MODULE ARGUMENTS

Signals are passed on, this process ends as that one does, and that one is killed when this one is.
"""

import json
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


def main() -> None:
    line = socket.socket(socket.AF_UNIX)
    line.connect(sys.argv[1])
    job = {"words": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ)}
    socket.send_fds(line, [json.dumps(job).encode() + b"\n"], [0, 1, 2])
    answers = line.makefile()
    pid = int(answers.readline())
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    code = int(answers.readline())
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
