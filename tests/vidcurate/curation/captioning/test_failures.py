"""The stage `caption` when clips or the server fail, and its command line."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chat_server import ChatServer, Question, chatting, completion, plain
from tests.vidcurate.curation.captioning.conftest import ASKED, NAMES
from vidcurate.cli import main as cli_main
from vidcurate.curation.captioning import ask
from vidcurate.curation.captioning.answers import read_answers
from vidcurate.curation.captioning.client import KEYS
from vidcurate.curation.captioning.spec import CaptionSpec, PromptSpec
from vidcurate.curation.captioning.stage import run_caption
from vidcurate.curation.clip_table import table
from vidcurate.errors import InputError, StorageError

KEY = "sk-1234567890abcdef"
ONE = {"short": PromptSpec(text="what")}


def spec_for(server: ChatServer, **fields: Any) -> CaptionSpec:
    return CaptionSpec(
        **{"endpoint": server.url, "model": "tiny", "prompts": ONE, "retry_seconds": 0.0, **fields}
    )


def statuses(home: Path) -> list[str]:
    return sorted(table.scan(home / "run", "caption").select("caption_status").collect().to_series())


def test_a_file_that_cannot_be_decoded_is_a_row_and_no_question(home: Path) -> None:
    (home / "videos").unlink()
    (home / "videos").mkdir()
    for name in NAMES[:2]:  # good when probed, damaged since
        (home / "videos" / f"{name}.mp4").write_bytes(b"no video")
    with chatting() as server:
        summary = run_caption(home / "run", spec_for(server), videos=home / "videos")
        assert server.asked == []
    assert summary.by_status == {"missing": 4, "not_captioned": 2, "unreadable": 2}


def test_a_server_that_declines_every_request_ends_the_stage_and_no_answer_is_kept(home: Path) -> None:
    with chatting() as server:
        server.always = (400, {}, b'{"error": {"message": "at most 4 images"}}')
        with pytest.raises(InputError, match=r"declines every request \(HTTP 400: at most 4 images\)"):
            run_caption(home / "run", spec_for(server), videos=home / "videos")
        assert read_answers(home / "run") == []


def test_a_request_that_the_server_declines_for_one_clip_is_that_clips_answer(home: Path) -> None:
    with chatting() as server:
        server.faults.append((400, {}, b'{"detail": "no such picture"}'))
        run_caption(home / "run", spec_for(server, concurrency=1), videos=home / "videos")
        assert statuses(home) == ["bad_request", *["not_captioned"] * 2, *["ok"] * (len(ASKED) - 1)]
        run_caption(home / "run", spec_for(server), videos=home / "videos")
        assert len(server.asked) == len(ASKED)


def test_a_clip_without_an_answer_is_asked_for_again(home: Path) -> None:
    with chatting() as server:
        server.faults.extend([500, 500])
        summary = run_caption(home / "run", spec_for(server, concurrency=1, tries=2), videos=home / "videos")
        assert (summary.clips_without_answer, summary.new_answers) == (1, len(ASKED) - 1)
        assert "HTTP 500" in str(summary.first_failure)
        again = run_caption(home / "run", spec_for(server), videos=home / "videos")
        assert (again.clips_without_answer, again.new_answers) == (0, 1)
    assert statuses(home) == ["not_captioned"] * 2 + ["ok"] * len(ASKED)


def test_many_clips_without_an_answer_end_the_stage_and_the_answers_stay(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask, "_MOST_IN_A_ROW", 3)
    with chatting() as server:
        server.faults.extend([None, None])
        server.always = 503
        with pytest.raises(StorageError, match="HTTP 503"):
            run_caption(home / "run", spec_for(server, concurrency=1, tries=1), videos=home / "videos")
    assert len(read_answers(home / "run")) == 2
    assert not (home / "run" / "caption.parquet").exists()


def test_the_table_does_not_depend_on_how_many_are_asked_at_once(home: Path) -> None:
    tables = []
    with chatting() as server:
        for concurrency in (1, 5):
            for name in ("captions.jsonl", "caption.parquet"):
                (home / "run" / name).unlink(missing_ok=True)
            spec = CaptionSpec(endpoint=server.url, model="tiny", concurrency=concurrency)
            run_caption(home / "run", spec, videos=home / "videos", num_workers=min(2, concurrency))
            tables.append((home / "run" / "caption.parquet").read_bytes())
    assert tables[0] == tables[1]


def test_an_error_ends_the_pauses_of_the_other_requests(home: Path) -> None:
    with chatting() as server:
        server.faults.append((429, {"Retry-After": "500"}))

        def on_question(number: int) -> None:
            if number == 1:  # the second request is on its way: the pause is for the others
                came.wait(30)
            else:
                came.set()

        came = threading.Event()
        server.on_question = on_question
        server.always = 401
        began = time.monotonic()
        with pytest.raises(InputError, match="HTTP 401"):
            run_caption(home / "run", spec_for(server, concurrency=2), videos=home / "videos")
        assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"endpoint": "127.0.0.1:8000/v1"}, "an address begins with http"),
        ({"endpoint": "ftp://host/v1"}, "an address begins with http"),
        ({"prompts": {}}, "at least 1"),
        ({"prompts": {"a b": PromptSpec(text="x")}}, "pattern"),
        ({"body": {"messages": []}}, "body cannot hold messages"),
        ({"num_frames": 0}, "greater than or equal to 1"),
        ({"temperature": float("nan")}, "finite"),
    ],
)
def test_wrong_settings_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CaptionSpec(**{"endpoint": "http://127.0.0.1:8000/v1", "model": "m", **fields})


def call(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as left:
        cli_main.main([str(argument) for argument in arguments])
    code = left.value.code
    assert code is None or isinstance(code, int)
    return code or 0


def echo(question: Question) -> dict[str, Any]:
    """Return the key in the answer, as a hostile or careless server would."""
    return completion(f"{question.headers['Authorization']} and {plain(question)}")


def test_the_key_is_in_no_file_and_no_output(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEYS[0], KEY)
    with chatting(echo) as server:
        arguments = ("caption", home / "run", "--videos", home / "videos", "--model", "m", "--workers", "1")
        assert call(*arguments, "--endpoint", server.url, "--json") == 0
        assert server.asked[0].headers["Authorization"] == f"Bearer {KEY}"
        server.always = (401, {}, f"bad key {KEY}".encode())
        assert call(*arguments, "--endpoint", server.url, "--replace", "--set", "temperature=1") == 2
    said = capfd.readouterr()
    assert json.loads(said.out.splitlines()[0])["new_answers"] == 2 * len(ASKED)
    assert "export VIDCURATE_API_KEY=" in said.err
    assert KEY not in said.out + said.err
    for path in (home / "run").rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes()
    assert KEY not in str(table.scan(home / "run", "caption").collect().to_dicts())


def test_wrong_requests_are_one_line_each(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    base = ("caption", home / "run", "--videos", home / "videos")
    url = ("--endpoint", "http://127.0.0.1:9/v1", "--model", "m")
    for arguments, code, words in [
        ((*base, "--model", "m"), 2, "endpoint is missing"),
        ((*base, *url, "--prompt", "dense"), 2, "--prompt dense: no such prompt. Prompts: long, short."),
        ((*base, *url, "--price-per-million-tokens", "1"), 2, "give two prices"),
        ((*base, *url, "--price-per-million-tokens", "1,nan"), 2, "give two prices"),
        ((*base, "--endpoint", "http://u:pass@h/v1", "--model", "m"), 2, "without a user, a password"),
        ((*base, *url, "--set", "tries=1"), 1, "no answer (URLError"),
        (("caption", home / "nothing", *url), 2, "no such run folder"),
    ]:
        assert call(*arguments) == code
        error = capfd.readouterr().err.splitlines()[-1]
        assert error.startswith("error: ")
        assert words in error
        assert "pass@" not in error


def test_too_many_clips_without_an_answer_are_exit_code_3(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with chatting() as server:
        server.faults.append(500)
        arguments = (
            "caption",
            home / "run",
            "--videos",
            home / "videos",
            "--model",
            "m",
            "--prompt",
            "short",
        )
        more = (
            "--prompt",
            "short",
            "--set",
            "tries=1",
            "--set",
            "concurrency=1",
            "--max-failure-share",
            "0.1",
        )
        assert call(*arguments, "--endpoint", server.url, *more) == 3
        assert "got no answer; --max-failure-share allows 10 %" in capfd.readouterr().err
        assert call(*arguments, "--endpoint", server.url, *more) == 0
