"""A small curation, its review server, and a browser's requests."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import polars as pl
import pytest
import uvicorn

from vidcurate.curation.caption_scores.stage import ScoreSpec, run_score
from vidcurate.curation.dedup.spec import DedupSpec, PerceptualSpec
from vidcurate.curation.dedup.stage import run_dedup
from vidcurate.curation.demo_data import write as demo_data_write
from vidcurate.curation.difficulty.spec import SplitSpec
from vidcurate.curation.difficulty.stage import run_split
from vidcurate.curation.filter.spec import FilterSpec, Limit
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.frame_scores.spec import FramesSpec
from vidcurate.curation.frame_scores.stage import run_frames
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.curation.probe.stage import ProbeSpec, run_probe
from vidcurate.curation.review.access import cookie_name
from vidcurate.curation.review.app import make_app
from vidcurate.curation.review.serve import bind, run_server
from vidcurate.curation.review.session import Session
from vidcurate.curation.review.transcode_cache import FOLDER

TOKEN = "a-token-for-tests-only"


def curated(home: Path) -> Path:
    """Return a run of demo data, curated up to the shards; the videos are in `home`/data/videos."""
    demo_data_write.write_demo_data(home / "data", clips=24, seed=3)
    metadata = home / "data" / "captions.csv"
    rows = pl.read_csv(metadata, infer_schema=False).with_row_index("my_score")
    rows.with_columns(pl.col("my_score") * 7 % 11).write_csv(metadata)
    run, videos = home / "run", home / "data" / "videos"
    run_ingest(run, IngestSpec(metadata=home / "data" / "captions.csv", videos=videos))
    run_probe(run, ProbeSpec(videos=videos))
    run_score(run, ScoreSpec(noun_engine="builtin"))
    run_frames(run, FramesSpec(), videos=videos)
    same = PerceptualSpec(max_bits=12, max_thumbnail_distance=40)
    run_dedup(run, DedupSpec(perceptual=same))
    run_filter(run, FilterSpec(limits={"short_side": Limit(min=32), "num_frames": Limit(min=15)}))
    run_split(run, SplitSpec(levels=2, validation_fraction=0.1))
    return run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A curation that no test changes."""
    return curated(tmp_path_factory.mktemp("review"))


@dataclass(frozen=True)
class Server:
    """A review server on a free port, and a client with its cookie."""

    session: Session
    port: int
    client: httpx.Client

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, value: object) -> httpx.Response:
        return self.client.post(path, json=value, headers={"origin": self.origin})


def served(run: Path, videos: Path | None, blind_sample: str | None = None) -> Iterator[Server]:
    """Yield a server of `run` by uvicorn in a thread."""
    session = Session(run, videos, "ana", blind_sample)
    with bind(0) as listener:
        port = listener.getsockname()[1]
        app = make_app(session, token=TOKEN, cookie=cookie_name(port), cache=run / FOLDER, linked_port=port)
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, ws="none")
        )
        thread = threading.Thread(target=lambda: asyncio.run(run_server(server, listener)))
        thread.start()
        cookies = {cookie_name(port): TOKEN}
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", cookies=cookies, timeout=60) as client:
                yield Server(session=session, port=port, client=client)
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def server(run: Path) -> Iterator[Server]:
    """The review of `run`, for tests that change nothing."""
    yield from served(run, run.parent / "data" / "videos")
