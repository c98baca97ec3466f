"""Beside what ranks should take by the costs stands what they took; wrong costs are seen and made anew."""

import json
from pathlib import Path

import pytest

from tests.forked_runs import Forks
from tests.trainer.shards_for_tests import command_words, make_shards, smoke
from trainer.data import stages as data_stages
from trainer.report import command as report_command
from trainer.report.preview import dry_run
from trainer.run_folder import metrics
from trainer.training import step_balance
from vidcurate.sampler import cost_table

STEPS = 14
FIXED = 0.001
# A clip of 8 frames is said to cost a two-hundredth of one of 4: whoever believes it lets a rank wait.
WRONG = {"32px": {"8": 0.001, "4": 0.2, "2": 0.5}}
SETTINGS = (
    f"stages.0.steps={STEPS}",
    "stages.0.data.micro_batches_per_step=4",
    "stages.0.data.buckets.table={32px: {8: [[1.0, 0.5], 2], 4: [1.0, 2]}}",
    "stages.0.checkpoint_every=100",
    "loader.num_workers=0",
    "sample=null",
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with shards and a wrong cost table."""
    home = tmp_path_factory.mktemp("balanced")
    make_shards(home / "shards")
    table = {"measured_on": "nothing", "seconds_per_micro_batch": FIXED, "seconds_per_clip": WRONG}
    (home / "costs.json").write_text(json.dumps(table))
    return home


def settings(home: Path) -> tuple[str, ...]:
    return (*SETTINGS, f"stages.0.data.buckets.cost_table={home / 'costs.json'}")


@pytest.fixture(scope="module")
def run(home: Path, forks: Forks) -> Path:
    """A run of two ranks that believes it."""
    words = command_words(home / "shards", home / "run", *settings(home))
    forks.start(words, ranks=2).succeed()
    return home / "run"


def test_a_line_has_of_each_rank_and_bucket_what_the_plan_predicts_and_what_it_took(
    home: Path, run: Path
) -> None:
    (stage,) = data_stages.open_stages(smoke(home / "shards", run, *settings(home)))
    lines = metrics.read_metrics(run / metrics.METRICS)
    assert len(lines) == STEPS
    for number, line in enumerate(lines):
        assert line["cost_unit"] == "s"
        predicted = step_balance.predict(stage, number, 2)
        found = line["rank_balance"]
        assert [cost for cost, _ in found["of_ranks"]] == pytest.approx(predicted.of_ranks)
        assert found["predicted"] == pytest.approx([sum(predicted.of_ranks) / 2, max(predicted.of_ranks)])
        took = [seconds for _, seconds in found["of_ranks"]]
        assert found["measured"] == pytest.approx([sum(took) / 2, max(took)], rel=1e-4)
        assert found["measured"][1] == pytest.approx(line["rank_seconds"]["compute"][2], abs=1e-5)
        buckets = line["bucket_seconds"]
        assert sum(row[0] for row in buckets.values()) == 4
        assert sum(row[1] for row in buckets.values()) == line["clips"]
        assert sum(row[2] for row in buckets.values()) == pytest.approx(sum(predicted.of_ranks))
        # Nothing but micro-batches is in a rank's own seconds.
        assert sum(row[3] for row in buckets.values()) == pytest.approx(sum(took), rel=1e-4)
        for name, (batches, clips, predicted, seconds) in buckets.items():
            assert predicted == pytest.approx(
                batches * FIXED + clips * WRONG["32px"][name.split("-")[1][:-1]]
            )
            assert seconds > 0


def test_the_report_sees_the_wrong_costs_and_writes_right_ones(
    home: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = home / "measured.json"
    assert report_command.main([str(run), "--cost-table", str(new)]) == 0

    said = capsys.readouterr().out
    assert "2 ranks: waiting for the slowest takes" in said
    assert "is wrong by a factor of" in said
    page = (run / report_command.PAGE).read_text()
    assert '<section id="ranks">' in page
    assert "its cost is wrong" in page
    assert "--cost-table costs.json" in page
    table = cost_table.read_cost_table(new)
    assert table.measured_on == f"the run tiny, steps 4 to {STEPS}"
    assert table.seconds_per_micro_batch == FIXED
    assert set(table.seconds_per_clip["32px"]) == {"8", "4", "2"}
    assert table.seconds_per_clip["32px"]["2"] == WRONG["32px"]["2"]  # not read, so not measured
    # A clip of four frames costs no hundred times one of eight.
    assert table.seconds_per_clip["32px"]["4"] < 100 * table.seconds_per_clip["32px"]["8"]
    assert report_command.main([str(run), "--json"]) == 0
    (reported,) = json.loads(capsys.readouterr().out)["runs"]
    assert reported["balance"]["steps"] == STEPS - 3
    assert sum(one["predicted"] for one in reported["balance"]["of_ranks"]) == pytest.approx(1, rel=1e-3)
    assert sum(one["measured"] for one in reported["balance"]["of_ranks"]) == pytest.approx(1, rel=1e-3)


def test_before_a_run_the_seconds_of_the_table_are_reported(home: Path, run: Path) -> None:
    recipe = smoke(home / "shards", run, *settings(home))
    (stage,) = data_stages.open_stages(recipe)
    predicted = [step_balance.predict(stage, number, 2) for number in range(STEPS)]
    mean = sum(sum(each.of_ranks) / 2 for each in predicted) / STEPS

    reported = dry_run.dry_run(recipe)
    assert reported["stages"][0]["compute_seconds_per_step"] == pytest.approx(2 * mean)
    assert "by the cost table a step's micro-batches take" in dry_run.to_text(reported)
