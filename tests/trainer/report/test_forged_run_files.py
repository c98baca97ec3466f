"""A run's files are read by many commands: forged or cut ones end each in one line, never in a traceback."""

import copy
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.shards_for_tests import command_words, make_shards, smoke
from trainer.__main__ import main
from trainer.run_folder import jsonl, line_forms, metrics
from trainer.train import train

SETTINGS = (
    *(
        "stages.0.steps=6",
        "stages.0.checkpoint_every=3",
        "stages.0.clip_losses_every=1",
        "stages.0.log_every=1",
    ),
    *("sample.every=3", "sample.steps=1", "validation={every: 3, clips_per_bucket: 2}"),
)
LISTING = "samples/step-00000003/samples.json"
FILES = ("metrics.jsonl", "validation.jsonl", "events.jsonl", "clip_losses.jsonl", "recipe.json", LISTING)
NUMBER_OF_CASES = 120
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1,
        10**400,
        1e308,
        -1e308,
        float("nan"),
        float("inf"),
        "",
        "x",
        "\ud800",
        "\x1b[31m",
    ),
    *([], {}, [[]], [None], ["x"], [1, 2, 3, 4], [0, 0, 0, 0], [-1.0] * 4, {"a": {"b": [1]}}),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with every kind of file that a report reads, as of two ranks."""
    home = tmp_path_factory.mktemp("made")
    shards = make_shards(home / "shards", validation=(8, 9, 10, 11))
    train(smoke(shards, home / "run", *SETTINGS))
    lines = metrics.read_metrics(home / "run" / metrics.METRICS)
    shares: dict[str, Any] = {
        "ranks": 2,
        "predicted": [1.0, 1.1],
        "measured": [0.1, 0.2],
        "of_ranks": [[1.0, 0.1], [1.1, 0.2]],
    }
    text = "".join(json.dumps(line | {"rank_balance": shares}) + "\n" for line in lines)
    (home / "run" / metrics.METRICS).write_text(text)
    again = {"lost_seconds": 0.5, "lost_from": lines[-1]["time"] - 1.0, "lost_until": lines[-1]["time"]}
    jsonl.record_event(home / "run", "steps_dropped", 6, steps=1, **again)
    return home


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*at, key))


def forged(random_: random.Random, document: Any) -> Any:
    """Return a document with one value replaced, removed, or put into a list."""
    found = copy.deepcopy(document)
    at = random_.choice([place for place in places(found) if place])
    inner = found
    for key in at[:-1]:
        inner = inner[key]
    kind = random_.random()
    if kind < 0.75:
        inner[at[-1]] = copy.deepcopy(random_.choice(VALUES))
    elif kind < 0.9:
        del inner[at[-1]]
    else:
        inner[at[-1]] = [inner[at[-1]]]
    return found


def damage(random_: random.Random, file: Path) -> None:
    """Forge one value of a file, or cut it, or flip one bit."""
    data = file.read_bytes()
    kind = random_.random()
    if kind < 0.85:
        lines = data.splitlines() if file.suffix == ".jsonl" else [data]
        number = random_.randrange(len(lines))
        lines[number] = json.dumps(forged(random_, json.loads(lines[number]))).encode()
        file.write_bytes(b"\n".join(lines) + b"\n")
    elif kind < 0.93:
        file.write_bytes(data[: random_.randrange(len(data))])
    else:
        flipped = bytearray(data)
        flipped[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
        file.write_bytes(flipped)


def test_what_reads_a_run_ends_in_a_page_or_in_one_line(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, random_ = tmp_path / "run", random.Random(20)
    commands = (
        ["report", str(run)],
        ["report", str(run), "--cost-table", str(tmp_path / "costs.json")],
        ["gallery", str(run)],
        ["inspect", str(run)],
        ["clips", str(run), "--by-loss", "2"],
        ["clips", str(run), "--step", "2"],
    )
    ends: dict[int, int] = {}
    for number in range(NUMBER_OF_CASES):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(made / "run", run)
        name = random_.choice(FILES)
        damage(random_, run / name)
        words = commands[number % len(commands)]

        code = main(words)

        said = capfd.readouterr()
        what = f"case {number}: {name}, {' '.join(words)}: {said.err[-500:]}"
        errors = [line for line in said.err.splitlines() if line.startswith("error: ")]
        assert code in (0, 1, 2), what
        assert len(errors) == (code != 0), what
        assert "\x1b" not in said.out + said.err, what
        ends[code] = ends.get(code, 0) + 1
    assert ends[0] > 20
    assert ends[1] > 20


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to itself"])
def test_what_reads_a_run_waits_for_no_pipe_in_place_of_a_file(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    for number, name in enumerate((*FILES, "LATEST", "step-00000006/manifest.json")):
        run = shutil.copytree(made / "run", tmp_path / str(number))
        (run / name).unlink()
        if kind == "pipe":
            os.mkfifo(run / name)
        elif kind == "folder":
            (run / name).mkdir()
        else:
            (run / name).symlink_to(run / name)
        for words in (["report"], ["gallery"], ["inspect"], ["clips", "--by-loss", "2"]):
            code = main([words[0], str(run), *words[1:]])

            said = capfd.readouterr().err
            assert code in (0, 1, 2), said
            assert said.count("error: ") == (code != 0), f"{name}, {words}: {said}"


def test_a_training_continues_over_forged_lines_and_a_forged_round_of_samples(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(made / "run", tmp_path / "run")
    lines = (run / metrics.METRICS).read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {"bucket_seconds": -1})
    lines[2] = json.dumps({"step": 3})
    (run / metrics.METRICS).write_text("\n".join(lines) + "\n")
    listing = json.loads((run / LISTING).read_text())
    (run / LISTING).write_text(json.dumps(listing | {"asked": {"width": [], "height": None}}))

    words = command_words(made / "shards", run, *SETTINGS, "stages.0.steps=9")

    assert main(words) == 0
    assert f"metrics.jsonl: 2 damaged lines, kept in {metrics.DAMAGED_LINES}" in capfd.readouterr().err
    assert [line["step"] for line in metrics.read_metrics(run / metrics.METRICS)] == [1, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("name", "facts", "said"),
    [
        ("metrics.jsonl", {"bucket_seconds": -1}, "its bucket_seconds is -1"),
        ("metrics.jsonl", {"bucket_seconds": {"a": [1, 1, 0, 1]}}, "its bucket_seconds is"),
        ("metrics.jsonl", {"seconds": 1e308}, "its seconds is 1e+308"),
        ("metrics.jsonl", {"loss": [1]}, "its loss is [1]"),
        ("metrics.jsonl", {"loss_by_bucket": ["a"]}, "its loss_by_bucket is"),
        ("metrics.jsonl", {"step": True}, "its step is True"),
        ("validation.jsonl", {"loss_by_clip": None}, "its loss_by_clip is None"),
        ("events.jsonl", {"lost_until": float("inf")}, "its lost_until is inf"),
        ("events.jsonl", {"event": None}, "its event is None"),
        ("events.jsonl", {"event": "guard", "action": "drain", "verdict": "x"}, "its verdict is 'x'"),
    ],
)
def test_a_forged_line_is_named_by_its_key(name: str, facts: dict[str, Any], said: str) -> None:
    whole = {
        "metrics.jsonl": {"stage": "a", "loss": 1.0, "time": 1.0, "seconds": 1.0, "data_seconds": 0.0},
        "validation.jsonl": {"weights": "ema", "loss": 1.0, "time": 1.0, "seconds": 1.0, "loss_by_clip": {}},
        "events.jsonl": {"event": "start", "time": 1.0},
    }[name] | {"step": 1}
    assert line_forms.fault_of(whole, name) == ""
    assert line_forms.fault_of(whole | facts, name).startswith(said)
