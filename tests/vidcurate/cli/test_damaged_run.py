"""A damaged file of a run is named in one line, and is no fault of the program."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest

from vidcurate.cli.main import main
from vidcurate.curation.clip_table import stage_json, table_checksum
from vidcurate.errors import TableError
from vidcurate.storage import json_shape


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of forty captions, with levels and a report."""
    folder = tmp_path_factory.mktemp("made")
    rows = [{"clip_id": f"c{n}", "video": f"{n}.mp4", "caption": f"a dog {'runs ' * n}"} for n in range(40)]
    pl.DataFrame(rows).write_csv(folder / "captions.csv")
    run = folder / "run"
    commands: list[list[object]] = [
        ["ingest", folder / "captions.csv", "--out", run],
        ["score", run, "--set", "noun_engine=builtin"],
        ["filter", run, "--set", "min_caption_num_words=5"],
        ["split-by-difficulty", run, "--set", "levels=2"],
    ]
    for words in commands:
        with pytest.raises(SystemExit, match="0"):
            main([str(word) for word in words])
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def failed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Run a command that must fail, and return its one line."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code in (1, 2)
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("error: ")
    assert "unforeseen" not in said[-1]
    return said[-1]


DAMAGES = {
    "empty": b"",
    "another byte": b'{"a": "\xb3"}',
    "cut": b'{"a": ',
    "another form": b"3",
    "brackets": b"[" * 100_000,
}
READERS = {
    "levels.json": "report",
    "reconcile.json": "report",
    "costs.jsonl": "report",
    "shards/manifest.json": "inspect",
}


CASES = [
    (name, damage) for name in READERS for damage in DAMAGES if (name, damage) != ("costs.jsonl", "empty")
]


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_a_damaged_json_file_is_named(
    run: Path, name: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_bytes(DAMAGES[damage])

    assert name in failed(capsys, READERS[name], run)


PIPES = [
    *READERS.items(),
    *(
        (f"{stage}.parquet", command)
        for stage in ("ingest", "score", "filter")
        for command in ("report", "what-if")
    ),
    ("score.parquet", "filter"),
    ("ledger.parquet", "ledger"),
    ("split.parquet", "inspect"),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "command"), PIPES)
def test_a_pipe_in_place_of_a_file_is_named_and_nothing_waits_for_it(
    run: Path, name: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)

    assert name in failed(capsys, command, run)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "command",
    [
        ["export", "RUN", "PIPE"],
        ["card", "RUN", "--out", "PIPE"],
        ["split-scenes", "RUN", "--out", "PIPE"],
        ["fetch-plan", "RUN", "--parts", "parts", "--out", "PIPE"],
    ],
)
def test_a_pipe_that_is_named_for_a_result_is_refused_and_stays(
    run: Path, tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)

    words = failed(capsys, *({"RUN": run, "PIPE": pipe}.get(word, word) for word in command))

    assert f"{pipe}: is no regular file. Name another." in words
    assert pipe.is_fifo()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["ingest.parquet", "reconcile.json", "captions.csv"])
def test_ingest_waits_for_no_pipe(
    run: Path, made: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = Path(shutil.copy(made.parent / "captions.csv", tmp_path))
    path = metadata if name == metadata.name else run / name
    path.unlink()
    os.mkfifo(path)
    if path == metadata:
        assert f"{path}: is neither a regular file nor a folder" in failed(
            capsys, "ingest", path, "--out", run
        )
        return
    with pytest.raises(SystemExit, match="0"):
        main(["ingest", str(metadata), "--out", str(run)])
    assert path.is_file()  # written anew in place of the pipe


@pytest.mark.parametrize("command", [["report"], ["inspect"], ["split-by-difficulty", "--set", "levels=3"]])
def test_a_damaged_table_is_named(run: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "score.parquet"
    data = bytearray(path.read_bytes())
    data[4:2000] = bytes(1996)  # the pages; the footer is whole
    path.write_bytes(data)
    for later in ("filter", "split"):
        (run / f"{later}.parquet").unlink(missing_ok=True)

    assert str(path) in failed(capsys, command[0], run, *command[1:])


def forge(path: Path) -> None:
    """Damage the pages of a table so that polars panics, and give the file its checksum again."""
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    random = Random(0)
    for _ in range(20_000):
        data = bytearray(whole)
        for _ in range(2):
            data[random.randrange(4, footer)] = random.randrange(256)
        path.write_bytes(data)
        try:
            pl.read_parquet(path)
        except pl.exceptions.PanicException as error:
            if not str(error).startswith("parquet: "):
                table_checksum.seal(path)
                return
        except pl.exceptions.PolarsError:
            pass
    pytest.fail("polars panics at none of 20,000 damaged files")


@pytest.mark.parametrize("name", ["ingest.parquet", "score.parquet"])
def test_a_forged_table_at_which_polars_panics_is_named(
    run: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for later in [path for path in run.glob("*.parquet") if path.name not in ("ingest.parquet", name)]:
        later.unlink()
    forge(run / name)

    assert f"{run / name}: cannot be read" in failed(capsys, "export", run, run / "out.csv", "--for", "csv")


def test_metadata_at_which_polars_panics_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "captions.parquet"
    rows = [{"clip_id": f"c{n}", "video": f"{n}.mp4", "caption": f"a dog {'runs ' * n}"} for n in range(40)]
    metadata = {table_checksum.CHECKSUM: table_checksum.UNSEALED}
    pl.DataFrame(rows).write_parquet(path, metadata=metadata)
    forge(path)

    assert f"{path}: cannot be read as parquet" in failed(capsys, "ingest", path, "--out", tmp_path / "run")


@dataclass(frozen=True)
class Shape:
    a: json_shape.Count


def test_a_file_beside_a_table_has_the_shape_that_its_stage_writes(tmp_path: Path) -> None:
    path = tmp_path / "levels.json"
    assert stage_json.read(path, Shape) is None
    with pytest.raises(TableError, match="it is missing"):
        stage_json.require(path, Shape)
    path.write_text('{"a": 1, "more": 2}')
    assert stage_json.read(path, Shape) == Shape(1)
    with pytest.raises(TableError, match="valid array"):
        stage_json.read(path, list[Shape])
    for forged in ("[3]", "3", '{"a": "1"}', '{"a": -1}', '{"a": 1e400}', '{"a": NaN}', f'{{"a": {10**30}}}'):
        path.write_text(forged)
        with pytest.raises(
            TableError, match=rf"^{path}: (is not what its stage writes|cannot be read as JSON) \("
        ):
            stage_json.require(path, Shape)


FORGED = [
    ("report", "reconcile.json", ("missing_files", "count"), "many"),
    ("report", "reconcile.json", ("own_columns",), "12"),
    ("card", "reconcile.json", ("extra_files", "count"), -4),
    ("report", "levels.json", ("levels", 0, "hours"), [None]),
    ("report", "levels.json", ("levels", 1, "standard_deviation"), None),
    ("report", "levels.json", ("levels", 1, "level"), 10**30),
    ("card", "levels.json", ("levels", 0, "min"), "\ud800"),
    ("what-if", "levels.json", ("levels", 0, "max"), {}),
    ("report", "levels.json", ("levels",), []),
    ("report", "levels.json", ("histograms", "columns", "caption_num_words", "counts", 1), [1]),
    ("report", "levels.json", ("histograms", "columns", "caption_num_words", "edges", 1), float("inf")),
    ("report", "levels.json", ("histograms", "columns", "caption_num_words", "quantiles", 0), ["x"]),
]


@pytest.mark.parametrize(("command", "name", "place", "value"), FORGED)
def test_a_forged_value_is_named_with_its_file(
    run: Path,
    command: str,
    name: str,
    place: tuple[Any, ...],
    value: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = json.loads((run / name).read_text())
    inner = whole
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (run / name).write_text(json.dumps(whole))

    said = failed(capsys, command, run)
    assert f"{run / name}: " in said
    assert "is not what its stage writes (" in said or "cannot be read as JSON (" in said
    assert len(said) < 700
