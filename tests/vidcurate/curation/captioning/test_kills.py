"""Kills of the stage `caption` at random answers: no clip captioned twice, the bytes of a run left alone."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.chat_server import ChatServer, chatting
from vidcurate.curation.captioning.answers import ANSWERS, read_answers
from vidcurate.curation.captioning.spec import CaptionSpec
from vidcurate.curation.captioning.stage import run_caption

CONCURRENCY = 2
CHILD = """
import sys
from pathlib import Path
from vidcurate.curation.captioning.spec import CaptionSpec
from vidcurate.curation.captioning.stage import run_caption
home, endpoint, concurrency = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
spec = CaptionSpec(endpoint=endpoint, model="tiny", concurrency=concurrency)
run_caption(home / "run", spec, videos=home / "videos")
"""


def captioned(home: Path, server: ChatServer, *, kill_at: int | None) -> int:
    """Run the stage in a process, killed when the server gets its request `kill_at`; return the exit code."""
    first = len(server.asked)
    process = subprocess.Popen([sys.executable, "-c", CHILD, str(home), server.url, str(CONCURRENCY)])

    def on_question(number: int) -> None:
        if kill_at is not None and number - first == kill_at:
            os.kill(process.pid, signal.SIGKILL)

    server.on_question = on_question
    return process.wait(120)


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.soak)])
def test_a_killed_stage_captions_no_clip_twice_and_ends_with_the_same_bytes(
    home: Path, tmp_path: Path, kills: int
) -> None:
    shutil.copytree(home / "run", tmp_path / "calm" / "run")
    chance = random.Random(0)
    num_killed = 0
    with chatting() as server:
        while num_killed < kills:
            shutil.rmtree(home / "run")
            shutil.copytree(tmp_path / "calm" / "run", home / "run")
            known: set[tuple[str, str]] = set()
            for kill_at in [chance.randint(1, 4) for _ in range(min(3, kills - num_killed))]:
                before = len(server.asked)
                assert captioned(home, server, kill_at=kill_at) == -signal.SIGKILL
                num_killed += 1
                again = {(question.prompt, question.frames_hash) for question in server.asked[before:]}
                assert not again & known  # an answer that was kept is not asked for again
                pairs = {answer.text: answer for answer in read_answers(home / "run")}
                known = {
                    (question.prompt, question.frames_hash)
                    for question in server.asked
                    if server.answer(question) in pairs
                }
                assert not list((home / "run").glob("caption.parquet"))
            with (home / "run" / ANSWERS).open("ab") as file:
                file.write(b'{"number": 99, "id": "half a li')
            before = len(server.asked)
            assert captioned(home, server, kill_at=None) == 0
            answers = read_answers(home / "run")
            assert set(Counter((answer.clip_id, answer.name) for answer in answers).values()) == {1}
            assert len(answers) == 12
            assert len(server.asked) - before < 12
        server.on_question = lambda number: None
        spec = CaptionSpec(endpoint=server.url, model="tiny", concurrency=1)
        run_caption(tmp_path / "calm" / "run", spec, videos=home / "videos")
    whole = (home / "run" / "caption.parquet").read_bytes()
    assert whole == (tmp_path / "calm" / "run" / "caption.parquet").read_bytes()
