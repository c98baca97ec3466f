"""Weights whose zip entries are compressed, so that a small file takes all memory, are refused unread."""

import io
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from trainer.model.encoders.weights import tensors_of
from trainer.run_folder.checkpoint import convert, part_metadata, parts
from vidcurate.errors import CheckpointError


def deflated(tensor: object) -> bytes:
    """Return what torch.save writes, each entry compressed: torch reads that, too."""
    saved, made = io.BytesIO(), io.BytesIO()
    torch.save(tensor, saved)
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(made, "w") as new:
        for entry in old.infolist():
            new.writestr(zipfile.ZipInfo(entry.filename), old.read(entry), zipfile.ZIP_DEFLATED)
    return made.getvalue()


@pytest.mark.parametrize(
    "read", [convert.read_tensors, lambda path: tensors_of(path, key="text_encoder.path")]
)
def test_a_file_of_weights_is_refused(tmp_path: Path, read: object) -> None:
    data = deflated({"weight": torch.zeros(1 << 20)})
    assert len(data) < 1 << 16
    (tmp_path / "w.pth").write_bytes(data)

    assert callable(read)
    with pytest.raises(CheckpointError, match=r"w\.pth: cannot be read .*is compressed"):
        read(tmp_path / "w.pth")


def test_a_part_of_a_checkpoint_is_refused(run: Path) -> None:
    folder = run / "step-00000100/model"
    metadata = part_metadata.read_metadata(folder)
    name, data = "__0_7.distcp", deflated(torch.zeros(1 << 20))
    (folder / name).write_bytes(data)
    places = {
        index: replace(info, relative_path=name, offset=0, length=len(data))
        for index, info in metadata.storage_data.items()
    }
    (folder / part_metadata.METADATA).write_bytes(pickle.dumps(replace(metadata, storage_data=places)))

    with pytest.raises(CheckpointError, match=r"model: cannot be read .*is compressed"):
        parts.read_part_tensors(folder)
