"""RUN/reviews.jsonl under kills, cuts, forgeries and several writers at once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from vidcurate.curation.review_decisions import journal
from vidcurate.curation.review_decisions.journal import (
    REVIEWS,
    JournalReader,
    append_decision,
    parse_decision,
    read_decisions,
    undo_decision,
)
from vidcurate.errors import InputError, MissingError, StorageError, TableError

WRITER = """
import sys
from pathlib import Path
from vidcurate.curation.review_decisions.journal import append_decision
run, name, first, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
for at in range(first, last):
    number = append_decision(run, {"id": f"{name}-{at}", "clip_id": f"clip {at}", "reviewer": name,
                                   "verdict": "reject", "reason": "too dark \\u2028 ü"})
    print(at, number, flush=True)
"""


def decision(at: int, **fields: Any) -> dict[str, Any]:
    return {"id": f"id-{at}", "clip_id": f"clip {at}", "reviewer": "ana", "verdict": "keep", **fields}


def writer(run: Path, name: str, first: int, last: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, str(run), name, str(first), str(last)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_a_decision_comes_back_as_it_was_sent(tmp_path: Path) -> None:
    seen = {
        "rule": "min_noun_count",
        "scores": {"noun_count": 2, "luma_mean": 0.25, "is_kept": False, "x": None},
    }
    assert append_decision(tmp_path, decision(1, verdict="reject", reason="line\u2028break", seen=seen)) == 1
    assert append_decision(tmp_path, decision(2, verdict="caption", caption="A cat.\nIt sits.")) == 2
    assert append_decision(tmp_path, decision(3, verdict="tag", tags=["night", "été"])) == 3
    first, second, third = read_decisions(tmp_path)
    assert first.seen.model_dump() == seen
    assert first.reason == "line\u2028break"
    assert (second.number, second.caption, third.tags) == (2, "A cat.\nIt sits.", ("night", "été"))
    assert first.time_utc.endswith("Z")
    assert first.undone_by is None


def test_killed_in_the_midst_of_1000_decisions_none_is_lost_and_none_is_there_twice(tmp_path: Path) -> None:
    acknowledged = {}
    with writer(tmp_path, "ana", 0, 1000) as process:
        assert process.stdout is not None
        for line in process.stdout:
            at, number = map(int, line.split())
            acknowledged[at] = number
            if len(acknowledged) == 137:
                process.send_signal(signal.SIGKILL)
    assert 137 <= len(acknowledged) < 1000
    kept = {line.id: line.number for line in read_decisions(tmp_path)}
    assert {f"ana-{at}": number for at, number in acknowledged.items()}.items() <= kept.items()
    again = writer(tmp_path, "ana", 0, 1000)  # the client sends all of them again
    output, _ = again.communicate()
    numbers = dict(tuple(map(int, line.split())) for line in output.splitlines())
    assert acknowledged.items() <= numbers.items()
    assert [line.id for line in read_decisions(tmp_path)] == [f"ana-{at}" for at in range(1000)]


def test_two_processes_and_eight_threads_at_once_keep_every_decision(tmp_path: Path) -> None:
    others = [writer(tmp_path, name, 0, 60) for name in ("ana", "bo")]
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda at: append_decision(tmp_path, decision(at)), range(60)))
    for process in others:
        process.communicate()
        assert process.returncode == 0
    found = read_decisions(tmp_path)
    assert [line.number for line in found] == list(range(1, 181))
    assert {line.id: line.number for line in found if line.id.startswith("id-")} == {
        f"id-{at}": number for at, number in enumerate(numbers)
    }


def test_a_file_cut_at_any_byte_keeps_its_whole_lines_and_takes_the_next(tmp_path: Path) -> None:
    for at in range(2):
        append_decision(tmp_path, decision(at, reason="ü"))
    whole = (tmp_path / REVIEWS).read_bytes()
    for cut in range(whole.index(b"\n") - 9, len(whole)):
        (tmp_path / REVIEWS).write_bytes(whole[:cut])
        lines = whole[:cut].count(b"\n")
        assert len(read_decisions(tmp_path)) == lines
        assert append_decision(tmp_path, decision(9)) == lines + 1
        assert [line.id for line in read_decisions(tmp_path)] == [
            *(f"id-{at}" for at in range(lines)),
            "id-9",
        ]


def _edit(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1].replace(b"clip 1", b"clip 7"), *lines[2:]]


def _renumbered(lines: list[bytes]) -> list[bytes]:
    fields = json.loads(lines[1])
    return [lines[0], json.dumps(fields | {"number": 7}).encode() + b"\n", *lines[2:]]


@pytest.mark.parametrize(
    ("number", "forge"),
    [
        (2, _edit),
        (2, _renumbered),
        (2, lambda lines: [lines[0], *lines[2:]]),
        (2, lambda lines: [lines[0], lines[2], lines[1], lines[3]]),
        (5, lambda lines: [*lines, lines[3]]),
        (1, lambda lines: [b"\n", *lines]),
        (1, lambda lines: [b"[" * 5000 + b"\n", *lines]),
        (3, lambda lines: [*lines[:2], b"\x00" * 100 + b"\n", *lines[2:]]),
        (1, lambda lines: [lines[0][:-1] + b" \n", *lines[1:]]),
    ],
)
def test_a_forged_line_is_refused_with_its_number(tmp_path: Path, number: int, forge: Any) -> None:
    for at in range(4):
        append_decision(tmp_path, decision(at))
    path = tmp_path / REVIEWS
    forged = b"".join(forge(path.read_bytes().splitlines(keepends=True)))
    path.unlink()
    path.write_bytes(forged)
    with pytest.raises(TableError, match=f"line {number} was not written by vidcurate"):
        read_decisions(tmp_path)
    journal._known.clear()  # as a new process
    with pytest.raises(TableError, match=f"line {number} "):
        append_decision(tmp_path, decision(9))
    assert path.read_bytes() == forged


def test_the_same_decision_twice_is_one_line_and_another_with_its_id_is_refused(tmp_path: Path) -> None:
    assert append_decision(tmp_path, decision(1)) == append_decision(tmp_path, decision(1)) == 1
    with pytest.raises(InputError, match="line 1 has the id id-1 for another decision"):
        append_decision(tmp_path, decision(1, verdict="reject"))
    assert len(read_decisions(tmp_path)) == 1


def test_an_undo_is_the_reviewers_own_and_adds_one_line(tmp_path: Path) -> None:
    append_decision(tmp_path, decision(1))
    with pytest.raises(InputError, match="made by ana; bo cannot undo it"):
        undo_decision(tmp_path, 1, "bo")
    assert undo_decision(tmp_path, 1, "ana") == undo_decision(tmp_path, 1, "ana") == 2
    assert append_decision(tmp_path, decision(2)) == 3
    assert [(line.number, line.undone_by) for line in read_decisions(tmp_path)] == [(1, 2), (3, None)]
    for number in (0, -1, 2, 4):
        with pytest.raises(InputError, match=f"line {number} is no decision"):
            undo_decision(tmp_path, number, "ana")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"verdict": "destroy"}, "verdict"),
        ({"verdict": "caption"}, "the verdict caption has a caption"),
        ({"caption": "A cat."}, "no other verdict has one"),
        ({"verdict": "caption", "caption": " "}, "caption: the text is empty"),
        ({"verdict": "caption", "caption": "x" * 10_001}, "at most 10000 characters"),
        ({"tags": ["a"]}, "tags go with the verdict tag"),
        ({"reason": "two\nlines"}, "reason: the character '\\\\n' is not allowed"),
        ({"reviewer": "\x1b[31mred"}, "reviewer: the character"),
        ({"clip_id": "\ud800"}, "the decision is refused"),
        ({"id": "../x"}, "id"),
        ({"number": 7}, "number"),
        ({"seen": {"scores": {"luma": float("nan")}}}, "not a JSON object"),
        ({"seen": {"scores": {"luma": [1]}}}, "seen.scores.luma"),
    ],
)
def test_a_wrong_decision_is_refused_and_writes_nothing(
    tmp_path: Path, fields: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        append_decision(tmp_path, decision(1, **fields))
    assert not (tmp_path / REVIEWS).exists()


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_decision(tmp_path, decision(1))
    written = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: written(handle, data[:40]))
    with pytest.raises(StorageError, match="No space left"):
        append_decision(tmp_path, decision(2))
    monkeypatch.undo()
    assert (tmp_path / REVIEWS).read_bytes().endswith(b"\n")
    assert append_decision(tmp_path, decision(2)) == 2


def test_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such run folder"):
        append_decision(tmp_path / "none", parse_decision(decision(1)))
    assert read_decisions(tmp_path / "none") == ()


def test_a_reader_that_keeps_what_it_read_sees_new_lines_undos_and_another_file(tmp_path: Path) -> None:
    reader = JournalReader(tmp_path)
    assert reader.read() == ()
    for at in range(3):
        append_decision(tmp_path, decision(at))
        assert [one.number for one in reader.read()] == list(range(1, at + 2))
    undo_decision(tmp_path, 2, "ana")
    assert reader.read() == read_decisions(tmp_path)
    assert reader.read()[1].undone_by == 4
    path = tmp_path / REVIEWS
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])  # put back from a backup
    assert reader.read() == read_decisions(tmp_path)
    assert len(reader.read()) == 1
    path.write_bytes(path.read_bytes().replace(b"ana", b"bob"))
    with pytest.raises(TableError, match="line 1 was not written"):
        reader.read()


@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_the_journal_is_one_error_and_no_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / REVIEWS)

    with pytest.raises(StorageError, match=f"{tmp_path / REVIEWS}: .*it is no regular file"):
        read_decisions(tmp_path)
    with pytest.raises(StorageError, match=str(tmp_path / REVIEWS)):
        append_decision(tmp_path, decision(1))
