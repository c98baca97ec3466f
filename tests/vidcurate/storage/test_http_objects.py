"""Files on web servers: connections are shared, Retry-After is honoured, proxies are used."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.failing_server import FailingHandler, FailingServer, running
from vidcurate.errors import MediaError, ObjectError, ShardError
from vidcurate.storage import download, http_objects, http_pool, object_store

DATA = bytes(range(256)) * 1200
DAY = "86400"


class Server(FailingServer):
    """Serves DATA at every path; a fault is (status, headers), or how a body or a range lies."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.requests: list[tuple[float, str, str]] = []  # time, method, target
        self.connections: set[tuple[str, int]] = set()
        self.logins: list[str | None] = []


class _Handler(FailingHandler):
    server: Server

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_CONNECT(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        with self.server.lock:
            self.server.requests.append((time.monotonic(), self.command, self.path))
            self.server.connections.add(self.client_address)
            self.server.logins.append(self.headers.get("Proxy-Authorization"))
        fault = self.server.next_fault()
        if isinstance(fault, tuple):
            self.send(fault[0], b"busy", fault[1])
            return
        wanted = self.headers.get("Range")
        if wanted is None:
            self.send(200, DATA, {"ETag": '"1"'}, is_cut=fault == "cut")
            return
        first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        claimed = fault if isinstance(fault, str) and fault != "cut" else f"bytes {first}-{last}/{len(DATA)}"
        self.send(
            206, DATA[first : last + 1], {"Content-Range": claimed, "ETag": '"1"'}, is_cut=fault == "cut"
        )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(object_store, "PAUSES_SECONDS", (0.01, 0.01))
    http_pool.close_idle()
    with running(Server()) as started:
        yield started
        http_pool.close_idle()


def test_files_and_ranges_one_after_the_other_share_a_connection(server: Server, tmp_path: Path) -> None:
    for number in range(10):
        download.fetch(f"{server.url}/{number}.mp4", tmp_path / "clip")
        assert (tmp_path / "clip").read_bytes() == DATA
        assert object_store.read_range(f"{server.url}/shard.tar", number, 100) == DATA[number:][:100]
        assert object_store.stamp_of(f"{server.url}/shard.tar").size_bytes == len(DATA)

    assert len(server.requests) == 30
    assert len(server.connections) == 1


@pytest.mark.parametrize(("way", "form"), [("file", "seconds"), ("range", "date")])
def test_a_busy_server_is_asked_again_no_sooner_than_it_says(
    server: Server, tmp_path: Path, way: str, form: str
) -> None:
    asked = 1.0 if form == "seconds" else 2.0  # a date has whole seconds: at least one is left
    value = "1" if form == "seconds" else formatdate(time.time() + asked, usegmt=True)
    server.faults.append((429 if way == "file" else 503, {"Retry-After": value}))
    if way == "file":
        download.fetch(f"{server.url}/clip.mp4", tmp_path / "clip")
        assert (tmp_path / "clip").read_bytes() == DATA
    else:
        assert object_store.read_range(f"{server.url}/shard.tar", 5, 10) == DATA[5:15]

    first, second = (at for at, _, _ in server.requests)
    assert second - first >= (1.0 if form == "seconds" else 0.5)


def test_a_server_that_asks_for_a_day_is_not_waited_for(server: Server, tmp_path: Path) -> None:
    server.always = (503, {"Retry-After": DAY})
    with pytest.raises(MediaError, match=r"clip\.mp4: cannot be fetched \(.* answers 503 .* 86,400 s") as one:
        download.fetch(f"{server.url}/clip.mp4", tmp_path / "clip")
    assert one.value.kind == "io_error"
    with pytest.raises(
        ObjectError, match=r"shard\.tar: the server answers 503 and asks for 86,400 s without"
    ):
        object_store.read_range(f"{server.url}/shard.tar", 0, 10)
    server.always = (429, {"Retry-After": "500"})  # longer than a worker may take for a clip
    with pytest.raises(MediaError, match="more than 60 s of pauses, the next of 5"):
        download.fetch(f"{server.url}/clip.mp4", tmp_path / "clip")

    assert len(server.requests) == 3


@pytest.mark.parametrize("value", ["", "-1", "nan", "soon", "9 9", "Mon, 99 Foo"])
def test_a_retry_after_that_says_nothing_is_a_usual_retry(server: Server, tmp_path: Path, value: str) -> None:
    server.faults.append((429, {"Retry-After": value}))
    download.fetch(f"{server.url}/clip.mp4", tmp_path / "clip")
    assert (tmp_path / "clip").read_bytes() == DATA


@pytest.mark.parametrize("value", ["inf", "1e999", "9" * 5000, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_retry_after_without_end_is_one_line(server: Server, tmp_path: Path, value: str) -> None:
    server.faults.append((429, {"Retry-After": value}))
    with pytest.raises(MediaError, match=r"clip\.mp4: cannot be fetched \(.* answers 429") as one:
        download.fetch(f"{server.url}/clip.mp4", tmp_path / "clip")
    assert len(str(one.value)) < 400


@pytest.mark.parametrize("status", [301, 304, 400, 405, 418, 451, 501])
def test_a_status_that_another_request_does_not_change_is_asked_for_once(
    server: Server, tmp_path: Path, status: int
) -> None:
    server.always = (status, {})
    with pytest.raises(MediaError, match=rf"clip\.mp4: cannot be fetched \(the server answers {status}"):
        download.fetch(f"{server.url}/clip.mp4", tmp_path / "clip")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "claimed", ["", "bytes 6-15/307200", "bytes 5-20/307200", "bytes 5-4/307200", "bytes */307200", "items"]
)
def test_other_bytes_than_were_asked_for_are_never_returned(server: Server, claimed: str) -> None:
    server.always = claimed or "x"
    with pytest.raises(ObjectError, match=r"shard\.tar: failed 3 times, at last: asked for bytes 5-14"):
        object_store.read_range(f"{server.url}/shard.tar", 5, 10)


def test_a_body_that_ends_early_is_asked_for_again(server: Server, tmp_path: Path) -> None:
    server.faults.extend(["cut", None, "cut"])
    download.fetch(f"{server.url}/clip.mp4", tmp_path / "clip")
    assert (tmp_path / "clip").read_bytes() == DATA
    assert object_store.read_range(f"{server.url}/shard.tar", 5, 1000) == DATA[5:1005]
    assert len(server.requests) == 4


def test_a_range_behind_the_end_says_that_the_file_is_shorter(server: Server) -> None:
    server.always = f"bytes 307190-307199/{len(DATA)}"
    with pytest.raises(ShardError, match=r"ends 10 bytes before the range 307190 \+ 20 does"):
        object_store.read_range(f"{server.url}/shard.tar", len(DATA) - 10, 20)


@pytest.mark.parametrize("name", ["a b.mp4", "50%.mp4", "a%20b.mp4", "#1?.mp4", "ü/ß & é.mp4", "a+b;c=d.mp4"])
def test_the_name_in_a_table_is_the_name_at_the_server(server: Server, tmp_path: Path, name: str) -> None:
    with download.local(download.join(f"{server.url}/my clips/", name)) as path:
        assert path.name == name.rpartition("/")[2]
        assert path.read_bytes() == DATA
    assert unquote(server.requests[0][2]) == f"/my clips/{name}"


def test_a_url_that_a_person_copied_is_asked_for_as_it_is(server: Server, tmp_path: Path) -> None:
    path = download.kept(f"{server.url}/my%20table.csv?key=a%2Fb", tmp_path)
    assert path.name == "my table.csv"
    assert server.requests[0][2] == "/my%20table.csv?key=a%2Fb"


def test_http_needs_no_library_of_buckets(server: Server, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['obstore'] = None; from pathlib import Path; "
        "from vidcurate.storage import download, object_store; place, out = sys.argv[1:]; "
        "download.require(place); download.fetch(f'{place}/clip.mp4', Path(out)); "
        "print(object_store.stamps_of(place, ['a.tar'])['a.tar'].size_bytes)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, server.url, str(tmp_path / "clip")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == len(DATA)
    assert (tmp_path / "clip").read_bytes() == DATA


def test_a_forked_process_reads_no_answer_of_its_parent(server: Server) -> None:
    assert http_objects.read_range(f"{server.url}/x", 0, 5, 5.0) == DATA[:5]
    child = os.fork()
    if child == 0:
        is_apart = not http_pool._idle and http_objects.read_range(f"{server.url}/x", 9, 5, 5.0) == DATA[9:14]
        os._exit(0 if is_apart else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert http_objects.read_range(f"{server.url}/x", 5, 5, 5.0) == DATA[5:10]

    assert len(server.connections) == 2


def test_requests_through_a_proxy_share_a_connection_and_log_in(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url.replace("//", "//me:p%40ss@"))
    monkeypatch.setenv("https_proxy", server.url.replace("http://", ""))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for first in range(5):
        assert object_store.read_range("http://far.test/s.tar", first, 4) == DATA[first:][:4]

    assert {target for _, _, target in server.requests} == {"http://far.test/s.tar"}
    assert len(server.connections) == 1
    assert set(server.logins) == {"Basic bWU6cEBzcw=="}

    server.always = (407, {})
    with pytest.raises(ObjectError, match=r"https://far.test/s.tar: .*407"):
        object_store.read_range("https://far.test/s.tar", 0, 4)
    assert server.requests[-1][1:] == ("CONNECT", "far.test:443")
    server.always = None
    assert object_store.read_range(f"{server.url}/near.tar", 0, 4) == DATA[:4]
    assert server.requests[-1][2] == "/near.tar"
