from pathlib import Path

import pytest

from vidcurate.errors import InputError, StageError
from vidcurate.executor import map_clips
from vidcurate.executor.parts_folder import ExecutorSpec, Part, PartSummary, chunks_of_part, parse_part


def double(number: int) -> map_clips.Row:
    return {"value": 2 * number}


def crashed(number: int, loss: str) -> map_clips.Row:
    return {"value": -number}


def share(parts: Path, executor: ExecutorSpec, count: int = 23, **more):  # type: ignore[no-untyped-def]
    return map_clips.map_clips_in_parts(
        double, range(count), on_lost=crashed, executor=executor, chunk_size=3, parts=parts, **more
    )


def part(number: int, of: int) -> ExecutorSpec:
    return ExecutorSpec(part=Part(number=number, of=of))


@pytest.mark.parametrize("of", [1, 2, 3, 8, 50])
def test_parts_are_all_the_chunks_and_none_twice(of: int) -> None:
    shares = [chunks_of_part(17, Part(number=number, of=of)) for number in range(1, of + 1)]

    assert sorted(chunk for chunks in shares for chunk in chunks) == list(range(17))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_parts_in_any_order_merge_into_the_rows_in_order(tmp_path: Path) -> None:
    for number in (2, 3, 1):
        found = share(tmp_path / ".stage-1", part(number, 3))
        assert isinstance(found, PartSummary)
    assert found.parts_done == ("1/3", "2/3", "3/3")

    rows = list(share(tmp_path / ".stage-1", ExecutorSpec(merge=True)))

    assert rows == [{"value": 2 * number} for number in range(23)]


def test_a_part_that_is_run_again_does_only_what_is_missing(tmp_path: Path) -> None:
    share(tmp_path / ".stage-1", part(1, 2))
    (tmp_path / ".stage-1" / "000002.json").unlink()

    again = share(tmp_path / ".stage-1", part(1, 2))

    assert (again.clips, again.clips_done_before) == (12, 9)
    assert again.parts_missing == ("2/2",)


def test_a_merge_names_the_parts_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"no part is done \(23 of 23 clips are missing\)"):
        share(tmp_path / ".stage-1", ExecutorSpec(merge=True))
    assert not (tmp_path / ".stage-1").exists()
    for number in (1, 4):
        share(tmp_path / ".stage-1", part(number, 4))

    with pytest.raises(
        StageError, match=r"part 2/4, 3/4 is missing \(12 of 23 clips\)\..* --part 2/4 instead of --merge"
    ):
        share(tmp_path / ".stage-1", ExecutorSpec(merge=True))


def test_a_merge_names_parts_of_another_table(tmp_path: Path) -> None:
    for number in (1, 2):
        share(tmp_path / ".stage-1", part(number, 2))

    with pytest.raises(StageError, match=r"\.stage-1: these parts \(1/2, 2/2\) were made from another table"):
        share(tmp_path / ".stage-2", ExecutorSpec(merge=True))


def test_a_run_without_parts_takes_what_the_parts_left(tmp_path: Path) -> None:
    share(tmp_path / ".stage-1", part(1, 2))
    reported: list[int] = []

    rows = list(
        share(
            tmp_path / ".stage-1",
            ExecutorSpec(num_workers=2),
            progress=lambda done, *_: reported.append(done),
        )
    )

    assert reported[0] == 12
    assert len(rows) == 23


@pytest.mark.parametrize("text", ["3", "0/4", "5/4", "a/b", "1/", "-1/2", "1/2/3"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"write it as i/n"):
        parse_part(text)


def test_a_part_and_a_merge_at_once_are_refused() -> None:
    assert parse_part("3/8") == Part(number=3, of=8)
    with pytest.raises(InputError, match="--part and --merge"):
        ExecutorSpec(part=Part(number=1, of=2), merge=True)


def test_progress_tells_failures_and_hours_of_video_whatever_was_done_before(tmp_path: Path) -> None:
    reported: list[tuple[int, int, str]] = []
    settings = {
        "reason_of": lambda row: None if row["value"] % 8 else "a multiple of 8",
        "video_seconds": [3600.0] * 9,
    }
    share(tmp_path / ".stage-1", part(2, 3), count=9, **settings)

    share(
        tmp_path / ".stage-1",
        ExecutorSpec(),
        count=9,
        progress=lambda *words: reported.append(words),
        **settings,
    )

    assert [done for done, _, _ in reported] == [3, 6, 9]
    assert reported[0][2].startswith("clips (3.00 h of video, 0.0000 h/s, 1 failed")
    assert reported[-1][2].startswith("clips (9.00 h of video, ")
    assert reported[-1][2].endswith(" h/s, 3 failed)")
