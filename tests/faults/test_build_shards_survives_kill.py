"""build-shards killed with SIGKILL at any moment and run again ends with the bytes of an undisturbed run.

Some kills take the whole process group, some only the parent (its workers are then orphans that must not
spoil the next run). After each kill every tar that has its final name must be whole.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.shard_runs import contents, make_run, rows
from vidcurate.shards import index
from vidcurate.shards.build import run_build_shards
from vidcurate.shards.layout import ShardSpec
from vidcurate.shards.reader_indexes import export as reader_indexes_export

CODE = textwrap.dedent("""
import sys
from pathlib import Path
from vidcurate.shards.reader_indexes import export as reader_indexes_export
from vidcurate.shards.layout import ShardSpec
from vidcurate.shards.build import run_build_shards
folder, out, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
def reported(done, total, unit):
    print(done, flush=True)
run_build_shards(folder / "run", ShardSpec(max_clips=4), videos=folder / "videos", out=out,
                 num_workers=workers, progress=reported)
reader_indexes_export.export(out, reader_indexes_export.READERS, num_workers=workers)
print("end", flush=True)
""")
SPEC = ShardSpec(max_clips=4)


def start(folder: Path, out: Path, workers: int) -> "subprocess.Popen[str]":
    child = subprocess.Popen(
        [sys.executable, "-c", CODE, str(folder), str(out), str(workers)],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline().strip().isdigit()  # planned; from here on it writes
    return child


def kill(child: "subprocess.Popen[str]", *, group: bool) -> None:
    if group:
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait()
    until = time.monotonic() + 60
    while group and _alive_in_session(child.pid):  # the last of them is dead a moment later
        assert time.monotonic() < until
        time.sleep(0.01)
    assert child.stdout is not None
    child.stdout.close()


def finish(folder: Path, out: Path, spec: ShardSpec = SPEC, *, overwrite: bool = False) -> None:
    run_build_shards(folder / "run", spec, videos=folder / "videos", out=out, overwrite=overwrite)
    reader_indexes_export.export(out, reader_indexes_export.READERS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of 90 clips of up to 300 kB and its shards, undisturbed, in `whole`."""
    folder = tmp_path_factory.mktemp("kill")
    make_run(folder, rows(90), lambda i: 1000 + 77_777 * i % 300_000)
    finish(folder, folder / "whole")
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, str]:
    return contents(folder / "whole")


@pytest.fixture(scope="module")
def seconds(folder: Path) -> dict[int, float]:
    """Return how long an undisturbed run writes, for 1 and 2 workers."""
    found = {}
    for workers in (1, 2):
        child = start(folder, folder / f"timed{workers}", workers)
        began = time.monotonic()
        assert child.stdout is not None
        assert "end" in child.stdout.read()
        found[workers] = time.monotonic() - began
        child.wait()
        child.stdout.close()
    return found


def whole_or_absent(out: Path, whole: dict[str, str]) -> None:
    """Assert that whatever a reader would take is whole; workers may still be there, and give up just now."""
    until = time.monotonic() + 60
    while True:
        try:
            found = contents(out)
            break
        except FileNotFoundError:  # moved or removed between two looks
            assert time.monotonic() < until
    seen = {name for name in found if not name.startswith(".") or name.startswith(".nv-meta/")}
    for name in seen:
        assert found[name] == whole[name], f"{name} is not what an undisturbed run writes"
    if "index.parquet" in seen:
        index.read_index(out)
    if "manifest.json" in seen:
        of_readers = {
            name for name in whole if reader_indexes_export.is_ours(name.partition("/")[0], set(whole))
        }
        assert seen >= whole.keys() - of_readers
    if any(name.startswith(".nv-meta/") for name in seen):
        assert seen >= {name for name in whole if name.startswith(".nv-meta/")}


@pytest.mark.parametrize(
    "moment", [0, 3, *(pytest.param(at, marks=pytest.mark.soak) for at in (1, 2, 4, 5, 6, 7))]
)
def test_killed_once_and_run_again(
    folder: Path, whole: dict[str, str], seconds: dict[int, float], tmp_path: Path, moment: int
) -> None:
    workers = 1 + moment % 2
    out = tmp_path / "shards"
    child = start(folder, out, workers)
    time.sleep((moment + random.Random(moment).random()) / 8 * seconds[workers])
    kill(child, group=moment % 4 < 2)
    whole_or_absent(out, whole)
    finish(folder, out)
    assert contents(out) == whole


@pytest.mark.soak
def test_killed_again_and_again_in_one_folder(
    folder: Path, whole: dict[str, str], seconds: dict[int, float], tmp_path: Path
) -> None:
    out = tmp_path / "shards"
    draw = random.Random(7)
    for _ in range(5):
        child = start(folder, out, 1)
        time.sleep(draw.random() * seconds[1] / 3)
        kill(child, group=True)
        whole_or_absent(out, whole)
    finish(folder, out)
    assert contents(out) == whole


def test_killed_while_it_overwrites_another_set(
    folder: Path, whole: dict[str, str], seconds: dict[int, float], tmp_path: Path
) -> None:
    out = tmp_path / "shards"
    other = ShardSpec(max_clips=9, seed=3)
    run_build_shards(folder / "run", other, videos=folder / "videos", out=out)
    code = CODE.replace("ShardSpec(max_clips=4)", "ShardSpec(max_clips=4), overwrite=True")
    for share in (0.0, 0.3, 0.6):
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(folder), str(out), "1"],
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(share * seconds[1])
        kill(child, group=True)
        whole_or_absent(out, whole)
    finish(folder, out, overwrite=True)
    assert contents(out) == whole


@pytest.mark.soak
def test_killed_a_hundred_times_at_random_moments(
    folder: Path, whole: dict[str, str], seconds: dict[int, float], tmp_path: Path
) -> None:
    """Each kill ends a fresh run, with 1 or 2 workers, the group or the parent alone, anywhere on its way."""
    draw = random.Random(100)
    reached = Counter[str]()
    for number in range(100):
        out = tmp_path / str(number)
        workers = 1 + number % 2
        child = start(folder, out, workers)
        time.sleep(draw.random() * seconds[workers])
        kill(child, group=number % 4 < 2)
        whole_or_absent(out, whole)
        names = set(contents(out))
        steps = (
            "index.json",
            ".nv-meta/index.sqlite",
            "train-level1-000000.idx",
            "manifest.json",
            "index.parquet",
        )
        reached[next((step for step in steps if step in names), "tars")] += 1
        finish(folder, out)
        assert contents(out) == whole, f"kill {number}"
        shutil.rmtree(out)
    print(f"killed while the last thing there was: {dict(reached)}")


def test_orphaned_workers_stop_by_themselves(
    folder: Path, whole: dict[str, str], seconds: dict[int, float], tmp_path: Path
) -> None:
    out = tmp_path / "shards"
    child = start(folder, out, 2)
    time.sleep(seconds[2] / 2)
    kill(child, group=False)
    deadline = time.monotonic() + 60
    while _alive_in_session(child.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _alive_in_session(child.pid)
    finish(folder, out)
    assert contents(out) == whole


def _alive_in_session(session: int) -> list[int]:
    """Return the processes of a session, from /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[3]) == session:
            found.append(int(path.parent.name))
    return found


# Kills itself before the n-th file operation inside OUT (an audit hook sees each of them); n = 0 counts them.
AT_OPERATION = textwrap.dedent("""
import os, signal, sys
from pathlib import Path
from vidcurate.shards.reader_indexes import export as reader_indexes_export
from vidcurate.shards.layout import ShardSpec
from vidcurate.shards.build import run_build_shards
folder, out, stop = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
count = 0
def hook(event, args):
    global count
    if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"):
        if any(isinstance(a, (str, bytes)) and os.fsdecode(a).startswith(out) for a in args[:2]):
            count += 1
            if count == stop:
                os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
run_build_shards(folder / "run", ShardSpec(max_clips=20), overwrite=True, videos=folder / "videos",
                 out=Path(out))
reader_indexes_export.export(Path(out), reader_indexes_export.READERS)
print(count)
""")


def _at_operation(folder: Path, out: Path, operation: int) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", AT_OPERATION, str(folder), str(out), str(operation)],
        capture_output=True, text=True, timeout=1200,  # a busy machine; what hangs is killed all the same
    )  # fmt: skip


def _killed_before_operations(
    folder: Path, tmp_path: Path, number_of_moments: int | None, other_sets: tuple[bool, ...] = (False, True)
) -> None:
    spec, other = ShardSpec(max_clips=20), ShardSpec(max_clips=30)
    finish(folder, tmp_path / "expected", spec)
    expected = contents(tmp_path / "expected")
    for has_other_set in other_sets:
        out, begun = tmp_path / f"other{has_other_set}", tmp_path / f"begun{has_other_set}"
        if has_other_set:
            run_build_shards(folder / "run", other, videos=folder / "videos", out=begun)
            shutil.copytree(begun, out)
        total = int(_at_operation(folder, out, 0).stdout)
        assert total > 20
        moments = range(1, total + 1)
        for operation in moments if number_of_moments is None else moments[:: -(total // number_of_moments)]:
            out = tmp_path / f"{has_other_set}{operation}"
            if has_other_set:
                shutil.copytree(begun, out)
            assert _at_operation(folder, out, operation).returncode == -signal.SIGKILL
            if out.exists():
                index_path, manifest_path = out / "index.parquet", out / "manifest.json"
                if index_path.exists() or manifest_path.exists():
                    index.read_index(out)  # whatever is there fits together
            finish(folder, out, spec, overwrite=True)
            assert contents(out) == expected, f"killed before file operation {operation} of {total}"
            shutil.rmtree(out)
            print(f"killed before file operation {operation} of {total}, other set there: {has_other_set}")


def test_killed_before_single_file_operations(folder: Path, tmp_path: Path) -> None:
    _killed_before_operations(folder, tmp_path, 3, other_sets=(True,))


@pytest.mark.soak
def test_killed_before_every_file_operation(folder: Path, tmp_path: Path) -> None:
    _killed_before_operations(folder, tmp_path, None)
