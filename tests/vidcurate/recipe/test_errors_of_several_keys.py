"""Settings of the real recipes that do not fit together: one line with the keys and the options."""

import re
from pathlib import Path

import pytest

from tests.test_bad_input import call
from tests.trainer.shards_for_tests import TINY
from trainer import __main__ as trainer_main
from vidcurate.curation.filter.spec import as_limit

DEMO = Path(__file__).resolve().parents[3] / "recipes" / "curate-demo.yaml"
OPTIM, DATA = "stages.0.optim", "stages.0.data"

# What is set beside tests/tiny.yaml, and the keys that do not fit together.
TRAINING = [
    (["model.num_heads=5"], "hidden_size num_heads"),
    (["model.hidden_size=32", "model.num_heads=32"], "hidden_size num_heads"),
    (["model.skip_y_embedder=true"], "skip_y_embedder freeze_y_embedder"),
    (["precision=float8", "blocks=eager"], "precision blocks"),
    (["sample.height=31"], "height width"),
    (["stages.0.epochs=2"], "steps epochs"),
    (["stages.0.routing={pairs: [0, 3]}", "model.depth=2"], "pairs depth"),
    ([f"{OPTIM}.schedule=cosine", f"{OPTIM}.min_lr=1.0"], "min_lr lr"),
    ([f"{OPTIM}.schedule=constant", f"{OPTIM}.min_lr=1e-6"], "min_lr constant"),
    ([f"{OPTIM}.schedule=bump"], "max_lr warmup_steps cooldown_steps"),
    ([f"{OPTIM}.schedule=bump", f"{OPTIM}.max_lr=1e-9", f"{OPTIM}.cooldown_steps=1"], "min_lr lr max_lr"),
    ([f"{OPTIM}.schedule=cosine", f"{OPTIM}.max_lr=1.0"], "max_lr cooldown_steps schedule"),
    ([f"{DATA}.captions_from={{5: {{short: 1}}}}"], "captions_from captions"),
    ([f"{DATA}.shards=null"], "shards latents"),
    ([f"{DATA}.latents=nowhere"], "latents views"),
    ([f"{DATA}.views=1", f"{DATA}.flip=0.5"], "flip views"),
    ([f"{DATA}.levels=[1]", f"{DATA}.curriculum=[{{levels: [1]}}]"], "curriculum levels weights"),
    ([f"{DATA}.curriculum=[{{levels: [1], sources: [a]}}]"], "levels sources weights"),
    ([f"{DATA}.curriculum=[{{levels: [1], steps: 3, epochs: 1}}]"], "steps epochs"),
    ([f"{DATA}.curriculum=[{{levels: [1], steps: 3, ramp_steps: 9}}]"], "ramp_steps steps"),
    ([f"{DATA}.cells_by=source", f"{DATA}.curriculum=[{{levels: [1]}}]"], "curriculum cells_by"),
    ([f"{DATA}.buckets.published=true", f"{DATA}.buckets.fps=8"], "published fps"),
    ([f"{DATA}.buckets.table.32px.8=[1.0, auto]"], "table cost_table micro_batch_seconds"),
]
# The command, what is set, and the keys that do not fit together.
CURATION = [
    (["curate", DEMO], ["filter.limits.height.min=9", "filter.limits.height.max=3"], "height min max"),
    (["curate", DEMO], ["filter.limits.short_side.allowed=[a]"], "short_side min max allowed forbidden"),
    (["curate", DEMO], ["filter.outliers=[{column: noun_count, method: iqr, value: -1}]"], "method value"),
    (["curate", DEMO], ["filter.outliers=[{column: noun_count, value: 0.7}]"], "method value"),
    (["curate", DEMO], ["filter.outliers=[{column: words, method: absolute, side: both}]"], "method side"),
    (["curate", DEMO], ["models.embeddings=true"], "embeddings clip"),
    (
        ["curate", DEMO],
        ["split.buckets={table: {144p: {51: [1.0, auto]}}}"],
        "cost_table micro_batch_seconds",
    ),
    (["filter", "run"], ["min_height=9", "max_height=3"], "height min max"),
    (["filter", "run"], ["limits.words={min: 1, forbidden: [a]}"], "words min max allowed forbidden"),
    (["score-models", "run"], ["aesthetic_head=head.pth"], "aesthetic_head clip"),
    (
        ["split-by-difficulty", "run"],
        ["buckets={published: true, fps: 8, table: {144p: {51: [1.0, 1]}}}"],
        "published fps",
    ),
    (
        ["split-scenes", "videos", "--out", "cuts.csv"],
        ["max_seconds=1", "min_seconds=5"],
        "max_seconds min_seconds",
    ),
]


def check(said: str, settings: list[str], keys: str) -> None:
    """Check that one line names each option, and each key beside the options that it repeats."""
    (line,) = said.splitlines()
    assert line.startswith("error: "), line
    words = line
    for setting in settings:
        assert f"--set {setting[:70]}" in line, line
        words = words.replace(setting, "")
    for key in keys.split():
        assert re.search(rf"(?<![A-Za-z_]){key}(?![A-Za-z_])", words), f"{key} is not in: {line}"


def words_of(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@pytest.mark.parametrize(("settings", "keys"), TRAINING)
def test_settings_of_a_training_that_do_not_fit_are_named_with_their_options(
    capsys: pytest.CaptureFixture[str], settings: list[str], keys: str
) -> None:
    code = trainer_main.main([str(TINY), "--dry-run", *words_of(settings)])

    assert code == 2
    check(capsys.readouterr().err, settings, keys)


def test_of_many_options_those_that_do_not_fit_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    others = ["name=a", "seed=1", "ema_decay=0.5", "loader.num_workers=0"]
    code = trainer_main.main([str(TINY), "--dry-run", *words_of([*others, "precision=float8"])])

    assert code == 2
    check(capsys.readouterr().err, ["precision=float8"], "precision blocks")


@pytest.mark.parametrize(("command", "settings", "keys"), CURATION)
def test_settings_of_a_curation_that_do_not_fit_are_named_with_their_options(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str | Path],
    settings: list[str],
    keys: str,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert call(*command, *words_of(settings)) == 2
    shown = (
        [*map(as_limit, settings)] if command[0] == "filter" else settings
    )  # min_height is limits.height.min
    check(capsys.readouterr().err, shown, keys)
    assert not list(tmp_path.iterdir())
