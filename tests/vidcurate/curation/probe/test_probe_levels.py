"""The integrity ladder as a stage: levels, memory, policy, and files that fail for a reason of the disk."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from vidcurate.curation.clip_table import table
from vidcurate.curation.demo_data import damage
from vidcurate.curation.filter.spec import FilterSpec
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.probe import cache, findings
from vidcurate.curation.probe import stage as probe_stage
from vidcurate.curation.probe.examine import Task, examine
from vidcurate.curation.probe.findings import LEVELS, REJECTING
from vidcurate.curation.probe.stage import ProbeSettings, ProbeSpec, probe_file, run_probe
from vidcurate.errors import InputError, RecipeError
from vidcurate.media import packets
from vidcurate.recipe.recipe import parse

Make = Callable[..., Path]


def ingested(run: Path, names: list[str]) -> None:
    frame = pl.DataFrame(
        {
            "clip_id": names,
            "video_path": names,
            "start_seconds": [None] * len(names),
            "end_seconds": [None] * len(names),
            "width": [None] * len(names),
            "height": [None] * len(names),
            "fps": [None] * len(names),
            "num_frames": [None] * len(names),
            "duration_seconds": [None] * len(names),
            "file_size_bytes": [None] * len(names),
            "ingest_problem": [None] * len(names),
        },
        schema_overrides={"ingest_problem": pl.String},
    )
    table.write(frame, run / "ingest.parquet", table.Provenance(stage="ingest", settings={}, inputs={}))


def statuses(run: Path) -> dict[str, str]:
    rows = pl.read_parquet(run / "probe.parquet", columns=["clip_id", "probe_status"])
    return dict(rows.iter_rows())


@pytest.fixture
def videos(tmp_path: Path, make_video: Make) -> Path:
    """A good clip, one cut short, one with a zeroed block and one with flipped bytes behind its key frame."""
    folder = tmp_path / "videos"
    folder.mkdir()
    good = make_video("good.mp4", num_frames=48, gop=48, crf=10)
    data = good.read_bytes()
    (folder / "good.mp4").write_bytes(data)
    (folder / "cut.mp4").write_bytes(damage.truncate(damage.faststart(data), 0.8))
    (folder / "zeroed.mp4").write_bytes(damage.zero_block(data, size_bytes=400, within=(0.6, 1.0)))
    flipped = damage.flip_bytes(data, seed=3, count=12, within=(0.8, 1.0))
    (folder / "flipped.mp4").write_bytes(flipped)
    return folder


def test_each_level_finds_what_it_can_and_says_how_far_it_went(tmp_path: Path, videos: Path) -> None:
    names = ["good.mp4", "cut.mp4", "zeroed.mp4", "flipped.mp4"]
    ingested(tmp_path, names)
    found = {}

    for level in LEVELS:
        summary = run_probe(tmp_path, ProbeSpec(videos=videos, level=level))
        rows = table.scan(tmp_path, "probe").collect()
        found[level] = dict(rows.select("clip_id", "probe_status").iter_rows())
        reached = dict(rows.select("clip_id", "integrity_level").iter_rows())
        assert reached["good.mp4"] == level
        assert reached["cut.mp4"] == ("header" if level == "header" else "index")
        assert sum(summary.by_level.values()) == 4

    assert found["header"] == dict.fromkeys(names, "ok")
    assert found["index"] == {**found["header"], "cut.mp4": "truncated"}
    assert found["keyframes"] == {**found["index"], "zeroed.mp4": "damaged_packets"}
    assert found["full"] == {**found["keyframes"], "flipped.mp4": "damaged_frames"}
    good = rows.filter(pl.col("clip_id") == "good.mp4").row(0, named=True)
    assert good["num_frames_from_header"] == good["num_frames_from_index"] == good["num_frames_from_decode"]
    assert good["duration_seconds_from_decode"] == pytest.approx(good["duration_seconds_from_index"])
    assert (good["num_corrupt_frames"], good["num_damaged_packets"], good["probe_findings"]) == (0, 0, None)
    assert good["file_sha256"] == table.digest(videos / "good.mp4")
    flipped = rows.filter(pl.col("clip_id") == "flipped.mp4").row(0, named=True)
    assert flipped["num_corrupt_frames"] > 0
    summary = run_filter(tmp_path, FilterSpec())
    assert summary.by_rule == {"truncated": 1, "damaged_packets": 1, "damaged_frames": 1}


def spoil(path: Path) -> None:
    """Give the file other bytes of the same size and time: whoever reads the file now finds other facts."""
    facts = path.stat()
    path.write_bytes(b"x" * facts.st_size)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def test_what_is_known_of_a_file_is_not_read_again(tmp_path: Path, videos: Path) -> None:
    ingested(tmp_path, ["good.mp4", "cut.mp4", "zeroed.mp4"])
    first = run_probe(tmp_path, ProbeSpec(videos=videos))
    spoil(videos / "cut.mp4")

    # A higher level reads the two files that it does not know, not the one that is broken already.
    higher = run_probe(tmp_path, ProbeSpec(videos=videos, level="keyframes"))
    spoil(videos / "good.mp4")
    spoil(videos / "zeroed.mp4")
    again = run_probe(tmp_path, ProbeSpec(videos=videos, level="keyframes", time_limit_seconds=77))
    lower = run_probe(tmp_path, ProbeSpec(videos=videos, level="index"))

    assert (first.files_remembered, higher.files_remembered) == (0, 1)
    assert (again.files_remembered, again.up_to_date, lower.files_remembered) == (3, False, 3)
    assert statuses(tmp_path) == {
        "good.mp4": "ok",
        "cut.mp4": "truncated",
        "zeroed.mp4": "damaged_packets",  # what a higher level found is not forgotten at a lower one
    }
    (videos / "good.mp4").touch()
    assert run_probe(tmp_path, ProbeSpec(videos=videos)).files_remembered == 2
    assert statuses(tmp_path)["good.mp4"] == "unreadable"


def test_a_copied_file_is_recognised_by_its_content_in_another_run(tmp_path: Path, videos: Path) -> None:
    memory = tmp_path / "shared.parquet"
    for run in ("one", "two"):
        ingested(tmp_path / run, ["good.mp4"])
    run_probe(tmp_path / "one", ProbeSpec(videos=videos, level="full"), known_files=memory)
    (row,) = pl.read_parquet(memory).rows(named=True)
    assert row["size_bytes"] == (videos / "good.mp4").stat().st_size
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(videos / "good.mp4", other / "good.mp4")  # another time
    # A mark in what is remembered shows where the answer comes from.
    with cache.added_to(memory) as add:
        marked = {**json.loads(row["facts"]), "findings": {"trailing_bytes": "remembered."}}
        add((row["video_path"], row["size_bytes"], row["mtime_ns"]), marked)

    run_probe(tmp_path / "two", ProbeSpec(videos=other, level="full"), known_files=memory)

    rows = pl.read_parquet(tmp_path / "two" / "probe.parquet")
    assert row["sha256"] == rows["file_sha256"][0]
    assert rows["probe_findings"].to_list() == ["trailing_bytes"]
    assert not (tmp_path / "two" / cache.FILE).exists()
    assert pl.read_parquet(memory)["video_path"].n_unique() == pl.read_parquet(memory).height == 2


def test_another_policy_checks_anew_and_reads_nothing(tmp_path: Path, videos: Path) -> None:
    (videos / "tail.mp4").write_bytes(
        damage.garbage_tail((videos / "good.mp4").read_bytes(), seed=0, size_bytes=500)
    )
    ingested(tmp_path, ["good.mp4", "cut.mp4", "tail.mp4"])
    run_probe(tmp_path, ProbeSpec(videos=videos))
    assert statuses(tmp_path)["tail.mp4"] == "ok"
    for path in videos.iterdir():
        spoil(path)

    summary = run_probe(tmp_path, ProbeSpec(videos=videos, reject=(*REJECTING, "trailing_bytes")))

    assert summary.files_remembered == 3
    assert statuses(tmp_path) == {"good.mp4": "ok", "cut.mp4": "truncated", "tail.mp4": "trailing_bytes"}
    assert summary.by_finding == {"trailing_bytes": 1, "truncated": 1}


def test_a_file_that_is_no_memory_is_refused_by_name(tmp_path: Path, videos: Path) -> None:
    ingested(tmp_path, ["good.mp4"])
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "other.parquet")
    with pytest.raises(InputError, match=r"other\.parquet: not a file of known files; it has the columns a"):
        run_probe(tmp_path, ProbeSpec(videos=videos), known_files=tmp_path / "other.parquet")
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(InputError, match=r"text\.parquet: not a file of known files"):
        run_probe(tmp_path, ProbeSpec(videos=videos), known_files=tmp_path / "text.parquet")


def test_settings_that_do_not_exist_are_named() -> None:
    with pytest.raises(RecipeError, match=r"'rotten': unknown finding\. Findings: truncated, no_frames"):
        parse("reject: [rotten]", ProbeSettings, where="recipe.yaml")
    with pytest.raises(RecipeError, match="level"):
        parse("level: deep", ProbeSettings, where="recipe.yaml")
    with pytest.raises(RecipeError, match="time_limit_seconds"):
        parse("time_limit_seconds: 0", ProbeSettings, where="recipe.yaml")


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "folder.mp4").mkdir()

    for name in ("pipe.mp4", "folder.mp4"):
        row = probe_file(str(tmp_path / name), "full")
        assert row["probe_status"] == "unreadable"
        assert row["probe_problem"] == f"{name}: it is no regular file."


# A library in front of libc: reading fails or hangs for files that have a mark beside them.
_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
ssize_t read(int fd, void *buffer, size_t count) {
    static ssize_t (*real)(int, void *, size_t);
    if (!real) real = (ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    char link[64], path[4096], mark[4200];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length > 4 && !strncmp(path + length - 4, ".mp4", 4)) {
        path[length] = 0;
        snprintf(mark, sizeof mark, "%s.eio", path);
        if (!access(mark, F_OK)) { errno = EIO; return -1; }
        snprintf(mark, sizeof mark, "%s.hang", path);
        if (!access(mark, F_OK)) for (;;) pause();
    }
    return real(fd, buffer, count);
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None or sys.platform != "linux":
        pytest.skip("no gcc on Linux: a disk that refuses cannot be had here")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(_SHIM)
    library = folder / "shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, folder / "shim.c", "-ldl"], check=True)
    return library


def test_a_disk_that_refuses_or_hangs_is_never_held_against_the_file(
    tmp_path: Path, videos: Path, shim: Path
) -> None:
    for name in ("refused.mp4", "hanging.mp4"):
        shutil.copy(videos / "good.mp4", videos / name)
    names = ["good.mp4", "cut.mp4", "refused.mp4", "hanging.mp4"]
    ingested(tmp_path, names)
    (videos / "refused.mp4.eio").touch()
    (videos / "hanging.mp4.hang").touch()

    command = [sys.executable, "-m", "vidcurate", "probe", str(tmp_path), "--videos", str(videos)]
    subprocess.run(
        [*command, "--set", "time_limit_seconds=6", "--workers", "2", "--json"],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "LD_PRELOAD": str(shim)},
        check=True,
        timeout=600,
    )
    assert statuses(tmp_path) == {
        "good.mp4": "ok",
        "cut.mp4": "truncated",
        "refused.mp4": "io_error",
        "hanging.mp4": "timeout",
    }
    problem = dict(
        pl.read_parquet(tmp_path / "probe.parquet", columns=["clip_id", "probe_problem"]).iter_rows()
    )
    assert problem["refused.mp4"] == ("refused.mp4: cannot be read (Input/output error), in 4 tries.")
    assert problem["hanging.mp4"] == "hanging.mp4: reading it took longer than 6 s."
    for mark in ("refused.mp4.eio", "hanging.mp4.hang"):
        (videos / mark).unlink()

    # The disk answers again: only what it had refused is tried; the limit must be raised for the other.
    spec = ProbeSpec(videos=videos, time_limit_seconds=6)
    healed = run_probe(tmp_path, spec)
    assert (healed.up_to_date, healed.files_remembered) == (False, 3)
    assert statuses(tmp_path)["refused.mp4"] == "ok"
    assert statuses(tmp_path)["hanging.mp4"] == "timeout"
    assert run_probe(tmp_path, spec).up_to_date
    raised = run_probe(tmp_path, ProbeSpec(videos=videos, time_limit_seconds=60))
    assert raised.files_remembered == 3
    assert statuses(tmp_path)["hanging.mp4"] == "ok"


def test_a_file_that_grows_while_it_is_read_is_not_called_broken(
    tmp_path: Path, make_video: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "growing.mp4"
    shutil.copy(make_video("long.mp4", num_frames=120, height=240, width=320), path)
    index_of = packets.index_of

    def index_of_growing(*given: Any) -> Any:
        with path.open("ab") as file:  # in the middle of each try
            file.write(b"x")
        return index_of(*given)

    monkeypatch.setattr(packets, "index_of", index_of_growing)
    facts = examine(Task(path=str(path), level="full"))

    assert facts["failure"] == "io_error"
    assert facts["problem"] == "growing.mp4: it changed while it was read, in 4 tries."
    assert not findings.is_done(facts, "index", REJECTING, 60)


def test_the_hidden_damage_among_the_real_clips_is_found_by_name(shared: Path) -> None:
    clips = shared / "data" / "clips"

    assert probe_file(str(clips / "decord_corrupted.mp4"))["probe_status"] == "ok"
    corrupted = probe_file(str(clips / "decord_corrupted.mp4"), "keyframes")
    assert corrupted["probe_status"] == "damaged_packets"
    assert probe_file(str(clips / "bitflip_h264.mp4"), "keyframes")["probe_status"] == "ok"
    flipped = probe_file(str(clips / "bitflip_h264.mp4"), "full")
    assert (flipped["probe_status"], flipped["num_corrupt_frames"]) == ("damaged_frames", 1)
    assert probe_stage.columns_of(examine(Task(path=str(clips / "opencv_tree.avi"))))["num_frames"] == 68


def test_a_copy_in_another_folder_is_read_though_names_sizes_and_times_agree(
    tmp_path: Path, videos: Path
) -> None:
    memory = tmp_path / "shared.parquet"
    for run in ("one", "two"):
        ingested(tmp_path / run, ["good.mp4"])
    other = tmp_path / "other"
    shutil.copytree(videos, other)  # keeps the times
    spoil(other / "good.mp4")

    first = run_probe(tmp_path / "one", ProbeSpec(videos=videos, level="full"), known_files=memory)
    second = run_probe(tmp_path / "one", ProbeSpec(videos=other, level="full"), known_files=memory)
    elsewhere = run_probe(tmp_path / "two", ProbeSpec(videos=other), known_files=memory)
    back = run_probe(tmp_path / "one", ProbeSpec(videos=videos, level="full"), known_files=memory)

    assert (first.by_status, second.by_status) == ({"ok": 1}, {"unreadable": 1})
    assert (second.up_to_date, second.files_remembered) == (False, 0)
    assert elsewhere.by_status == {"unreadable": 1}
    assert (back.by_status, back.files_remembered) == ({"ok": 1}, 1)


def test_a_folder_is_the_same_place_by_any_path(
    tmp_path: Path, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingested(tmp_path, ["good.mp4"])
    (tmp_path / "link").symlink_to(videos)
    monkeypatch.chdir(tmp_path)
    run_probe(tmp_path, ProbeSpec(videos=videos))

    for path in (Path("videos"), Path("link"), videos / ".." / "videos"):
        assert run_probe(tmp_path, ProbeSpec(videos=path)).up_to_date
