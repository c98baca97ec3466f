"""Metadata and videos by URL, from a web server on this machine that is sometimes busy, rude or gone."""

import functools
import json
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import polars as pl
import pytest

from tests.onnx_net import onnx_net
from vidcurate.cli import main as cli_main
from vidcurate.curation.clip_table import table
from vidcurate.curation.demo_data import write as demo_data_write
from vidcurate.curation.frame_scores.spec import FramesSpec
from vidcurate.curation.frame_scores.stage import run_frames
from vidcurate.curation.ingest import stage as ingest_stage
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.model_scores.spec import ModelsSpec
from vidcurate.curation.model_scores.stage import ModelsSummary, run_models
from vidcurate.curation.probe.stage import ProbeSpec, run_probe
from vidcurate.errors import InputError, MediaError
from vidcurate.storage import download, object_store


class Server(SimpleHTTPRequestHandler):
    """Serves a folder; a name that begins with busy or cut fails twice, broken always, secret is refused."""

    asked: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        self.asked[name] += 1
        if name.startswith("secret-"):
            self.send_error(403)
        elif name.startswith("broken-") or (name.startswith("busy-") and self.asked[name] <= 2):
            self.send_error(503)
        elif name.startswith("cut-") and self.asked[name] <= 2:
            data = Path(self.translate_path(self.path)).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
        else:
            super().do_GET()

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote")
    demo_data_write.write_demo_data(folder / "data", clips=12)
    return folder


@pytest.fixture(scope="module")
def url(home: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=str(home / "data")))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "PAUSES_SECONDS", (0.01, 0.01))


def test_probe_and_frames_say_of_a_url_what_they_say_of_the_folder(home: Path, url: str) -> None:
    found = []
    for name, videos in (("here", home / "data" / "videos"), ("there", f"{url}/videos")):
        run = home / name
        ingest_stage.run_ingest(run, IngestSpec(metadata=home / "data" / "captions.csv"))
        run_probe(run, ProbeSpec(videos=videos))
        run_frames(run, FramesSpec(), videos=videos)
        found.append(table.scan(run, "frames").collect())
        assert run_frames(run, FramesSpec(), videos=videos).up_to_date

    here, there = found
    assert {"ok", "missing"} < set(here["probe_status"])
    columns = [name for name in here.columns if name != "probe_problem"]
    assert here.select(columns).equals(there.select(columns))
    missing = there.filter(pl.col("probe_status") == "missing")["probe_problem"]
    assert missing.str.ends_with(": no such file at its URL.").all()


def test_models_see_by_url_what_they_see_in_the_folder(home: Path, url: str, tmp_path: Path) -> None:
    spec = ModelsSpec(text_detector=onnx_net(tmp_path / "bright.onnx"))
    found = []
    for name, videos in (("here", home / "data" / "videos"), ("there", f"{url}/videos")):
        run = tmp_path / name
        ingest_stage.run_ingest(run, IngestSpec(metadata=home / "data" / "captions.csv"))
        summary = run_models(run, spec, videos=videos)
        assert isinstance(summary, ModelsSummary)
        found.append((summary.by_status, table.scan(run, "models").collect()))

    assert found[0][0] == found[1][0]
    assert found[0][0]["ok"] >= 8
    assert found[0][1].drop("models_problem").equals(found[1][1].drop("models_problem"))


@pytest.mark.parametrize("how", ["busy", "cut"])
def test_what_fails_for_a_while_is_asked_again(home: Path, url: str, tmp_path: Path, how: str) -> None:
    source = next((home / "data" / "videos").glob("*.mp4"))
    shutil.copy(source, home / "data" / f"{how}-clip.mp4")

    with download.local(f"{url}/{how}-clip.mp4") as path:
        assert path.name == f"{how}-clip.mp4"
        assert path.read_bytes() == source.read_bytes()
    assert not path.exists()
    assert Server.asked[f"{how}-clip.mp4"] == 3


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("none.mp4", "missing", "no such file at its URL"),
        ("secret-clip.mp4", "unreadable", "the server refuses it"),
        ("broken-clip.mp4", "io_error", "cannot be fetched"),
    ],
)
def test_what_fails_for_good_has_a_name(
    url: str, in_haste: None, tmp_path: Path, name: str, kind: str, words: str
) -> None:
    with pytest.raises(MediaError, match=f"{name}: {words}") as raised:
        download.fetch(f"{url}/{name}", tmp_path / name)
    assert raised.value.kind == kind


def test_metadata_by_url_is_fetched_once(
    home: Path, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["ingest", f"{url}/captions.csv", "--out", str(tmp_path / "run"), "--json"]
    said = []
    for _ in range(2):
        with pytest.raises(SystemExit) as left:
            cli_main.main(command)
        assert left.value.code == 0
        said.append(json.loads(capsys.readouterr().out))

    assert [summary["up_to_date"] for summary in said] == [False, True]
    rows = (home / "data" / "captions.csv").read_text().splitlines()[1:]
    assert said[0]["metadata_rows"] == len(rows)
    assert Server.asked["captions.csv"] == 1


def test_a_url_that_cannot_be_used_is_named(home: Path, url: str, in_haste: None, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv: no such file at its URL"):
        download.kept(f"{url}/none.csv", tmp_path / "metadata")
    assert not list((tmp_path / "metadata").iterdir())
    with pytest.raises(InputError, match="ftp://x/y: no URL that is read; they begin with s3, gs, az"):
        run_probe(home / "here", ProbeSpec(videos="ftp://x/y"))
    assert download.join("s3://bucket/clips/", "a/b.mp4") == "s3://bucket/clips/a/b.mp4"
    assert not any(map(object_store.is_url, ["clips", "/clips", "file.mp4", "C:/clips", "ftp://host/x"]))
