"""Upload shards to the Hugging Face hub in commits; the same command resumes.

A file that the hub has with the same content is not sent again: its SHA-256 for files in LFS, else git's blob
id. Each file is read and compared with the manifest before its turn. The manifest goes last: a set without
one is unfinished. The hub takes 128 commits an hour and advises fewer than 100 files in each (hub
documentation, "Repository limitations and recommendations"; huggingface/datasets#6257). What an interrupted
commit had sent to LFS is not sent again. The token is the one of `hf auth login` or HF_TOKEN; vidcurate never
reads it and takes it out of every message.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from vidcurate.errors import InputError, ShardError, StorageError, counted
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
_LONGEST_ASKED_SECONDS = 3600.0  # the hub counts commits by the hour
_FILES_PER_COMMIT, _BYTES_PER_COMMIT = 50, 5 * 10**9
_PATHS_PER_QUESTION = 250
_MAY_PASS = {408, 409, 412, 425, 429, 500, 502, 503, 504}


class Hub(Protocol):
    """The calls of `huggingface_hub.HfApi` that an upload makes."""

    def create_repo(self, repo_id: str, *, repo_type: str, private: bool, exist_ok: bool) -> Any: ...

    def get_paths_info(self, repo_id: str, paths: list[str], *, repo_type: str) -> list[Any]: ...

    def create_commit(
        self, repo_id: str, operations: list[Any], *, repo_type: str, commit_message: str
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
    files_per_commit: int = _FILES_PER_COMMIT,
    progress: Progress = no_progress,
    sleep: Callable[[float], None] = time.sleep,
) -> PushSummary:
    """Upload the shards, index, README and manifest in `shards` to the dataset `repo` (USER/NAME).

    Waits and tries again after a failure that may pass (429, 5xx, a lost connection), as long as the server
    asks, an hour at most. Raises InputError (the name, no README, not allowed), ShardError (a damaged or
    unfinished set), StorageError (the hub).
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
    there: dict[str, Any] = {}
    for at in range(0, len(names), _PATHS_PER_QUESTION):
        asked = names[at : at + _PATHS_PER_QUESTION]
        listing = partial(hub.get_paths_info, repo, asked, repo_type="dataset")
        there |= {one.path: one for one in call(listing, f"{repo}: cannot be listed")}
    sizes = {path: path.stat().st_size for path in files}
    done, uploaded, uploaded_bytes = 0, 0, 0
    progress(0, sum(sizes.values()), "bytes")
    for together in _commits(files, sizes, files_per_commit):
        for path in together:
            if path.name in wanted and blake3_file(path) != wanted[path.name]:
                raise ShardError(
                    f"{path}: is not the file that {MANIFEST_NAME} names: damaged, or the set was built "
                    f"again meanwhile. Run `vidcurate verify {shards}`."
                )
        new = [path for path in together if not _is_same(path, sizes[path], there.get(path.name))]
        if new:
            what = (
                new[0].name if len(new) == 1 else f"{new[0].name} and {counted(len(new) - 1, 'other file')}"
            )
            call(partial(_commit, hub, repo, new, f"Add {what}"), f"{what}: cannot be uploaded to {repo}")
            uploaded += len(new)
            uploaded_bytes += sum(sizes[path] for path in new)
        done += sum(sizes[path] for path in together)
        progress(done, sum(sizes.values()), "bytes")
    return PushSummary(repo=repo, num_files=len(files), num_uploaded=uploaded, uploaded_bytes=uploaded_bytes)


def _commits(files: list[Path], sizes: dict[Path, int], most_files: int) -> Iterator[list[Path]]:
    """Yield the files of each commit in their order: at most so many and 5 GB, or a single larger file."""
    together: list[Path] = []
    for path in files:
        size = sum(sizes[one] for one in together) + sizes[path]
        if together and (len(together) == most_files or size > _BYTES_PER_COMMIT):
            yield together
            together = []
        together.append(path)
    yield together


def _commit(hub: Hub, repo: str, files: list[Path], message: str) -> None:
    from huggingface_hub import CommitOperationAdd

    added = [CommitOperationAdd(path_in_repo=path.name, path_or_fileobj=str(path)) for path in files]
    hub.create_commit(repo, added, repo_type="dataset", commit_message=message)


def _files(shards: Path) -> tuple[list[Path], dict[str, str]]:
    """Return the files of a whole set in upload order, and name → BLAKE3 of all but the README.

    Raises InputError, ShardError.
    """
    manifest_hash = blake3_file(shards / MANIFEST_NAME) if (shards / MANIFEST_NAME).is_file() else ""
    verdict = verify(shards, "index")
    if verdict.problems:
        raise ShardError(
            f"{shards}: {counted(len(verdict.problems), 'problem')}; first: {verdict.problems[0]}. "
            f"Run `vidcurate verify {shards}`."
        )
    manifest = read_manifest(shards)
    if manifest is None:
        raise ShardError(f"{shards}: no {MANIFEST_NAME}. Run `vidcurate build-shards` again.")
    readme = shards / README
    if readme.is_symlink():  # it may lead to a file that nobody meant to publish
        raise InputError(f"{readme}: is a link; it is not followed. Put the file itself there.")
    if not readme.is_file():
        raise InputError(f"{readme}: no such file. Run `vidcurate card RUN` first.")
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
            sleep(wait if asked is None else min(_LONGEST_ASKED_SECONDS, asked))
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
