"""Stages that stop when every clip fails for one reason."""

from pathlib import Path
from typing import Any

import pytest

from vidcurate.errors import VidcurateError
from vidcurate.executor import common_failure, map_clips
from vidcurate.executor.common_failure import CommonFailure
from vidcurate.executor.parts_folder import ExecutorSpec


def rows(*problems: str | None) -> list[dict[str, Any]]:
    return [{"problem": problem} for problem in problems]


def found(*problems: str | None) -> CommonFailure:
    reasons = CommonFailure(lambda row: row["problem"])
    reasons.add(rows(*problems))
    return reasons


@pytest.mark.parametrize(
    ("problems", "stops"),
    [
        ([f"{n}.mp4: packet {n} does not decode." for n in range(8)], True),
        (["a.mp4: holds no video stream."] * 7, False),  # too few
        ([*["a.mp4: holds no video stream."] * 8, None], False),
        ([None, *["a.mp4: holds no video stream."] * 8], False),
        ([*["a.mp4: holds no video stream."] * 8, "b.mp4: damaged."], False),
        ([""] * 8, False),  # facts of the files
        ([None] * 8, False),
    ],
)
def test_only_one_reason_for_all_clips_stops(problems: list[str | None], stops: bool) -> None:
    reasons = found(*problems)
    assert (reasons.error(len(problems), len(problems), "clips") is not None) is stops
    assert reasons.error(len(problems), 10_000, "clips") is None  # the stage has hardly begun
    assert reasons.failed == sum(problem is not None for problem in problems)


def test_a_long_stage_stops_early_and_leaves_no_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common_failure, "STOP_AFTER", 16)
    seen: list[int] = []

    def fails(number: int) -> map_clips.Row:
        seen.append(number)
        return {"problem": f"{number}.mp4: no decoder for av1."}

    with pytest.raises(
        VidcurateError, match=r"^the first 16 of 100 clips failed for one reason.*0\.mp4: no dec"
    ):
        map_clips.map_clips_in_parts(
            fails,
            range(100),
            on_lost=lambda number, loss: fails(number),
            executor=ExecutorSpec(),
            chunk_size=4,
            parts=tmp_path / "parts",
            reason_of=lambda row: row["problem"],
        )

    assert len(seen) == 16
    assert not (tmp_path / "parts").exists()
