"""From raw long videos to clips: find the scenes, write them as a table, cut them out.

`detect` decodes a video and tells its cuts, `plan` makes intervals of them (pure), `split` writes the table
of scenes, `extract` the files of a table. A clip's id holds its source and its interval.
"""

from vidcurate.scenes.extract import ExtractSummary, run_extract
from vidcurate.scenes.spec import ExtractSpec, SceneSpec
from vidcurate.scenes.split import SplitScenesSummary, run_split_scenes

__all__ = [
    "ExtractSpec",
    "ExtractSummary",
    "SceneSpec",
    "SplitScenesSummary",
    "run_extract",
    "run_split_scenes",
]
