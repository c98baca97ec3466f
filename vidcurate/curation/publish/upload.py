"""Upload shards to the Hugging Face hub, file by file; the same command resumes.

A file that the hub has with the same content is not sent again: its SHA-256 for files in LFS, else git's blob
id. Each file is read and compared with the manifest before its turn. The manifest
goes last: a set without one is unfinished. The token is the one of `hf auth login` or
HF_TOKEN; vidcurate never reads it and takes it out of every message.
"""

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from vidcurate.errors import InputError, ShardError, StorageError
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.shards.index_file import INDEX_NAME
from vidcurate.shards.manifest import MANIFEST_NAME, read_manifest
from vidcurate.shards.verify import README, verify
from vidcurate.storage.checksum import blake3_file, sha256_file
from vidcurate.storage.http_pool import retry_after

_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_TOKEN = re.compile(r"hf_[A-Za-z0-9]+")
_TRIES = 6
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 1.0, 60.0
_MAY_PASS = {408, 409, 412, 425, 429, 500, 502, 503, 504}


class Hub(Protocol):
    """The calls of `huggingface_hub.HfApi` that an upload makes."""

    def create_repo(self, repo_id: str, *, repo_type: str, private: bool, exist_ok: bool) -> Any: ...

    def get_paths_info(self, repo_id: str, paths: list[str], *, repo_type: str) -> list[Any]: ...

    def upload_file(
        self, *, path_or_fileobj: str, path_in_repo: str, repo_id: str, repo_type: str, commit_message: str
    ) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSummary:
    """Summary of an upload: files of the set, files and bytes that were sent now."""

    repo: str
    num_files: int
    num_uploaded: int
    uploaded_bytes: int


def push(
    shards: Path,
    repo: str,
    *,
    hub: Hub,
    is_private: bool,
    progress: Progress = no_progress,
    sleep: Callable[[float], None] = time.sleep,
) -> PushSummary:
    """Upload the shards, index, README and manifest in `shards` to the dataset `repo` (USER/NAME).

    Waits and tries again after a failure that may pass (429, 5xx, a lost connection). Raises InputError (the
    name, no README, not allowed), ShardError (a damaged or unfinished set), StorageError (the hub).
    """
    if not _REPO.fullmatch(repo):
        raise InputError(f"{repo!r}: a data set of the hub is USER/NAME.")
    files, wanted = _files(shards)
    names = [path.name for path in files]

    def call(function: Callable[[], Any], doing: str) -> Any:
        return _with_retries(function, doing, sleep)

    call(
        lambda: hub.create_repo(repo, repo_type="dataset", private=is_private, exist_ok=True),
        f"{repo}: cannot be created",
    )
    there = {
        one.path: one
        for one in call(
            lambda: hub.get_paths_info(repo, names, repo_type="dataset"), f"{repo}: cannot be listed"
        )
    }
    sizes = [path.stat().st_size for path in files]
    done, uploaded, uploaded_bytes = 0, 0, 0
    progress(0, sum(sizes), "bytes")
    for path, size in zip(files, sizes, strict=True):
        if path.name in wanted and blake3_file(path) != wanted[path.name]:
            raise ShardError(
                f"{path}: is not the file that {MANIFEST_NAME} names: damaged, or the set was built again "
                f"meanwhile. Run `vidcurate verify {shards}`."
            )
        if not _is_same(path, size, there.get(path.name)):
            call(partial(_upload, hub, repo, path), f"{path.name}: cannot be uploaded to {repo}")
            uploaded += 1
            uploaded_bytes += size
        done += size
        progress(done, sum(sizes), "bytes")
    return PushSummary(repo=repo, num_files=len(files), num_uploaded=uploaded, uploaded_bytes=uploaded_bytes)


def _upload(hub: Hub, repo: str, path: Path) -> None:
    hub.upload_file(
        path_or_fileobj=str(path),
        path_in_repo=path.name,
        repo_id=repo,
        repo_type="dataset",
        commit_message=f"Add {path.name}",
    )


def _files(shards: Path) -> tuple[list[Path], dict[str, str]]:
    """Return the files of a whole set in upload order, and name → BLAKE3 of all but the README.

    Raises InputError, ShardError.
    """
    manifest_hash = blake3_file(shards / MANIFEST_NAME) if (shards / MANIFEST_NAME).is_file() else ""
    verdict = verify(shards, "index")
    if verdict.problems:
        raise ShardError(
            f"{shards}: {len(verdict.problems)} problems; first: {verdict.problems[0]}. "
            f"Run `vidcurate verify {shards}`."
        )
    manifest = read_manifest(shards)
    if manifest is None:
        raise ShardError(f"{shards}: no {MANIFEST_NAME}. Run `vidcurate build-shards` again.")
    if not (shards / README).exists():
        raise InputError(f"{shards / README}: no such file. Run `vidcurate card RUN` first.")
    wanted = {entry["name"]: entry["blake3"] for entry in (*manifest["shards"], manifest["index"])}
    tars = [shards / entry["name"] for entry in manifest["shards"]]
    files = [*tars, shards / INDEX_NAME, shards / README, shards / MANIFEST_NAME]
    return files, wanted | {MANIFEST_NAME: manifest_hash}


def _is_same(path: Path, size: int, remote: Any) -> bool:
    """Return whether the hub's file has this content."""
    if remote is None or getattr(remote, "size", None) != size:
        return False
    if remote.lfs is not None:
        return bool(remote.lfs.sha256 == sha256_file(path))
    blob = hashlib.sha1(b"blob %d\0" % size + path.read_bytes(), usedforsecurity=False).hexdigest()
    return bool(remote.blob_id == blob)


def _with_retries(function: Callable[[], Any], doing: str, sleep: Callable[[float], None]) -> Any:
    """Call `function`; after a failure that may pass wait longer each time, or as the server asks."""
    wait = _FIRST_WAIT_SECONDS
    for tries_left in reversed(range(_TRIES)):
        try:
            return function()
        except Exception as error:
            if not _may_happen(error):
                raise
            response = getattr(error, "response", None)
            status = getattr(response, "status_code", None)
            reason = " ".join(_TOKEN.sub("hf_…", str(error)).split())[:300]
            if "OfflineModeIsEnabled" in _names(error):
                raise InputError(f"{doing}: HF_HUB_OFFLINE is set. Unset HF_HUB_OFFLINE.") from None
            if status in (401, 403, 404):
                raise InputError(
                    f"{doing} (HTTP {status}: {reason}). "
                    "Run `hf auth login` with a token that may write there."
                ) from None
            if not tries_left or (status is not None and status not in _MAY_PASS):
                raise StorageError(
                    f"{doing} ({reason}). The same command sends only what is missing."
                ) from None
            asked = retry_after(response.headers.get("Retry-After")) if response is not None else None
            sleep(wait if asked is None else min(_LONGEST_WAIT_SECONDS, asked))
            wait = min(_LONGEST_WAIT_SECONDS, 2 * wait)
    raise AssertionError("the last try returns or raises")


def _names(error: Exception) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _may_happen(error: Exception) -> bool:
    """Say whether this is an answer of the hub or a lost connection.

    HTTP errors of huggingface_hub are OSErrors; a lost connection is httpx's TransportError, whose package
    has another name in each major release of huggingface_hub.
    """
    return isinstance(error, OSError) or "TransportError" in _names(error)
