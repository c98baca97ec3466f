"""What the server's command line takes and refuses, the presets, and runs by number."""

import os
import shlex
from pathlib import Path

import pytest

from tests.docs.test_documented import DOCS, console, squeezed
from tests.trainer.shards_for_tests import SMOKE, make_shards, smoke
from trainer.__main__ import main
from trainer.generation.server import checkpoints, command, presets
from trainer.generation.server.presets import Changes
from trainer.recipe import recipe as recipes
from trainer.report import gallery
from trainer.train import train
from vidcurate.errors import InputError
from vidcurate.media import decode, headers

COARSE = (  # an encoder so coarse that a published preset is a few thousand tokens
    "video_encoder={kind: space_to_depth, spatial: 8, temporal: 1}",
    "stages.0.steps=1",
    "stages.0.data.buckets.table={32px: {8: [1.0, 2]}}",
    "sample.steps=1",
    "sample.guidance=1",
    "sample.prompts=[a red square moves right]",
)


def _wanted(recipe: recipes.TrainRecipe, preset: str, changes: Changes, *, raw: bool) -> presets.Wanted:
    return presets.wanted(recipe.sample, recipe.video_encoder, preset, changes, raw=raw, name=recipe.name)


@pytest.mark.parametrize(
    ("preset", "size"),
    [("low4s", (102, 360, 640)), ("high4s", (102, 720, 1280)), ("low16s", (408, 360, 640))],
)
def test_the_presets_are_the_published_sizes(preset: str, size: tuple[int, int, int]) -> None:
    recipe = recipes.load(SMOKE)

    wanted = _wanted(recipe, preset, Changes(), raw=False)

    assert presets.size(preset) == size
    assert (wanted.spec.num_frames, wanted.spec.height, wanted.spec.width) == size
    assert wanted.name == preset
    assert wanted.spec.prompts == recipe.sample.prompts  # type: ignore[union-attr]


def test_without_a_sample_section_a_preset_is_as_published() -> None:
    recipe = recipes.load(SMOKE, ["sample=null"])

    spec = _wanted(recipe, "low4s", Changes(prompts=("x",)), raw=False).spec

    assert (spec.steps, spec.guidance, spec.fps, spec.seeds) == (30, 7.0, 24.0, (0,))
    with pytest.raises(InputError, match="--prompts FILE"):
        _wanted(recipe, "low4s", Changes(), raw=False)
    with pytest.raises(InputError, match="--preset low4s"):
        _wanted(recipe, presets.OWN, Changes(prompts=("x",)), raw=False)


def test_a_set_is_named_by_what_differs_from_the_recipes_own() -> None:
    recipe = recipes.load(SMOKE)

    def name(preset: str, raw: bool, **changes: object) -> str:
        return _wanted(recipe, preset, Changes(**changes), raw=raw).name  # type: ignore[arg-type]

    assert name("own", False) == ""
    assert name("own", False, prompts=recipe.sample.prompts) == ""  # type: ignore[union-attr]
    assert name("own", False, seeds=(9,)) == "own"
    assert name("own", True) == "own-raw"
    assert name("low4s", True) == "low4s-raw"


@pytest.mark.soak
def test_low4s_of_a_run_is_a_hundred_and_two_frames_of_360_by_640(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = make_shards(tmp_path / "shards", num_clips=6)
    train(smoke(shards, tmp_path / "run", *COARSE))

    assert main(["serve", "--once", "--preset", "low4s", "--no-validation", str(tmp_path / "run")]) == 0

    path = tmp_path / "run/samples/low4s/step-00000001/00-0.mp4"
    assert capsys.readouterr().out.startswith(f"{path.parent}  1 clip, ")
    header = headers.read_header_and_index(path)[0]
    assert (header.height, header.width) == (360, 640)
    assert decode.read_frames(path, [0, 101], height=360, width=640).shape == (2, 360, 640, 3)
    assert '"low4s"' in (tmp_path / "run/gallery.js").read_text()


def test_runs_are_found_by_the_number_that_their_names_begin_with(tmp_path: Path) -> None:
    for name in ("001-STDiT3-XL-2", "2", "003", "010-x", "10b-y", "notes"):
        (tmp_path / name).mkdir()
    numbers = tmp_path / "numbers.txt"
    numbers.write_text("3\n1\n")

    assert checkpoints.by_number("1,2", tmp_path) == [tmp_path / "001-STDiT3-XL-2", tmp_path / "2"]
    assert checkpoints.by_number(str(numbers), tmp_path) == [tmp_path / "003", tmp_path / "001-STDiT3-XL-2"]
    with pytest.raises(InputError, match=r"2 folders have it \(010-x, 10b-y\)"):
        checkpoints.by_number("10", tmp_path)
    with pytest.raises(InputError, match="no folder begins with it"):
        checkpoints.by_number("7", tmp_path)
    with pytest.raises(InputError, match="write numbers with commas"):
        checkpoints.by_number("one", tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "no run is named"),
        ("DIR/nowhere", "no such run folder"),
        (
            "DIR",
            "is no run folder (no events.jsonl and no step-… in it). Give the folder that `output` named",
        ),
        ("DIR --preset low8s", "the presets are own, low4s, high4s, low16s"),
        ("DIR --prompts DIR/none", "cannot be read"),
        ("DIR --prompts DIR/empty", "holds no prompt"),
        ("DIR --seeds 1,a", "write them as numbers"),
        ("DIR --seeds 1,1", "a seed is there twice"),
        ("DIR --steps 0", "1 is the least"),
        ("DIR --poll-seconds 0", "0.05 is the least"),
        ("DIR --poll-seconds nan", "0.05 is the least"),
        ("DIR --gpus x", "write their numbers with commas"),
        ("DIR --once --http :0", "Leave one of them out"),
        ("DIR --http nowhere", "write it as HOST:PORT"),
        ("DIR --http 0.0.0.0:0", "--token-file FILE"),
        ("DIR --http example.org:80", "--token-file FILE"),
        ("DIR --http :0 --token-file DIR/none", "cannot be read"),
        ("DIR --http :0 --token-file DIR/empty", "holds 0 characters"),
        ("--expnums 1 --runs-dir DIR/nowhere", "no such folder"),
    ],
)
def test_a_wrong_request_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "empty").write_text("\n")

    assert main(["serve", *words.replace("DIR", str(tmp_path)).split()]) == 2

    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_gpus_that_are_not_there_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # to be put back

    assert main(["serve", str(tmp_path), "--gpus", "99"]) == 2
    assert "there is no such GPU" in capsys.readouterr().err


def test_several_gpus_are_a_process_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: became.append(words))
    given = command._parser().parse_args(["run", "--gpus", "6,7"])

    command._choose_gpus(given, ["run", "--gpus", "6,7"])

    assert os.environ["CUDA_VISIBLE_DEVICES"] == "6,7"
    assert became[0][1:5] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    assert became[0][-5:] == ["trainer", "serve", "run", "--gpus", "6,7"]


def test_the_example_of_the_help_and_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = make_shards(tmp_path / "shards", num_clips=6)
    train(smoke(shards, tmp_path / "runs" / "first", "stages.0.steps=2", "stages.0.checkpoint_every=1"))
    monkeypatch.chdir(tmp_path)
    (example,) = [text.strip() for text in command.EXAMPLE.splitlines() if "--once" in text]
    assert example in command._parser().format_help()
    mains = {"trainer": main, "trainer.report.gallery": gallery.main}

    shown = console(DOCS / "serve.md")
    for line, answers in shown:
        _, _, module, *words = shlex.split(line)
        assert mains[module](words) == 0
        printed = squeezed(capsys.readouterr().out)
        assert [answer for answer in answers if squeezed(answer) not in printed] == []

    assert shown[0][0] == example


def test_every_flag_stands_on_the_page() -> None:
    page = (DOCS / "serve.md").read_text(encoding="utf-8")
    flags = {word for action in command._parser()._actions for word in action.option_strings}

    assert [flag for flag in sorted(flags) if flag not in page and flag not in ("-h", "--help")] == []
