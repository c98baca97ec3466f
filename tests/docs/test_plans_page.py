"""docs/plans.md shows what its commands print."""

import shlex
import shutil
from pathlib import Path

import pytest

from tests.docs.test_documented import DOCS, ROOT, console, squeezed
from tests.trainer.shards_for_tests import make_shards
from trainer import __main__ as train


def test_the_commands_of_the_page_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_shards(tmp_path / "run" / "shards", num_clips=24, num_frames=20, size=64, validation=(22, 23))
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    commands = console(DOCS / "plans.md")
    assert len(commands) == 4

    for command, shown in commands:
        python, flag, module, *words = shlex.split(command)
        assert (python, flag, module) == ("python", "-m", "trainer")
        assert train.main(words) == 0
        printed = squeezed(capsys.readouterr().out)
        assert shown
        for line in shown:
            assert squeezed(line) in printed, f"{command}: the page shows {line!r}"
