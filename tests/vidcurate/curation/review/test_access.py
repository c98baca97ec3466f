"""Who may ask the review server: nobody without its token, from elsewhere, or for another file."""

import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import polars as pl
import pytest

from tests.vidcurate.curation.review.conftest import TOKEN, Server, served
from vidcurate.curation.clip_table import table
from vidcurate.curation.review.access import cookie_name

PATHS = (
    "/", "/static/main.js", "/api/run", "/api/clips", "/api/facets", "/api/histogram?column=width",
    "/api/clip/0", "/media/poster/0", "/media/file/0", "/media/transcoded/0", "/no/such/path",
)  # fmt: skip
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_served_without_the_token(server: Server, path: str) -> None:
    for cookies in ({}, {cookie_name(server.port): "wrong"}, {"vidcurate_review_1": TOKEN}):
        response = httpx.get(server.origin + path, cookies=cookies)
        assert response.status_code == 403
        assert "refused: token" in response.text
    assert httpx.get(f"{server.origin}/?token={TOKEN}x").status_code == 403
    assert httpx.get(f"{server.origin}{path}", headers={"authorization": TOKEN}).status_code == 403


def test_the_token_of_the_address_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(
    server: Server,
) -> None:
    response = httpx.get(f"{server.origin}/?token={TOKEN}")
    assert response.status_code == 303
    assert response.headers["location"] == "/"
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    with httpx.Client(base_url=server.origin, follow_redirects=True) as client:
        page = client.get(f"/?token={TOKEN}")
        assert page.status_code == 200
        assert TOKEN not in page.text
        linked = client.get(f"/?token={TOKEN}", headers={"sec-fetch-site": "cross-site"})
        assert 'content="0;url=/"' in linked.text
        assert client.get("/", headers={"sec-fetch-site": "same-site"}).status_code == 200
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in policy


def test_the_page_that_links_from_elsewhere_open_is_the_same_for_everybody(server: Server) -> None:
    """It has no secret and no data, and what it leads to needs the cookie."""
    plain = httpx.get(f"{server.origin}/open")
    foreign = httpx.get(f"{server.origin}/open?q=<b>", headers={"sec-fetch-site": "cross-site"})
    held = server.client.get("/open", headers={"referer": "https://evil.example/"})
    assert plain.status_code == foreign.status_code == held.status_code == 200
    assert plain.content == foreign.content == held.content
    assert TOKEN not in plain.text
    for response in (plain, foreign, held):
        assert "set-cookie" not in response.headers
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert response.headers["x-frame-options"] == "DENY"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in response.headers
    assert httpx.get(f"{server.origin}/static/open.js").status_code == 403
    assert httpx.post(f"{server.origin}/open").status_code == 403
    assert server.client.get("/open", headers={"host": "evil.example"}).status_code == 403
    for path in ("/open/", "/open/..", "/open/x", "/opens", "/OPEN"):
        assert httpx.get(server.origin + path).status_code == 403, path
    cross = server.client.get("/", headers={"sec-fetch-site": "cross-site"}).text
    assert "clip" in cross  # as before: a browser that sends the cookie gets the page


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[::2]", "", "127.0.0.1:x"],
)
def test_a_host_name_that_was_rebound_to_this_machine_is_refused(server: Server, host: str) -> None:
    response = server.client.get("/api/run", headers={"host": host})
    assert response.status_code in (400, 403)
    assert "rows" not in response.text


def test_a_tunnel_with_another_local_port_is_no_other_host(server: Server) -> None:
    assert server.client.get("/api/run", headers={"host": "localhost:9000"}).status_code == 200


def test_another_site_may_neither_read_nor_write(server: Server) -> None:
    body = {"limits": {}}
    for origin in ("https://evil.example", "http://127.0.0.1:1", "null", f"{server.origin}.evil.example"):
        response = server.client.post("/api/trial", json=body, headers={"origin": origin})
        assert response.status_code == 403, origin
    assert server.client.post("/api/trial", json=body).status_code == 403  # a write names its origin
    plain = {"origin": server.origin, "content-type": "text/plain"}
    assert server.client.post("/api/trial", content=json.dumps(body), headers=plain).status_code == 403
    for site in ("cross-site", "same-site"):
        assert server.client.get("/api/run", headers={"sec-fetch-site": site}).status_code == 403
    allowed = server.client.get("/api/run", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in allowed.headers
    assert server.post("/api/trial", body).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../../../../etc/passwd", "/static/..%2f..%2fapp.py", "/static/%2e%2e/app.py", "//etc/passwd",
        "/static/app.py", "/media/file/..%2f0", "/media/file/0/../../etc/passwd", "/static/", "/static/%00",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_pages_own_files(server: Server, path: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as line:  # a client would tidy it
        cookie = f"{cookie_name(server.port)}={TOKEN}"
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n"
        line.sendall(request.encode())
        answer = b"".join(iter(lambda: line.recv(65536), b""))
    assert answer.split()[1] in (b"404", b"400", b"307"), answer[:200]
    assert b"root:" not in answer
    assert b"import " not in answer


@pytest.fixture
def hostile(run: Path, make_video: Callable[..., Path], tmp_path: Path) -> Iterator[Server]:
    """A run whose table names files outside the folder of videos, links, pipes, and has hostile captions."""
    videos = tmp_path / "videos"
    videos.mkdir()
    secret = tmp_path / "secret.mp4"
    shutil.copy(make_video(), secret)
    shutil.copy(make_video(), videos / "good.mp4")
    (videos / "link.mp4").symlink_to(secret)
    (videos / "folder").symlink_to(tmp_path)
    (videos / "loop.mp4").symlink_to(videos / "loop.mp4")
    os.mkfifo(videos / "pipe.mp4")
    shutil.copy(make_video(), videos / f"{HOSTILE.replace('/', '')}.mp4")
    (videos / "page.html").write_text("<script>1</script>")
    names = [
        "good.mp4", "../secret.mp4", str(secret), "link.mp4", "folder/secret.mp4", "loop.mp4", "pipe.mp4",
        "gone.mp4", "", "a\0b.mp4", ".", f"{HOSTILE.replace('/', '')}.mp4", "page.html",
    ]  # fmt: skip
    clips = pl.read_parquet(run / "ingest.parquet").head(len(names))
    home = tmp_path / "run"
    home.mkdir()
    changed = clips.with_columns(
        pl.Series("video_path", names),
        pl.lit(HOSTILE).alias("caption"),
        pl.lit(None, dtype=pl.String).alias("ingest_problem"),
        pl.lit(HOSTILE).alias("source_dataset"),
    )
    table.write(changed, home / "ingest.parquet", table.Provenance(stage="ingest", settings={}, inputs={}))
    yield from served(home, videos)


def test_no_row_leads_to_a_file_outside_the_folder_of_videos(hostile: Server) -> None:
    served_rows = []
    for row in range(13):
        codes = {
            kind: hostile.client.get(f"/media/{kind}/{row}").status_code
            for kind in ("file", "poster", "transcoded")
        }
        if codes["file"] == 200:
            served_rows.append(row)
        elif row == 12:  # inside the folder, and no video
            assert codes == {"file": 404, "poster": 200, "transcoded": 415}
            assert b"script" not in hostile.client.get("/media/poster/12").content
        else:
            assert set(codes.values()) == {404}, (row, codes)
    assert served_rows == [0, 11]


def test_hostile_text_comes_as_json_that_no_browser_reads_as_a_page(hostile: Server) -> None:
    response = hostile.client.get("/api/clips")
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.json()["rows"][0]["caption"] == HOSTILE
    wrong = hostile.client.get("/api/clips", params={"q": json.dumps({"sort": HOSTILE})})
    assert wrong.headers["content-type"] == "application/json"


def test_200_slow_connections_do_not_stop_it(server: Server) -> None:
    slow = []
    kept = {"q": json.dumps({"words": {"is_kept": ["true"]}})}
    row = server.client.get("/api/clips", params=kept).json()["rows"][0]["row"]
    try:
        for number in range(200):
            line = socket.create_connection(("127.0.0.1", server.port), timeout=20)
            if number % 2:
                line.sendall(
                    b"GET /api/run HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
                )  # a header without an end
            else:
                body = (
                    f"POST /api/trial HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
                    f"Cookie: {cookie_name(server.port)}={TOKEN}\r\nContent-Type: application/json\r\n"
                    "Content-Length: 100\r\n\r\n{"
                )
                line.sendall(body.encode())
            slow.append(line)
        start = time.monotonic()
        for _ in range(5):
            assert server.client.get("/api/clips").status_code == 200
            assert server.client.get(f"/media/file/{row}", headers={"range": "bytes=0-9"}).status_code == 206
        assert time.monotonic() - start < 10
    finally:
        for line in slow:
            line.close()


def test_a_body_that_is_too_large_is_refused(server: Server) -> None:
    response = server.post("/api/trial", {"limits": {}, "name": "x" * 2_000_000})
    assert response.status_code == 400
    assert "larger than" in response.json()["error"]
