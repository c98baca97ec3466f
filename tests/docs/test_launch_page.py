"""The commands of docs/launch.md and of `launch --help`, on real ranks."""

import re
import shlex
from pathlib import Path

import pytest

from tests.docs.test_documented import DOCS, ROOT, console
from tests.forked_runs import Forks
from tests.trainer.shards_for_tests import make_shards
from trainer.cluster.launch import command as launch_command


def example(capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit) as ended:
        launch_command.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out.replace("\\\n", " ")
    found = re.search(r"^  python -m trainer launch (.*)", text, re.M)
    assert found is not None
    return shlex.split(found[1])


def test_the_pages_command_is_that_of_the_help_and_prints_what_the_page_shows(
    tmp_path: Path, forks: Forks, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    make_shards(tmp_path / "run" / "shards", num_clips=4, size=64)
    ((command, shown),) = console(DOCS / "launch.md")
    words = shlex.split(command)
    helped = example(capsys)
    assert words[: 4 + len(helped)] == ["python", "-m", "trainer", "launch", *helped]

    launched = forks.start(words, folder=tmp_path, PYTHONPATH=str(ROOT))

    assert launched.codes() == [0], launched.text()
    for line in shown:
        assert line in launched.text()


def test_every_flag_is_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "launch.md").read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        launch_command.main(["--help"])

    for flag in re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.M):
        assert flag in page
