"""The command itself: its address, its errors, and a kill in the midst of decisions."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from vidcurate.curation.clip_table import table
from vidcurate.curation.report import review_link
from vidcurate.curation.review.serve import serve_review
from vidcurate.curation.review_decisions.journal import read_decisions
from vidcurate.errors import InputError, MissingError, StageError, StorageError


@pytest.fixture
def own(run: Path, tmp_path: Path) -> Path:
    """A copy of the run."""
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns(".*"))
    return tmp_path / "run"


def started(run: Path) -> Iterator["subprocess.Popen[str]"]:
    """Yield a review server of `run`, in a process of its own."""
    command = [sys.executable, "-m", "vidcurate", "review", str(run), "--port", "0", "--json"]
    with subprocess.Popen([*command, "--reviewer", "ana"], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def client_of(process: "subprocess.Popen[str]") -> httpx.Client:
    assert process.stdout is not None
    address = json.loads(process.stdout.readline())["url"]
    origin = address.partition("/?")[0]
    client = httpx.Client(base_url=origin, headers={"origin": origin}, timeout=30, follow_redirects=True)
    assert client.get(address).status_code == 200
    return client


def bodies(run: Path, number: int) -> list[dict[str, Any]]:
    """Return the decisions of one browser, on the clips in turn."""
    ids = table.scan(run, "ingest").select("clip_id").collect()["clip_id"].to_list()
    return [
        {"id": f"{number}-{at}", "row": at % len(ids), "clip_id": ids[at % len(ids)], "verdict": "keep"}
        for at in range(400)
    ]


def test_a_server_that_is_killed_among_decisions_has_lost_none_that_it_acknowledged(own: Path) -> None:
    acknowledged: list[dict[str, str]] = [{}, {}]
    enough = threading.Event()

    def browser(client: httpx.Client, number: int) -> None:
        for body in bodies(own, number):
            try:
                answer = client.post("/api/decide", json=body)
            except httpx.HTTPError:
                return
            acknowledged[number][body["id"]] = answer.json()["number"]
            if len(acknowledged[number]) >= 15:
                enough.set()

    for process in started(own):
        with closing(client_of(process)) as client:
            browsers = [threading.Thread(target=browser, args=(client, number)) for number in range(2)]
            for one in browsers:
                one.start()
            assert enough.wait(60)
            process.kill()
            for one in browsers:
                one.join()
    written = {one.id: one.number for one in read_decisions(own)}
    assert len(written) == len(read_decisions(own))
    for number in range(2):
        assert acknowledged[number].items() <= written.items()
        assert len(acknowledged[number]) < 400
    # The browser sends again what nobody answered: with the same id, nothing is there twice.
    for process in started(own):
        with closing(client_of(process)) as client:
            for number in range(2):
                for body in bodies(own, number)[:25]:
                    assert client.post("/api/decide", json=body).status_code == 200
    ids = [one.id for one in read_decisions(own)]
    assert len(ids) == len(set(ids))
    assert {f"{number}-{at}" for number in range(2) for at in range(25)} <= set(ids)


def test_a_run_whose_videos_have_gone_is_reviewed_without_pictures(own: Path) -> None:
    known = own / "reconcile.json"
    gone = {**json.loads(known.read_text()), "videos": str(own / "gone")}
    known.write_text(json.dumps(gone))
    for process in started(own):
        with closing(client_of(process)) as client:
            assert client.get("/api/run").json()["has_videos"] is False
            assert {one["video"] for one in client.get("/api/clips").json()["rows"]} == {None}
            assert client.get("/media/poster/2").status_code == 404


def test_the_page_of_links_leads_to_the_app_while_it_runs(own: Path) -> None:
    page = own / review_link.PAGE
    idle = review_link.page(None)
    page.write_bytes(b"<script>forged()</script>")  # whatever is there is never read, only replaced
    for process in started(own):
        with closing(client_of(process)) as client:
            port = client.base_url.port
            assert page.read_bytes() == review_link.page(port)
            (cookie,) = client.cookies.jar
            assert cookie.value is not None
            assert cookie.value.encode() not in page.read_bytes()
        process.send_signal(signal.SIGINT)
        process.wait(30)
    assert page.read_bytes() == idle
    for process in started(own):
        client_of(process).close()
        process.kill()  # leaves its page; the next app replaces it
        process.wait(30)
    assert page.read_bytes() not in (idle, b"")
    for first in started(own):
        client_of(first).close()
        for second in started(own):
            client_of(second).close()
            later = page.read_bytes()
            first.terminate()
            first.wait(30)
            assert page.read_bytes() == later  # an app leaves the page of a later one alone
            second.terminate()
            second.wait(30)
    assert page.read_bytes() == idle


def test_a_page_of_links_that_is_a_link_or_a_folder_does_no_harm(own: Path, tmp_path: Path) -> None:
    page, other = own / review_link.PAGE, tmp_path / "other.txt"
    other.write_text("mine")
    page.unlink(missing_ok=True)
    page.symlink_to(other)
    for process in started(own):
        client_of(process).close()
        process.terminate()
        process.wait(30)
    assert other.read_text() == "mine"
    assert page.read_bytes() == review_link.page(None)
    page.unlink()
    page.mkdir()  # cannot be replaced: the app runs without the page
    for process in started(own):
        client_of(process).close()
        process.terminate()
        assert process.wait(30) is not None
    assert page.is_dir()


def refused(run: Path, **changed: Any) -> None:
    def never(address: str) -> None:
        raise AssertionError(f"the server started at {address}")

    options: dict[str, Any] = {"videos": None, "port": 0, "reviewer": "ana", "announce": never}
    serve_review(run, **(options | changed))


def test_what_cannot_be_served_is_one_line_before_a_port_is_open(run: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"no such run folder|no table"):
        refused(tmp_path / "nothing")
    with pytest.raises(InputError, match="no such video folder"):
        refused(run, videos=tmp_path / "nothing")
    with pytest.raises(MissingError, match="no such sample"):
        refused(run, blind_sample="nothing")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StorageError, match="Add --port 0"):
            refused(run, port=taken.getsockname()[1])


def test_without_the_extra_the_error_names_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(InputError, match=r"pip install 'vidcurate\[review\]'"):
        refused(run)


def test_the_server_listens_on_this_machine_alone(run: Path) -> None:
    for process in started(run):
        with closing(client_of(process)) as client:
            port = client.base_url.port
            assert port is not None
            with socket.socket() as line:
                line.settimeout(2)
                other = socket.gethostbyname(socket.gethostname())
                if not other.startswith("127."):
                    with pytest.raises(OSError):
                        line.connect((other, port))
