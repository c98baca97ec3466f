"""What a stage's worker runs loads no library of tables: they are 50 MB in each process."""

from collections.abc import Callable

import pytest


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("captioning.frames", "clip_frames"),
        ("frame_scores.scorers", "score_clip"),
        ("own_scores.score_clip", "score_clip"),
        ("probe.examine", "examine"),
        ("scenes.detect", "detect"),
    ],
)
def test_what_a_worker_runs_loads_neither_polars_nor_pyarrow(
    module: str, name: str, run_python: Callable[[str], str]
) -> None:
    pytest.importorskip("cv2")

    loaded = run_python(
        f"import sys\nfrom vidcurate.curation.{module} import {name}\n"
        "print([one for one in ('av', 'polars', 'pyarrow') if one in sys.modules])"
    )

    assert loaded == "['av']\n"
