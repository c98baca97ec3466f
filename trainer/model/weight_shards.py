"""Index of sharded weights, as Hugging Face has it: the file of each tensor."""

import json
from pathlib import Path

from vidcurate.errors import WeightsError

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")


def listed_shards(index: Path) -> dict[str, set[str]]:
    """Return shard file name → names of its tensors, of the index `*.index.json`, in order of the names.

    Raises WeightsError for a file that is no index, and for a shard that is not a weights file beside it.
    """
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        text = " ".join(str(error).split())[:200]
        raise WeightsError(f"{index}: is not an index of shards ({text}).") from error
    shards: dict[str, set[str]] = {}
    for name, shard in listed:
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(SUFFIXES):
            raise WeightsError(f"{index}: names the shard {shard!r}, which is no weights file beside it.")
        shards.setdefault(shard, set()).add(name)
    return dict(sorted(shards.items()))
