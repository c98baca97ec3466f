"""A checkpoint from anybody runs no code and reads nothing outside its folder."""

import enum
import hashlib
import importlib
import io
import json
import pickle
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from trainer.__main__ import main
from trainer.run_folder.checkpoint import checkpoint, part_metadata, parts
from vidcurate.errors import CheckpointError

FILESYSTEM = "torch.distributed.checkpoint.filesystem"
METADATA = "torch.distributed.checkpoint.metadata"


@pytest.fixture
def part(tmp_path: Path) -> Path:
    weights = {"layer.weight": torch.ones(2, 3), "layer.bias": torch.arange(3.0)}
    state = {"step": 1, "recipe": {"model": {}}}
    checkpoint.save(tmp_path / "run", 1, {"model": weights, "ema": weights, "optimizer": {}}, state)
    return tmp_path / "run/step-00000001/model"


def word(text: str) -> bytes:
    data = text.encode()
    return b"\x8c" + struct.pack("<B", len(data)) + data


def calls(module: str, name: str, argument: str) -> bytes:
    """Return a pickle of protocol 4 that calls `module`.`name` with one string; `name` may have dots."""
    return b"\x80\x04" + word(module) + word(name) + b"\x93" + word(argument) + b"\x85R."


def calls_by_protocol_0(module: str, name: str, argument: str) -> bytes:
    return f"c{module}\n{name}\n(V{argument}\ntR.".encode()


# What is called, with the name of a file that it would make.
CALLS = [
    (FILESYSTEM, "os.system", "touch {}"),
    (FILESYSTEM, "io.open", "{}"),
    (FILESYSTEM, "Path.mkdir", "{}"),
    (FILESYSTEM, "pickle.loads", "{}"),
    (METADATA, "os.mkdir", "{}"),
    (METADATA, "os.system", "touch {}"),
    (METADATA, "torch.hub.os.system", "touch {}"),
    (METADATA, "torch.load", "{}"),
    ("torch", "hub.os.mkdir", "{}"),
    ("torch", "load", "{}"),
    ("torch", "Tensor", "{}"),
    ("torch.serialization", "load", "{}"),
    ("torch.serialization", "os.mkdir", "{}"),
    ("pathlib", "PosixPath.mkdir", "{}"),
    ("pathlib", "os.mkdir", "{}"),
    ("os", "mkdir", "{}"),
    ("posix", "mkdir", "{}"),
    ("builtins", "eval", "__import__('os').mkdir('{}')"),
    ("builtins", "exec", "__import__('os').mkdir('{}')"),
    ("subprocess", "getoutput", "touch {}"),
    ("importlib", "import_module", "{}"),
    ("_codecs", "encode", "{}"),
]


class _OfPython3112(pickle.Pickler):
    """Pickles enum members as Python 3.11.0 to 3.11.3 do: by getattr."""

    def reducer_override(self, obj: object) -> Any:
        return (getattr, (type(obj), obj.name)) if isinstance(obj, enum.Enum) else NotImplemented


def test_a_checkpoint_of_any_supported_python_is_read(part: Path) -> None:
    metadata = pickle.loads((part / ".metadata").read_bytes())
    metadata = replace(metadata, storage_meta=StorageMeta(checkpoint_id=Path("elsewhere")))
    written = io.BytesIO()
    _OfPython3112(written, protocol=4).dump(metadata)
    of_3_13 = pickle.dumps(metadata, 3).replace(b"cpathlib\n", b"cpathlib._local\n")
    for data, word in ((written.getvalue(), b"getattr"), (of_3_13, b"pathlib._local")):
        assert word in data
        (part / ".metadata").write_bytes(data)
        found = part_metadata.read_metadata(part)
        assert found == metadata
        (facts,) = {one.properties.memory_format for one in found.state_dict_metadata.values()}
        assert facts is torch.contiguous_format


class _Attribute:
    """Pickled as getattr of `owner` and `name`."""

    def __init__(self, owner: object, name: object) -> None:
        self.owner, self.name = owner, name

    def __reduce__(self) -> Any:
        return getattr, (self.owner, self.name)


FORMATS = importlib.import_module(METADATA)._MEM_FORMAT_ENCODING


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (FORMATS, "__init__"), (FORMATS, "mro"), (FORMATS, "__members__"), (FORMATS, "name"), (FORMATS, 7),
        (FORMATS, ["TORCH_CHANNELS_LAST"]), (Metadata, "__init__"), (Path("a"), "unlink"), ("a", "join"),
        (_StorageInfo, "__class__"), (_Attribute(FORMATS, "TORCH_CHANNELS_LAST"), "__class__"),
    ],
)  # fmt: skip
def test_getattr_gives_members_of_one_enum_and_nothing_else(part: Path, owner: object, name: object) -> None:
    (part / ".metadata").write_bytes(pickle.dumps(_Attribute(owner, name), 4))
    with pytest.raises(CheckpointError, match="which no checkpoint of tensors needs"):
        part_metadata.read_metadata(part)


@pytest.mark.parametrize("forge", [calls, calls_by_protocol_0])
@pytest.mark.parametrize(("module", "name", "argument"), CALLS)
def test_a_pickle_that_calls_a_function_is_refused_and_the_function_never_runs(
    part: Path, tmp_path: Path, forge: Callable[[str, str, str], bytes], module: str, name: str, argument: str
) -> None:
    harm = tmp_path / "harm"
    (part / part_metadata.METADATA).write_bytes(forge(module, name, argument.format(harm)))

    with pytest.raises(CheckpointError, match=r"model/\.metadata: cannot be read \(it names"):
        parts.read_part_tensors(part)
    assert not harm.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04",
        b"\x80\x04.",
        b"garbage",
        b"\x80\x04N.",
        b"(" * 100_000,
        b"\x80\x04P1\n.",
        b"I" + b"9" * 5000,
    ],
)
def test_a_pickle_that_is_cut_or_holds_something_else_is_one_error(part: Path, data: bytes) -> None:
    (part / part_metadata.METADATA).write_bytes(data)

    with pytest.raises(CheckpointError, match=r"model/\.metadata: "):
        parts.read_part_tensors(part)


def sets(module: str, name: str, attribute: str, then: bytes = b"N") -> bytes:
    """Return a pickle that sets an attribute of a class, or of a call's result, to None."""
    return b"\x80\x04" + word(module) + word(name) + b"\x93" + then + b"N}" + word(attribute) + b"Ns\x86b."


@pytest.mark.parametrize(
    ("module", "name", "attribute", "then"),
    [
        ("pathlib", "PosixPath", "exists", b""),
        ("pathlib", "PosixPath", "__slots__", b""),
        (METADATA, "Metadata", "__init__", b""),
        (METADATA, "MetadataIndex", "__hash__", b""),
        (METADATA, "_MEM_FORMAT_ENCODING", "no_such", b""),
        (METADATA, "_MEM_FORMAT_ENCODING", "_value_", b"K\x00\x85R"),
        ("torch.serialization", "_get_layout", "cache", b""),
    ],
)
def test_a_pickle_that_changes_a_class_is_refused_and_the_class_stays(
    part: Path, module: str, name: str, attribute: str, then: bytes
) -> None:
    owner = getattr(importlib.import_module(module), name)
    owner = owner(0) if then else owner
    before = dict(vars(owner))
    good = (part / part_metadata.METADATA).read_bytes()
    (part / part_metadata.METADATA).write_bytes(sets(module, name, attribute, then))

    with pytest.raises(CheckpointError, match=r"model/\.metadata: cannot be read \((it changes|invalid)"):
        parts.read_part_tensors(part)
    assert dict(vars(owner)) == before
    (part / part_metadata.METADATA).write_bytes(good)
    parts.read_part_tensors(part)


def reseal(step: Path) -> None:
    """Write sizes and hashes of the files as they are now into the manifest, as an attacker would."""
    manifest = json.loads((step / "manifest.json").read_text())
    for name, facts in manifest["files"].items():
        if not (step / name).exists():  # a copy without the optimizer
            continue
        data = (step / name).read_bytes()
        facts |= {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (step / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("command", ["inspect", "sample", "convert"])
def test_no_command_runs_it_though_the_manifest_fits(
    part: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    step, harm = part.parent, tmp_path / "harm"
    for name in ("model", "ema"):
        (step / name / ".metadata").write_bytes(calls(FILESYSTEM, "os.system", f"touch {harm}"))
    reseal(step)
    words = {"convert": ["export", str(step), str(tmp_path / "out")]}.get(command, [str(step)])

    assert main([command, *words]) in (1, 2)
    assert capsys.readouterr().err.startswith("error: ")
    assert not harm.exists()


def changed(part: Path, change: Callable[[Metadata], Metadata]) -> None:
    path = part / part_metadata.METADATA
    path.write_bytes(pickle.dumps(change(part_metadata.read_metadata(part))))


def placed(metadata: Metadata, **facts: object) -> Metadata:
    assert metadata.storage_data is not None
    old: dict[object, _StorageInfo] = metadata.storage_data
    return replace(metadata, storage_data={index: replace(info, **facts) for index, info in old.items()})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: placed(m, relative_path="../ema/__0_0.distcp"), "which is no file of a part"),
        (lambda m: placed(m, relative_path="/etc/passwd"), "which is no file of a part"),
        (lambda m: placed(m, relative_path="__0_9.distcp"), "behind the end of"),
        (lambda m: placed(m, offset=-1), "at byte -1"),
        (lambda m: placed(m, length=1 << 60), "behind the end of"),
        (lambda m: replace(m, storage_data=None), "where it lies"),
        (lambda m: replace(m, state_dict_metadata=None), "holds no metadata"),
        (lambda m: replace(m, state_dict_metadata={"layer.weight": 3}), "is not a tensor"),
        (
            lambda m: replace(
                m,
                state_dict_metadata={
                    name: replace(facts, size=torch.Size([1 << 20, 1 << 20]))
                    for name, facts in m.state_dict_metadata.items()
                },
            ),
            "and its files hold",
        ),
    ],
)
def test_metadata_that_names_other_files_or_more_than_they_hold_is_refused(
    part: Path, change: Callable[[Metadata], Metadata], reason: str
) -> None:
    changed(part, change)

    with pytest.raises(CheckpointError, match=reason):
        parts.read_part_tensors(part)


def test_what_torch_wrote_is_read_and_needs_only_the_listed_names(part: Path) -> None:
    assert torch.equal(parts.read_part_tensors(part)["layer.weight"], torch.ones(2, 3))
    assert "torch.distributed.checkpoint.filesystem" in sys.modules
