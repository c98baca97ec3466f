"""An index of sharded weights is read as what it may be: forged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.model.encoders.weights import tensors_of
from trainer.model.weight_shards import listed_shards
from trainer.run_folder.checkpoint import convert
from vidcurate.errors import WeightsError

Read = Callable[[Path], Any]


@pytest.mark.parametrize(
    "read", [convert.read_tensors, lambda path: tensors_of(path, key="text_encoder.path")]
)
@pytest.mark.parametrize(
    "shard",
    ["", ".", "..", "model.safetensors.index.json", "../w.safetensors", "/w.bin", "sub/w.pt", None, 7, ["a"]],
)
def test_a_shard_that_is_no_weights_file_beside_its_index_is_refused(
    tmp_path: Path, read: Read, shard: object
) -> None:
    """Two of them named the folder of the index: it was read again, until the stack was full."""
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(WeightsError, match=r"index\.json: names the shard .*, which is no weights file"):
        read(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", '{"weight_map": null}', '{"weight_map": [1]}', "[" * 5000, "\udcff"]
)
def test_what_is_no_index_is_refused(tmp_path: Path, text: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(WeightsError, match="is not an index of shards"):
        listed_shards(index)
