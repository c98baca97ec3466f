"""A checkpoint that is damaged, cut or of another model is refused by name."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from trainer.run_folder import pointer
from trainer.run_folder.checkpoint import checkpoint, part_metadata
from trainer.run_folder.checkpoint import parts as dcp
from vidcurate.errors import CheckpointError, MissingError


def test_metadata_that_would_run_code_is_refused(run: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.write_text, (run / "harm", "done"))

    path = run / "step-00000100" / "model" / part_metadata.METADATA
    path.write_bytes(pickle.dumps(Harm()))

    with pytest.raises(CheckpointError, match=r"model/\.metadata: cannot be read \(it names"):
        dcp.read_part_tensors(run / "step-00000100" / "model")
    assert not (run / "harm").exists()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


DAMAGES = {
    "truncated": (
        lambda c: (c / "model" / "__0_0.distcp").write_bytes(b"short"),
        r"model/__0_0\.distcp: has 5 bytes",
    ),
    "altered": (
        lambda c: flip(c / "ema" / "__0_0.distcp"),
        r"ema/__0_0\.distcp: its SHA-256 is not the manifest's",
    ),
    "gone": (lambda c: (c / "optimizer/__0_0.distcp").unlink(), r"optimizer/__0_0\.distcp: is missing"),
    "half copied": (lambda c: (c / "manifest.json").unlink(), "is missing|names 'step-00000100'"),
    "no json": (lambda c: (c / "manifest.json").write_text("{"), r"manifest\.json: cannot be read"),
    "other json": (lambda c: (c / "manifest.json").write_text("[]"), r"manifest\.json: is not a JSON object"),
    "brackets": (lambda c: (c / "manifest.json").write_text("[" * 100_000), "cannot be read"),
    "brackets in the state": (lambda c: (c / "state.json").write_text("[" * 100_000), "state.json: "),
    "no files": (lambda c: edit(c / "manifest.json", files=None), "an entry of `files`"),
    "no entry": (lambda c: edit(c / "manifest.json", files={"model/.metadata": None}), "an entry of `files`"),
    "no size": (lambda c: edit(c / "manifest.json", files={"ema/a": {"sha256": ""}}), "an entry of `files`"),
    "outside": (
        lambda c: edit(c / "manifest.json", files={"model/../../../a": {"size_bytes": 1, "sha256": "0"}}),
        "an entry of `files`",
    ),
    "no versions": (lambda c: edit(c / "manifest.json", format=99, versions=None), "has format 99"),
    "newer": (
        lambda c: edit(c / "manifest.json", format=99, versions={"vidcurate": "9.0"}),
        "has format 99.*Upgrade vidcurate",
    ),
    "older": (lambda c: edit(c / "manifest.json", format=1), "has format 1.*reads format 2. Train it again"),
    "unlisted": (lambda c: edit(c / "manifest.json", files={}), r"does not list model/\.metadata"),
    "latest nowhere": (
        lambda c: (c.parent / "LATEST").write_text("step-00000999"),
        "names 'step-00000999'.*Name a checkpoint instead, such as .*step-00000100",
    ),
    "latest outside": (
        lambda c: (c.parent / "LATEST").write_text("../elsewhere"),
        "not a complete checkpoint",
    ),
    "latest gone": (
        lambda c: (
            (c.parent / "LATEST").unlink(),
            shutil.copytree(c, c.with_name("step-00000200")),
        ),
        "LATEST: is missing, but step-00000200",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_name(run: Path, damage: str) -> None:
    harm, said = DAMAGES[damage]
    harm(run / "step-00000100")

    with pytest.raises(CheckpointError, match=said) as caught:
        checkpoint.load(run)
    assert "\n" not in str(caught.value)


def test_a_path_that_is_no_checkpoint_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such checkpoint or run folder"):
        checkpoint.load(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"no manifest\.json in it: half copied"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"a": torch.zeros(2)}, "lacks b"),
        ({"a": torch.zeros(2), "b": torch.zeros(1), "c": torch.zeros(1)}, "has unknown c"),
        ({"a": torch.zeros(2), "B": torch.zeros(1)}, "lacks b and has unknown B"),
        ({"a": torch.zeros(3), "b": torch.zeros(1)}, r"a is float32 \[3\]; the model has float32 \[2\]"),
        ({"a": torch.zeros(2), "b": torch.zeros(1).double()}, "b is float64"),
    ],
)
def test_a_renamed_missing_or_reshaped_key_is_refused_and_nothing_is_copied(
    given: dict[str, torch.Tensor], said: str
) -> None:
    wanted = {"a": torch.ones(2), "b": torch.ones(1)}

    with pytest.raises(CheckpointError, match=said):
        dcp.copy_into(wanted, given, "model")
    assert torch.equal(wanted["a"], torch.ones(2))


def test_many_missing_keys_are_counted() -> None:
    wanted = {f"k{number}": torch.ones(1) for number in range(9)}

    with pytest.raises(CheckpointError, match="lacks k0, k1, k2 and 6 more"):
        dcp.copy_into(wanted, {}, "model")


def test_a_state_with_one_other_byte_is_refused_by_every_reader(run: Path) -> None:
    path = run / "step-00000100/state.json"
    path.write_text(path.read_text().replace('"step"', '"stop"', 1))

    with pytest.raises(CheckpointError, match=r"state\.json: its SHA-256 is not the manifest's"):
        checkpoint.read_state(path.parent)


@pytest.mark.parametrize("data", [b"step-000001\xff0\n", b"[" * 100_000, b""])
def test_a_damaged_pointer_is_one_short_line_that_names_a_checkpoint(run: Path, data: bytes) -> None:
    (run / pointer.LATEST).write_bytes(data)

    with pytest.raises(
        CheckpointError, match=r"Name a checkpoint instead, such as .*/step-00000100; "
    ) as caught:
        pointer.latest(run)
    assert len(str(caught.value)) < 600


def test_no_flipped_bit_of_a_manifest_makes_it_one_of_another_version(run: Path) -> None:
    manifest = run / "step-00000100" / "manifest.json"
    data = manifest.read_bytes()
    found: list[type[CheckpointError]] = []
    for place in range(8 * len(data)):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        manifest.write_bytes(changed)
        try:
            checkpoint.listed_files(manifest.parent)
        except CheckpointError as error:
            found.append(type(error))
    assert set(found) == {CheckpointError}  # never that of another version, which ends a run
    assert len(found) > len(data)


@pytest.mark.parametrize("part", ["model", "ema", "optimizer"])
def test_tensors_in_a_file_that_the_manifest_does_not_list_are_refused(run: Path, part: str) -> None:
    manifest = run / "step-00000100" / "manifest.json"
    files = json.loads(manifest.read_text())["files"]
    del files[f"{part}/__0_0.distcp"]
    edit(manifest, files=files)
    flip(manifest.parent / part / "__0_0.distcp")

    with pytest.raises(CheckpointError, match=rf"manifest\.json: does not list {part}/__0_0\.distcp"):
        checkpoint.read_part(manifest.parent, part)
    with pytest.raises(CheckpointError, match="does not list"):
        checkpoint.verify(manifest.parent)
