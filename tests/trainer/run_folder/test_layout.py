"""Where a run may write is known before it starts."""

import os
from pathlib import Path

import pytest

from trainer.run_folder.layout import check_output
from vidcurate.errors import InputError


def test_an_output_without_permission_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    user = os.geteuid()
    if user == 0:  # root may write everywhere
        os.seteuid(65_534)
    try:
        with pytest.raises(InputError, match=r"output .*run: cannot be written \(no permission in /"):
            check_output(closed / "deep" / "run")
    finally:
        os.seteuid(user)
    check_output(tmp_path / "deep" / "run")
