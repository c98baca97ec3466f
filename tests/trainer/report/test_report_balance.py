"""Predicted against actual time, from lines as a run writes them."""

from pathlib import Path
from typing import Any

import pytest

from trainer.report import command as report_command
from trainer.report.balance import balance, new_costs, to_text
from trainer.report.read import read_run
from trainer.run_folder import jsonl, metrics
from vidcurate.errors import InputError

BUCKETS = ("144p-51f-0.56", "240p-102f-0.56", "256-1f-0.57")
COSTS = {BUCKETS[0]: 0.3, BUCKETS[1]: 0.5, BUCKETS[2]: 0.2}
TOOK = {BUCKETS[0]: 0.33, BUCKETS[1]: 0.55, BUCKETS[2]: 0.44}  # 1.1 times as long, the images twice that


def line(step: int, pairs: list[tuple[str, str]], seconds: dict[str, float] = TOOK) -> dict[str, Any]:
    """Return the line of a step in which each rank runs two micro-batches of four clips."""
    own = [[sum(each[name] for name in pair) for each in (COSTS, seconds)] for pair in pairs]
    buckets: dict[str, list[float]] = {}
    for name in (name for pair in pairs for name in pair):
        row = buckets.setdefault(name, [0, 0, 0.0, 0.0])
        buckets[name] = [row[0] + 1, row[1] + 4, row[2] + COSTS[name], row[3] + seconds[name]]
    found: dict[str, Any] = {"step": step, "stage": "one", "time": 100.0 + step, "loss": 1.0, "seconds": 1.0}
    found |= {"data_seconds": 0.0, "cost_unit": "s", "bucket_seconds": buckets}
    if len(own) > 1:
        columns = list(zip(*own, strict=True))
        predicted, measured = ([sum(column) / len(own), max(column)] for column in columns)
        found["rank_balance"] = {
            "ranks": len(own), "predicted": predicted, "measured": measured, "of_ranks": own
        }  # fmt: skip
    return found


START = {"event": "start", "step": 0, "time": 99.0, "process_began": 90.0}
EVEN = [(BUCKETS[0], BUCKETS[1]), (BUCKETS[0], BUCKETS[1])]
UNEVEN = [(BUCKETS[1], BUCKETS[2]), (BUCKETS[0], BUCKETS[0])]  # 0.7 and 0.6 s by the costs


def test_a_bucket_whose_cost_is_wrong_stands_out_and_one_factor_for_all_does_not() -> None:
    slow = {name: 10.0 for name in BUCKETS}  # the first updates after a start do not count
    lines = [line(step, UNEVEN, slow) for step in (1, 2, 3)]
    lines += [line(step, UNEVEN if step % 2 else EVEN) for step in range(4, 44)]

    found = balance(lines, [START])

    assert found is not None
    assert (found.steps, found.ranks, found.unit) == (40, 2, "s")
    assert found.waste_predicted == pytest.approx(1 - (0.8 + 0.65) / (0.8 + 0.7))
    assert found.waste_measured == pytest.approx(1 - (0.88 + 0.825) / (0.88 + 0.99))
    factors = {one.bucket: one.factor for one in found.of_buckets}
    assert factors == pytest.approx({BUCKETS[0]: 1.1, BUCKETS[1]: 1.1, BUCKETS[2]: 2.2})
    assert [one.bucket for one in found.wrong] == [BUCKETS[2]]
    assert sum(one.predicted for one in found.of_ranks) == pytest.approx(1)
    assert found.of_ranks[0].measured > found.of_ranks[0].predicted
    assert found.correlation is not None
    assert 0 < found.correlation < 1
    words = to_text(found)
    assert words[0].startswith("2 ranks: waiting for the slowest takes 8.8% of their time, 3.3% by the costs")
    assert "256-1f-0.57" in words[1]


def test_one_rank_and_equal_costs_have_factors_and_no_balance() -> None:
    alone = balance([line(step, [(BUCKETS[0], BUCKETS[1])]) for step in range(1, 9)], [START])
    assert alone is not None
    assert (alone.waste_measured, alone.correlation, alone.of_ranks, alone.wrong) == (None, None, (), ())
    even = balance([line(step, EVEN) for step in range(1, 9)], [START])
    assert even is not None
    assert even.waste_predicted == pytest.approx(0)
    assert even.correlation is None


def test_a_run_that_continued_with_other_ranks_counts_from_there() -> None:
    lines = [line(step, UNEVEN) for step in range(1, 11)] + [
        line(step, [*EVEN, *EVEN]) for step in range(11, 19)
    ]
    found = balance(lines, [START, {"event": "resume", "step": 10, "time": 105.0}])
    assert found is not None
    assert (found.steps, found.ranks) == (5, 4)


def test_a_run_without_measured_micro_batches_has_no_section_and_no_cost_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jsonl.append_line(tmp_path / jsonl.EVENTS, START)
    old = {key: value for key, value in line(9, EVEN).items() if key not in ("cost_unit", "bucket_seconds")}
    jsonl.append_line(tmp_path / metrics.METRICS, old)
    jsonl.append_line(tmp_path / metrics.METRICS, line(2, EVEN))
    assert balance(*(read_run(tmp_path).lines, read_run(tmp_path).events)) is None
    with pytest.raises(InputError, match="train a few more"):
        new_costs(read_run(tmp_path))
    assert report_command.main([str(tmp_path)]) == 0
    assert 'id="ranks"' not in (tmp_path / report_command.PAGE).read_text()
    words = [str(tmp_path), str(tmp_path), "--out", str(tmp_path / "a.html"), "--cost-table", "costs.json"]
    assert report_command.main(words) == 2
    assert "that of one run" in capsys.readouterr().err
