"""A short pickle whose values unfold through the memo, or nest deeply, is refused before a hash is taken."""

import pickle
import shutil
import time
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

from tests.trainer.run_folder.checkpoint.test_forged_metadata import METADATA, reseal, word
from trainer.__main__ import main
from trainer.run_folder.checkpoint import checkpoint, part_metadata
from trainer.run_folder.checkpoint.pickle_scan import require_bounded
from vidcurate.errors import CheckpointError

LEVELS = 40
START = b"\x80\x04"
AS_KEY = b"Ns."  # the value behind an empty dict becomes its key


def named(module: str, name: str) -> bytes:
    return word(module) + word(name) + b"\x93"


def get(index: int) -> bytes:
    return b"h" + bytes([index])


def nested_tuples(levels: int) -> bytes:
    """Each tuple holds the one before twice."""
    return START + b"})" + b"".join(b"\x94" + get(k) + b"\x86" for k in range(levels)) + AS_KEY


def nested_tuples_in_digits(levels: int) -> bytes:
    """The same by protocol 0."""
    return b"(d(t" + b"".join(b"p%d\n0(g%d\ng%d\nt" % (k, k, k) for k in range(levels)) + AS_KEY


def indexes(levels: int) -> bytes:
    """Each MetadataIndex has the one before as its name and as its offset."""
    data = START + b"}" + named(METADATA, "MetadataIndex") + b"\x940" + word("a")
    for level in range(1, levels + 1):
        state = word("fqn") + get(level) + word("offset") + get(level)
        data += b"\x940" + get(0) + b")\x81}(" + state + b"ub"
    return data + AS_KEY


def indexes_filled_later(levels: int) -> bytes:
    """Each MetadataIndex is empty when the memo gives it, and gets the one before afterwards."""
    data = START + b"}" + named(METADATA, "MetadataIndex") + b"\x940"
    data += b"".join(get(0) + b")\x81\x940" for _ in range(levels)) + get(1) + b"}" + word("fqn") + b"Nsb0"
    for level in range(2, levels + 1):
        state = word("fqn") + get(level - 1) + word("offset") + get(level - 1)
        data += get(level) + b"}(" + state + b"ub0"
    return data + get(levels) + b"0."


def indexes_by_call(levels: int) -> bytes:
    data = START + b"}" + named(METADATA, "MetadataIndex") + b"\x940" + word("a")
    called = (b"\x940" + get(0) + get(k) + b"\x85R" + get(k) + b"\x86" for k in range(1, levels + 1))
    return data + b"".join(called) + AS_KEY


def members_filled(levels: int) -> bytes:
    """Three members of an enum, which every call gives again, hold one another many times each."""
    data = START + named(METADATA, "_MEM_FORMAT_ENCODING") + b"\x940"
    for member in range(3):
        data += get(0) + b"K" + bytes([member]) + b"\x85R\x940"
    for member in (0, 1):
        data += get(0) + b"K" + bytes([member]) + b"\x85\x81}" + word("held")
        data += b"(" + get(member + 2) * levels + b"tsb0"
    return data + b"N."


def paths(levels: int) -> bytes:
    """Each path is the one before, twice."""
    data = START + b"}" + named("pathlib", "PosixPath") + b"\x940" + word("a")
    return data + b"".join(b"\x940" + get(0) + get(k) * 2 + b"\x86R" for k in range(1, levels + 1)) + AS_KEY


def long_path(levels: int) -> bytes:
    """A path of a long text, many times."""
    text = b"X" + (5000).to_bytes(4, "little") + b"a" * 5000
    data = START + b"}" + named("pathlib", "PosixPath") + text + b"\x94("
    return data + get(0) * levels + b"t\x860N."


def printed_lists(levels: int) -> bytes:
    """Lists in lists, which an error may print."""
    return START + b"]" + b"".join(b"\x940(" + get(k) * 2 + b"l" for k in range(levels)) + b"."


def deep_tuple(levels: int) -> bytes:
    return START + b"})" + b"\x85" * (levels if levels < LEVELS else 300_000) + AS_KEY


def values_below_a_mark(levels: int) -> bytes:
    """A tuple that takes a value from below a mark."""
    return START + b"}NN(" + b"N" * min(2, levels) + b"\x87" + AS_KEY


def equal_hashes(levels: int) -> bytes:
    """Numbers of one hash as keys of a dict."""
    numbers = ((k * ((1 << 61) - 1)).to_bytes(12, "little") for k in range(1, 50 * levels))
    return START + b"}(" + b"".join(b"\x8a\x0c" + one + b"N" for one in numbers) + b"u."


FORMS = {
    form.__name__: form
    for form in (
        nested_tuples,
        nested_tuples_in_digits,
        indexes,
        indexes_filled_later,
        indexes_by_call,
        members_filled,
        paths,
        long_path,
        printed_lists,
        deep_tuple,
        equal_hashes,
        values_below_a_mark,
    )
}


@pytest.mark.parametrize("name", FORMS)
def test_a_pickle_that_unfolds_is_refused_by_the_scan(name: str) -> None:
    with pytest.raises(pickle.UnpicklingError, match=r"memo|nested|just make|more values|a number"):
        require_bounded(FORMS[name](LEVELS))


@pytest.mark.parametrize(
    "name", [one for one in FORMS if one not in ("members_filled", "values_below_a_mark")]
)
def test_python_itself_reads_a_few_levels_of_it(name: str) -> None:
    assert len(FORMS[name](30)) < 1200 or name in ("deep_tuple", "equal_hashes", "long_path")
    pickle.loads(FORMS[name](3))


@pytest.mark.parametrize("name", ["nested_tuples", "indexes", "deep_tuple"])
def test_inspect_refuses_it_within_a_moment(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = {"weight": torch.ones(2, 3)}
    state = {"step": 1, "recipe": {"model": {}}}
    checkpoint.save(tmp_path / "run", 1, {"model": weights, "ema": weights, "optimizer": {}}, state)
    step = tmp_path / "run/step-00000001"
    (step / "model/.metadata").write_bytes(FORMS[name](LEVELS))
    reseal(step)
    start = time.process_time()

    assert main(["inspect", str(step)]) in (1, 2)

    assert time.process_time() - start < 5
    assert capsys.readouterr().err.startswith("error: ")


def test_a_shape_of_many_long_dimensions_is_refused(tmp_path: Path) -> None:
    shutil.copytree(saved(tmp_path / "a", {"weight": torch.ones(2)}), tmp_path / "b")
    path = tmp_path / "b/.metadata"
    data = path.read_bytes()
    metadata = pickle.loads(data)
    metadata.state_dict_metadata["weight"].size = torch.Size([1 << 60] * 100_000)
    path.write_bytes(pickle.dumps(metadata))

    with pytest.raises(
        CheckpointError, match=r"has the shape \(1152921504606846976, .{1,200}\. Take another"
    ):
        part_metadata.read_metadata(tmp_path / "b")


def saved(folder: Path, state: dict[str, object]) -> Path:
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    return folder


def test_what_torch_writes_is_read(tmp_path: Path) -> None:
    """Names of two hundred letters, tied and nested tensors, one value 12 dimensions deep, many dtypes."""
    tied = torch.ones(3, 2)
    state = {
        "a" * 200: tied,
        "again": tied,
        "nested": {"list": [torch.zeros(1), {"deeper": torch.zeros(2)}], "of": {"of": {"of": torch.ones(1)}}},
        "twelve": torch.ones([1] * 12),
        "empty": torch.ones(0, 4),
        "number": torch.tensor(3),
        **{f"layer.{k}.weight": torch.ones(2, 3, dtype=torch.bfloat16) for k in range(50)},
        "channels_last": torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last),
    }

    found = part_metadata.read_metadata(saved(tmp_path / "part", state))

    assert type(found) is Metadata
    assert len(found.state_dict_metadata) == 60 - 1
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / "part/.metadata").write_bytes(pickle.dumps(found, protocol))
        assert part_metadata.read_metadata(tmp_path / "part") == found
