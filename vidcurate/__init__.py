"""Video curation: captioned video to a scored table, levels, shards and a loader.

Importing the package loads nothing heavy: the names below are imported when they are first used. Inside the
project, import the file and not the face.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_WHERE = {
    "BucketSpec": "vidcurate.sampler.buckets",
    "CurateRecipe": "vidcurate.curate",
    "Index": "vidcurate.shards.index",
    "Loader": "vidcurate.loader.loader",
    "LoaderSpec": "vidcurate.loader.spec",
    "MicroBatch": "vidcurate.loader.loader",
    "Plan": "vidcurate.sampler.plan",
    "PlanSpec": "vidcurate.sampler.spec",
    "VidcurateError": "vidcurate.errors",
    "plan_of": "vidcurate.sampler.build_plan",
    "read_frames": "vidcurate.media.decode",
    "read_index": "vidcurate.shards.index",
    "verify": "vidcurate.shards.verify",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'vidcurate' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
