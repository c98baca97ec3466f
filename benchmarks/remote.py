"""Remote shards: clips a second from a web server with latency.

    python benchmarks/remote.py [--latency SECONDS] [--workers N] [--rounds N] [--clips N]

A server of this script's own waits before it answers each range. The loader fetches clips ahead by threads;
the peer makes as many requests at a time as there are decode workers, which is what workers that read the
network themselves would do. The other peer reads the same shards from the disk. The cache holds a few clips,
so that nothing is read from it twice. Medians over the rounds, in turn; the workers' start is not counted.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

from rows import keep, row

from vidcurate.loader.loader import Loader
from vidcurate.loader.spec import LoaderSpec
from vidcurate.sampler.buckets import BucketSpec
from vidcurate.sampler.build_plan import plan_from
from vidcurate.shards.index import Index, read_index
from vidcurate.shards.remote_index import RemoteSpec

ROOT = Path(__file__).resolve().parents[1]
BUCKETS = BucketSpec(
    sizes={"64px": {"0.56": (48, 88), "1.00": (64, 64), "1.78": (88, 48)}}, table={"64px": {"8": (1.0, 4)}}
)
CACHE_BYTES = 4 << 20


def make_shards(folder: Path, clips: int) -> Path:
    """Return shards of demo clips, as a whole curation makes them."""
    vidcurate = [sys.executable, "-m", "vidcurate"]
    for words in (
        ["demo-data", str(folder / "demo"), "--clips", str(clips)],
        [
            *("curate", str(ROOT / "recipes/curate-demo.yaml"), "--set", f"run={folder / 'run'}"),
            *("--set", f"ingest.metadata={folder / 'demo/captions.csv'}"),
            *("--set", f"ingest.videos={folder / 'demo/videos'}"),
        ],
    ):
        subprocess.run([*vidcurate, *words, "--json"], check=True, capture_output=True)
    return folder / "run" / "shards"


def serve(folder: Path, latency: float) -> ThreadingHTTPServer:
    """Serve a folder by range, `latency` seconds late."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(False)

        def do_GET(self) -> None:
            self._answer(True)

        def _answer(self, with_body: bool) -> None:
            data = (folder / self.path.lstrip("/")).read_bytes()
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            first, last = (int(wanted[1]), int(wanted[2])) if wanted else (0, len(data) - 1)
            if wanted:
                time.sleep(latency)
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(last + 1 - first))
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            self.send_header("ETag", f'"{len(data)}"')
            self.end_headers()
            if with_body:
                self.wfile.write(data[first : last + 1])

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def clips_per_second(index: Index, workers: int, steps: int) -> float:
    """Return the rate of steps behind the first, which the workers' start is part of."""
    plan = plan_from(index, BUCKETS, seed=1, micro_batches_per_step=2)
    frames = 4 * 8 * 64 * 64 * 3
    with Loader(index, plan, LoaderSpec(num_workers=workers, prefetch_bytes=8 * frames)) as loader:
        for step in range(3):  # as many as are read ahead at first
            loader.step(step)
        begun, count = time.perf_counter(), 0
        for step in range(3, steps):
            count += sum(len(batch.clip_ids) for batch in loader.step(step))
        return count / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clips", type=int, default=120)
    parser.add_argument("--steps", type=int, default=23)
    given = parser.parse_args()
    found: dict[str, list[float]] = {"ours": [], "worker": [], "disk": []}
    with tempfile.TemporaryDirectory() as folder:
        shards = make_shards(Path(folder), given.clips)
        server = serve(shards, given.latency)
        url = f"http://127.0.0.1:{server.server_address[1]}"
        for number in range(given.rounds):
            for name, at_once in (("ours", 16), ("worker", given.workers), ("disk", 0)):
                spec = RemoteSpec(cache_folder=Path(folder) / f"{name}-{number}", cache_bytes=CACHE_BYTES)
                RemoteSpec.requests_at_once = max(1, at_once)
                index = read_index(url, remote=spec) if at_once else read_index(shards)
                found[name].append(clips_per_second(index, given.workers, given.steps))
                print(name, f"{found[name][-1]:.1f}", file=sys.stderr, flush=True)
        server.shutdown()
    ours, worker, disk = (median(found[name]) for name in ("ours", "worker", "disk"))
    late = f"{1000 * given.latency:g} ms to the first byte, {given.workers} workers"
    keep(
        "remote",
        [
            row(f"clips by URL, {late}", ours, "clips/s", peer="a request a worker", peer_value=worker),
            row(f"clips by URL, {late}", ours, "clips/s", peer="from the disk", peer_value=disk),
        ],
    )


if __name__ == "__main__":
    main()
