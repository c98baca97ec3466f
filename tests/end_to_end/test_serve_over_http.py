"""The server as a process with an endpoint: it samples and answers in turns, and ends on Ctrl-C."""

import http.client
import json
import re
import signal
from pathlib import Path

from tests.end_to_end.test_serve_beside_training import process, until
from tests.trainer.shards_for_tests import make_shards, smoke
from trainer.run_folder import sample_rounds
from trainer.train import train

TOKEN = "a-token-of-some-length"
SHORT = ("stages.0.steps=4", "stages.0.checkpoint_every=2", "sample.every=100", "sample.seeds=[0, 1, 2, 3]")


def test_a_server_with_an_endpoint_answers_while_it_samples_and_stays_when_all_is_done(
    tmp_path: Path,
) -> None:
    run, token = tmp_path / "run", tmp_path / "token"
    train(smoke(make_shards(tmp_path / "shards", num_clips=6), run, *SHORT))
    token.write_text(TOKEN + "\n")
    said = tmp_path / "server.txt"
    words = ("serve", str(run), "--no-validation", "--http", ":0", "--token-file", str(token))

    def ask(path: str, body: object = None, given: str = TOKEN) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        headers = {"Authorization": f"Bearer {given}", "Content-Type": "application/json"}
        data = json.dumps(body) if body is not None else None
        connection.request("POST" if data else "GET", path, data, headers)
        response = connection.getresponse()
        answer = response.status, response.read()
        connection.close()
        return answer

    with process(tmp_path, "server", *words) as server:
        address = re.compile(r"listening on http://127\.0\.0\.1:(\d+)\n")
        until(lambda: address.search(said.read_text()), "listening")
        (found,) = address.findall(said.read_text())
        port = int(found)
        asked = {"prompt": "a red square moves right", "seed": 2, "checkpoint": "step-00000002"}
        code, clip = ask("/generate", asked)
        until(lambda: len(sample_rounds.rounds(run)) == 2, "both rounds")
        refused, reported = ask("/generate", asked, "a-token-of-another")
        until(lambda: b"vidcurate_serve_rounds_total 1\n" in ask("/metrics")[1], "the count of rounds")
        health = json.loads(ask("/health")[1])
        assert server.poll() is None  # the run is done, and the endpoint stays
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 130, said.read_text()

    assert (code, refused) == (200, 401)
    assert json.loads(reported) == {"error": "the token is wrong."}
    assert clip == (run / "samples/step-00000002/00-2.mp4").read_bytes()
    assert health["newest_step"] == {str(run): 4}
    # Within an import, Ctrl-C ends the process at once, with the first half of the line.
    last = said.read_text().splitlines()[-1]
    assert re.fullmatch(r"interrupted; the same command continues( with what is not sampled yet\.)?", last)
    assert TOKEN not in said.read_text()
