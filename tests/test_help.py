"""`--help` of every command answers without loading torch, polars, PyAV or pyarrow."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from trainer.__main__ import COMMANDS, main
from trainer.cli import training_arguments

HEAVY = ("av", "polars", "pyarrow", "torch")
REPORT = f"print([name for name in {HEAVY} if name in sys.modules])"


@pytest.mark.parametrize("name", ["", *sorted(COMMANDS)])
def test_help_of_a_trainer_command_loads_nothing_heavy(name: str, run_python: Callable[[str], str]) -> None:
    said = run_python(
        "import sys\nfrom trainer.__main__ import main\n"
        f"try:\n    main({[name] if name else []} + ['--help'])\nexcept SystemExit:\n    pass\n" + REPORT
    )
    assert said.startswith("usage: ")
    assert said.splitlines()[-1] == "[]"


def test_help_of_the_vidcurate_commands_loads_nothing_heavy(run_python: Callable[[str], str]) -> None:
    said = run_python(
        "import sys, typer.main\nfrom vidcurate.cli.common import app\nfrom vidcurate.cli.main import main\n"
        ""
        "from vidcurate.cli.trainer_commands import COMMANDS\n"
        "names = sorted({*typer.main.get_command(app).commands} - {*COMMANDS})  # those are trainer's\n"
        "for words in ([], *([name] for name in names)):\n"
        "    try:\n        main([*words, '--help'])\n"
        "    except SystemExit as ended:\n        assert not ended.code\n" + REPORT
    )
    assert said.count("Usage: vidcurate ") > 20
    assert said.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["", *sorted(COMMANDS), "cluster status", "cluster dump", "plan show"])
def test_help_fits_a_terminal_of_80_columns(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with suppress(SystemExit):
        assert main([*name.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("usage: ")
    assert [line for line in lines if len(line) > 80] == []
    assert not any(line.endswith(" --set \\") for line in lines)  # a flag keeps its value


@pytest.mark.parametrize("name", ["", *sorted(COMMANDS), "cluster status", "plan show"])
def test_a_wrong_option_of_a_trainer_command_is_one_line_that_names_the_help(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--json=1"])

    assert ended.value.code == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert error.endswith(f"See `{' '.join(['python -m trainer', *name.split()])} --help`.")


def test_the_help_of_the_trainer_names_every_command() -> None:
    named = {line.split()[3] for line in training_arguments.EXAMPLE.splitlines() if "-m trainer " in line}

    assert {*COMMANDS} <= named
