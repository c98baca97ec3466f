"""Validation by the inference server, beside clients that ask it for clips without a pause.

    python benchmarks/serve_validation.py demo/train [--clients 4] [--repeats 3] [--keep]

Each server is a program of its own on a copy of the run, whose checkpoints come one after another, as those
of a training do, while it makes a client's clip. The seconds are those of RUN/serve/validation.jsonl, waiting
for the model included. The peer is a server that nobody asks, started in turns. A client sends its next
request when the last one is answered, whatever the answer is. The losses must be the same.
"""

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rows import as_table, cpu, keep, row

ASKED = json.dumps({"prompt": "a red square moves right"}).encode()
LONGEST_SECONDS = 300.0  # of one server
Lines = dict[int, tuple[float, float]]
"""step → loss, seconds"""


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _ask(port: int, is_over: threading.Event, answers: Counter[int]) -> None:
    """Ask for one clip after another until `is_over`; count the answers by their code, 0 for none."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate", ASKED, {"Content-Type": "application/json"}
    )
    while not is_over.is_set():
        code = 0
        try:
            with urllib.request.urlopen(request, timeout=LONGEST_SECONDS) as answer:
                code = answer.status
        except urllib.error.HTTPError as error:
            code = error.code
        except OSError:
            is_over.wait(0.05)  # the server has not begun to listen
        answers[code] += 1


def _wait(server: subprocess.Popen[bytes], is_there: Callable[[], bool]) -> None:
    until = time.monotonic() + LONGEST_SECONDS
    while not is_there():
        if server.poll() is not None or time.monotonic() > until:
            raise SystemExit("the server ended, or does not get on; run it by hand")
        time.sleep(0.02)


def serve(run: Path, clients: int) -> tuple[Lines, Counter[int]]:
    """Return what a new server measures of the checkpoints that come, and the answers that clients got.

    The oldest is there at the start; each next one comes when that before has been measured and, with
    clients, a request is being worked on.
    """
    answers: Counter[int] = Counter()
    is_over, port = threading.Event(), _free_port()
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(shutil.copytree(run, Path(scratch) / "all", ignore=shutil.ignore_patterns("optimizer")))
        shutil.rmtree(whole / "serve", ignore_errors=True)
        (whole / "validation.jsonl").unlink(missing_ok=True)
        steps = sorted(path.name for path in whole.glob("step-*"))
        served = Path(
            shutil.copytree(whole, Path(scratch) / run.name, ignore=shutil.ignore_patterns(*steps[1:]))
        )
        file = served / "serve" / "validation.jsonl"

        def measured() -> list[dict[str, float]]:
            return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

        words = ["serve", str(served), "--http", f":{port}", "--poll-seconds", "0.05", "--no-trackers"]
        server = subprocess.Popen([sys.executable, "-m", "trainer", *words], stdout=subprocess.DEVNULL)
        asking = [threading.Thread(target=_ask, args=(port, is_over, answers)) for _ in range(clients)]
        try:
            _wait(server, lambda: len(measured()) == 1)
            for thread in asking:
                thread.start()
            for number, step in enumerate(steps[1:], start=2):
                before = answers[200]
                _wait(server, lambda before=before: not clients or answers[200] > before)
                time.sleep(0.3)  # into the next request
                (whole / step).rename(served / step)
                _wait(server, lambda number=number: len(measured()) == number)
        finally:
            is_over.set()
            server.kill()
            server.wait()
            for thread in asking:
                thread.join()
        return {int(line["step"]): (line["loss"], line["seconds"]) for line in measured()[1:]}, answers


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("run", type=Path)
    arguments.add_argument("--clients", type=int, default=4)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--keep", action="store_true", help="keep the figures in benchmarks/results")
    given = arguments.parse_args()
    alone: list[float] = []
    beside: list[float] = []
    answers: Counter[int] = Counter()
    for _ in range(given.repeats):
        of_none, _ = serve(given.run, 0)
        of_some, answered = serve(given.run, given.clients)
        answers += answered
        losses = [{step: loss for step, (loss, _) in lines.items()} for lines in (of_none, of_some)]
        assert losses[0] == losses[1], f"other losses beside requests: {losses}"
        alone += [seconds for _, seconds in of_none.values()]
        beside += [seconds for _, seconds in of_some.values()]
        print(f"alone {alone}, beside {beside}, answers {dict(answers)}", flush=True)
    assert answers[200] > 0, f"nobody got a clip: {dict(answers)}"
    made = "validation of a checkpoint by the server, {}, {} clients that ask without a pause"
    rows = [
        row(
            made.format(what, given.clients),
            of(beside),
            "s",
            peer="the same server, which nobody asks",
            peer_value=of(alone),
            goal=goal,
            higher_is_better=False,
            hardware=cpu(),
        )
        for what, of, goal in (("median", statistics.median, "<= 2 times"), ("slowest", max, ""))
    ]
    print(as_table(rows))
    if given.keep:
        keep("serve_validation", rows)


if __name__ == "__main__":
    main()
