"""`verify` finds at a URL what it finds in the folder."""

import json
from pathlib import Path

import pytest

from tests.range_server import serving
from tests.shard_runs import build, make_run, rows
from vidcurate.cli import main as cli_main
from vidcurate.errors import InputError
from vidcurate.shards.verify import verify
from vidcurate.shards.verify_shard import LEVELS
from vidcurate.storage import object_store


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verified")
    make_run(folder, rows())
    build(folder)
    return folder / "shards"


def test_a_sound_set_is_sound_at_every_level(
    shards: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(object_store, "PAUSES_SECONDS", (0.01, 0.01))
    with serving(shards) as server:
        server.faults.extend([503, None, "cut"])
        for level in LEVELS[:2]:
            here, there = verify(shards, level), verify(server.url, level)
            assert (there.problems, there.shards, there.clips, there.members, there.bytes_read) == (
                (), here.shards, here.clips, here.members, here.bytes_read
            )  # fmt: skip
            assert there.shards > 3
        with pytest.raises(SystemExit) as left:
            cli_main.main(["verify", server.url, "--level", "index", "--workers", "1", "--json"])
        assert left.value.code == 0
        assert json.loads(capsys.readouterr().out)["folder"] == server.url
        with pytest.raises(InputError, match="nowhere: holds no shards"):
            verify(f"{server.url}/nowhere")


def test_what_is_wrong_is_named_as_in_the_folder(shards: Path, tmp_path: Path) -> None:
    for path in shards.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    flipped, short, gone = sorted(tmp_path.glob("*.tar"))[:3]
    data = bytearray(flipped.read_bytes())
    data[2000] ^= 1
    flipped.write_bytes(data)
    short.write_bytes(short.read_bytes()[:-1024])
    gone.unlink()

    here = verify(tmp_path)
    with serving(tmp_path) as server:
        there = verify(server.url)

    assert [str(problem) for problem in there.problems] == [str(problem) for problem in here.problems]
    named = {problem.file for problem in there.problems}
    assert {flipped.name, short.name, gone.name} <= named
