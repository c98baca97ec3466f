"""A checkpoint that is half copied, damaged or deleted while it is read is left alone."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.generation.server.served_runs import serve, served
from tests.trainer.generation.server.test_serve_endpoint import ask
from trainer.__main__ import main
from trainer.distributed.mesh import ALONE
from trainer.generation.server import checkpoints, follow
from trainer.generation.server.generate import Generator
from trainer.generation.server.http_server import Endpoint
from trainer.generation.server.presets import Changes
from trainer.generation.server.request import Limits
from trainer.generation.server.weights import Model
from trainer.run_folder.checkpoint import checkpoint, parts
from vidcurate.storage.checksum import sha256_file


def _without(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def _altered(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize("damage", [_without, _cut, _altered])
@pytest.mark.parametrize("name", ["ema/__0_0.distcp", "state.json"])
def test_a_half_copied_checkpoint_is_left_alone_and_looked_at_again(
    run: Path, capsys: pytest.CaptureFixture[str], damage: Any, name: str
) -> None:
    shutil.rmtree(run / "samples")
    path = run / "step-00000004" / name
    whole = path.read_bytes()
    damage(path)

    assert [line["step"] for line in serve(capsys, run)] == [2]

    assert served(run, "left_alone") == [4]
    path.write_bytes(whole)
    assert [line["step"] for line in serve(capsys, run)] == [4]


def test_a_manifest_that_is_not_whole_is_left_alone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "step-00000004/manifest.json"
    path.write_text(path.read_text()[:50])

    assert [line["step"] for line in serve(capsys, run)] == [2]
    assert served(run, "left_alone") == [4]


def test_damage_beside_the_parts_that_are_needed_is_none(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "step-00000002/model")

    assert [line["step"] for line in serve(capsys, run)] == [2]
    assert serve(capsys, run, "--raw", "--no-validation")[0]["step"] == 4
    assert served(run, "left_alone") == [2]


def test_a_checkpoint_that_is_deleted_while_it_is_read_is_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(run / "samples")
    read = parts.read_part_tensors

    def and_gone(folder: Path) -> Any:  # as keep_last does it, at the worst moment
        if folder.parent.name == "step-00000004":
            (folder.parent / "manifest.json").unlink()
            shutil.rmtree(folder.parent)
        return read(folder)

    monkeypatch.setattr(parts, "read_part_tensors", and_gone)

    assert main(["serve", "--once", str(run)]) == 0
    printed = capsys.readouterr()
    assert printed.err.count("deleted during reading") == 1
    assert served(run) == [2]


def test_every_waiting_checkpoint_is_hashed_once_until_it_changes(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = checkpoints.Waiting()
    path = run / "step-00000004"

    assert waiting.leave(path, "has 5 bytes; the manifest says 9 bytes")
    assert waiting.is_left(path)
    assert not waiting.leave(path, "has 7 bytes; the manifest says 9 bytes")
    (path / "ema" / "more").write_bytes(b"x")
    assert not waiting.is_left(path)


@pytest.mark.parametrize(
    "forge",
    [
        lambda state: state["recipe"].update(of_the_future=1),
        lambda state: state.update(recipe=None),
        lambda state: state.pop("stage_number"),
        lambda state: state.update(stage_number="x"),
        lambda state: state.update(stage_number=-1),
    ],
    ids=["unknown key", "no recipe", "no stage", "a stage of letters", "a stage below 0"],
)
def test_a_checkpoint_of_an_unknown_recipe_or_stage_is_left_alone(
    run: Path, capsys: pytest.CaptureFixture[str], forge: Callable[[dict[str, Any]], object]
) -> None:
    path = run / "step-00000004"
    shutil.rmtree(run / "samples")  # else step 4 is sampled already
    state = checkpoint.read_state(path)
    forge(state)
    (path / "state.json").write_text(json.dumps(state))
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["state.json"] = checkpoint._facts(path / "state.json", sha256_file(path / "state.json"))
    (path / "manifest.json").write_text(json.dumps(manifest))

    assert [line["step"] for line in serve(capsys, run)] == [2]
    assert served(run, "left_alone") == [4]


def test_a_request_takes_the_newest_that_the_server_has_not_left_alone(run: Path) -> None:
    _altered(run / "step-00000004" / "ema" / "__0_0.distcp")
    service = follow.Service(runs=(run,), presets=("own",), changes=Changes(seeds=(5,)), once=True)
    with follow.held(service, ALONE), follow.Server(service, ALONE, Model(ALONE)) as server:
        generator = Generator(server, Limits())
        assert generator.prepare({"prompt": "x"})["checkpoint"] == "step-00000004"  # not yet looked at
        server.act(lambda line: None)
        assert generator.prepare({"prompt": "x"})["checkpoint"] == "step-00000002"


def test_a_run_of_any_name_is_a_line_of_metrics(run: Path) -> None:
    named = run.rename(run.parent / 'a"b\\c\nd \udcff{e')
    service = follow.Service(runs=(named,), presets=("own",), changes=Changes())
    server = follow.Server(service, ALONE, Model(ALONE))
    server.standing.newest[named] = 4
    generator = Generator(server, Limits())
    with Endpoint(
        ("127.0.0.1", 0), Limits(), None, generator, generator.facts, generator.gauges, generator.prepare
    ) as endpoint:
        metrics, health = (ask(endpoint.port, "GET", path) for path in ("/metrics", "/health"))
    assert (metrics.code, health.code) == (200, 200)
    lines = metrics.body.decode().splitlines()
    assert r'vidcurate_serve_newest_step{run="a\"b\\c\nd ?{e"} 4' in lines
    assert json.loads(health.body)["runs"] == [str(named)]
