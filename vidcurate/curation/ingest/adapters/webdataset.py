"""WebDataset adapter: unpack finished shards; samples share a member key.

Later stages read files, so the videos are unpacked into the run folder, one folder per shard, named after the
shard and the digest of its bytes. Such a folder is there whole or not at all, and one that is there is not
unpacked again. The key of a member ends at the first dot of its name, as in webdataset.
"""

import shutil
import tarfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from vidcurate.curation.clip_table.schema import COLUMNS, sample_key
from vidcurate.curation.ingest.adapters.folder import described
from vidcurate.curation.ingest.files import IMAGE_SUFFIXES, VIDEO_SUFFIXES, printable
from vidcurate.curation.ingest.rows import Rows
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.staged_rows import stage
from vidcurate.errors import InputError, ShardError, StorageError
from vidcurate.executor.map_clips import Progress
from vidcurate.shards.manifest import read_manifest
from vidcurate.shards.tar_read import problem_at_end
from vidcurate.storage import atomic_file
from vidcurate.storage.file_window import FileBytes

_CHUNK_BYTES = 1 << 20
_COMPRESSED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")


@dataclass(slots=True, kw_only=True)
class Unpacked:
    """What came out of the shards beside the rows."""

    files: list[tuple[str, int]] = field(default_factory=list)
    num_other_members: int = 0


def shard_paths(metadata: Path) -> list[Path]:
    """Return the tars that `metadata` (a tar or a folder of tars) means, sorted by name.

    Raises InputError where a compressed tar lies among them: it would not be read.
    """
    if metadata.is_file():
        return [metadata]
    files = sorted(metadata.glob("*"))
    tars = [path for path in files if path.suffix.lower() == ".tar"]
    left_out = [path.name for path in files if path.name.lower().endswith(_COMPRESSED)]
    if tars and left_out:
        raise InputError(
            f"{metadata}: {left_out[0]} is a compressed tar, which is not read, among {len(tars)} that are. "
            "Decompress it, or move it to another folder."
        )
    return tars


def folder_name(shard: Path, digest: str) -> str:
    return f"{shard.stem}-{digest[:12]}"


def _members(archive: tarfile.TarFile, shard: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the members that are files, without the hidden ones. Raises ShardError for a link or a device."""
    for member in archive:
        member.name = printable(member.name)
        if member.isdir() or PurePosixPath(member.name).name.startswith("."):
            continue
        if not member.isfile():
            raise ShardError(
                f"{shard}: {member.name} is a link or a device, whose bytes the tar does not hold "
                "under this name. Write it again with `tar --dereference --hard-dereference`."
            )
        yield member


def _samples(
    archive: tarfile.TarFile, shard: Path
) -> Iterator[tuple[str, list[tuple[str, tarfile.TarInfo]]]]:
    """Yield (key, [(extension, member)]) for each run of members that share a key, each extension once."""
    key: str | None = None
    members: list[tuple[str, tarfile.TarInfo]] = []
    for member in _members(archive, shard):
        pure = PurePosixPath(member.name)
        stem, _, extension = pure.name.partition(".")
        its_key, extension = str(pure.with_name(stem)), f".{extension.lower()}"
        if key is not None and (its_key != key or extension in {known for known, _ in members}):
            yield key, members
            members = []
        key = its_key
        members.append((extension, member))
    if key is not None:
        yield key, members


def _open(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    opened = archive.extractfile(member)
    if opened is None:  # only members that are files come here
        raise tarfile.ReadError(f"member {member.name} is no file")
    return opened


def _read_text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    with _open(archive, member) as file:
        return file.read().decode("utf-8").removeprefix("\ufeff").strip()


def _write_video(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    with _open(archive, member) as read, target.open("wb") as write:
        shutil.copyfileobj(read, write, _CHUNK_BYTES)
        if write.tell() != member.size:
            raise tarfile.ReadError(f"it ends inside {member.name}")


def _sample(
    archive: tarfile.TarFile,
    key: str,
    members: list[tuple[str, tarfile.TarInfo]],
    folder: str,
    partial: Path | None,
    found: Unpacked,
    names: set[str],
    spec: IngestSpec,
    *,
    is_ours: bool,
) -> dict[str, Any]:
    """Return the row of one sample; its video goes into `partial`, unless that is None.

    An image is taken where the sample has no video. `is_ours`: build-shards wrote the shard, so that what
    later stages measured is measured again and no own value.
    """
    words: dict[str, str] = {}
    video: str | None = None
    bad = None
    has_video = any(extension.endswith(VIDEO_SUFFIXES) for extension, _ in members)
    for extension, member in members:
        if extension.endswith(VIDEO_SUFFIXES if has_video else IMAGE_SUFFIXES) and video is None:
            name = f"{sample_key(key)}{PurePosixPath(extension).suffix}"
            turn = 1
            while name in names:  # the same key twice in one shard
                turn += 1
                name = f"{sample_key(key)}-{turn}{PurePosixPath(extension).suffix}"
            names.add(name)
            if partial is not None:
                _write_video(archive, member, partial / name)
            video = f"{folder}/{name}"
            found.files.append((video, member.size))
        elif extension in (".json", ".txt"):
            try:
                words[extension] = _read_text(archive, member)
            except ValueError:
                bad = (
                    f"{member.name}=not UTF-8 text"
                    if extension == ".txt"
                    else f"{member.name}=not a JSON object"
                )
        else:
            found.num_other_members += 1
    try:
        row = described(words.get(".json"), words.get(".txt"), spec)
    except ValueError:
        bad = f"{key}.json=not a JSON object"
        row = described(None, words.get(".txt"), spec)
    if is_ours:
        row["own"] = {name: value for name, value in row.get("own", {}).items() if name not in COLUMNS}
    row.setdefault("clip_id", key)
    return {**row, "video_path": video or f"{folder}/{sample_key(key)}{spec.extension}", "bad": bad}


def _is_ours(shard: Path) -> bool:
    """Return whether the manifest beside the shard is that of build-shards and names it."""
    try:
        manifest = read_manifest(shard.parent)
    except ShardError:
        return False
    return manifest is not None and shard.name in {listed["name"] for listed in manifest["shards"]}


def _shard(
    shard: Path, folder: str, videos: Path, spec: IngestSpec, found: Unpacked
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one shard, with its videos in `videos/folder` when it is through."""
    final = videos / folder
    names: set[str] = set()
    is_ours = _is_ours(shard)
    try:
        with (
            nullcontext() if final.is_dir() else atomic_file.atomic_folder(final) as partial,
            tarfile.open(shard, "r:") as archive,
        ):
            for key, members in _samples(archive, shard):
                yield _sample(archive, key, members, folder, partial, found, names, spec, is_ours=is_ours)
            with shard.open("rb") as file:
                problem = problem_at_end(FileBytes(file, shard.stat().st_size), archive.offset)
        if problem:
            raise tarfile.ReadError(problem)
    except (tarfile.TarError, ValueError, RecursionError) as error:  # the latter two: tarfile's, of a header
        raise ShardError(f"{shard}: the tar is damaged ({error}). Fetch it again or leave it out.") from error
    except OSError as error:
        raise StorageError(
            f"{videos}: {shard.name} cannot be unpacked ({error.strerror or error})."
        ) from error


def read_rows(
    shards: dict[Path, str], spec: IngestSpec, scratch: Path, videos: Path, progress: Progress
) -> tuple[Rows, Unpacked]:
    """Unpack `shards` ({path: digest}) below `videos` and return their rows, staged in `scratch`.

    Raises ShardError for a damaged tar, InputError for one without a sample, StorageError.
    """
    found = Unpacked()

    def rows() -> Iterator[dict[str, Any]]:
        for number, (shard, digest) in enumerate(shards.items()):
            progress(number, len(shards), "shards")
            yield from _shard(shard, folder_name(shard, digest), videos, spec, found)

    staged = stage(rows(), scratch)
    if not found.files:
        raise InputError(
            f"{next(iter(shards))}: no shard holds a video ({', '.join(VIDEO_SUFFIXES[:8])}, ...)."
        )
    return staged, found
