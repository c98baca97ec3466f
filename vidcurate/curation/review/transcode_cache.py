"""Transcoding on demand: a bounded folder of mp4 files, few child processes."""

import asyncio
import hashlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from vidcurate.errors import MediaError, StorageError
from vidcurate.media.transcode import ffmpeg_version
from vidcurate.storage import atomic_file

FOLDER = ".review-videos"
MOST_SECONDS = 120.0  # of a clip; the rest of a longer one is not shown
MOST_BYTES = 2 << 30  # of the folder
_JOBS = 2
_MOST_WAITING = 32
_TIME_LIMIT_SECONDS = 120.0


class BusyError(Exception):
    """Too many clips wait for a transcoding."""


class TranscodeCache:
    """Clips as H.264 in mp4, made by child processes when they are first asked for.

    `folder` holds at most `most_bytes`; the files that were used longest ago leave first. A child that takes
    longer than two minutes is killed.
    """

    def __init__(self, folder: Path, *, most_bytes: int = MOST_BYTES, jobs: int = _JOBS) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._jobs = asyncio.Semaphore(jobs)
        self._made: dict[Path, asyncio.Task[Path]] = {}

    def _target(self, source: Path, start: float | None, end: float) -> Path:
        stat = source.stat()
        facts = [str(source), stat.st_size, stat.st_mtime_ns, start, end, ffmpeg_version()]
        return self._folder / f"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]}.mp4"

    async def clip(self, source: Path, start_seconds: float | None, end_seconds: float | None) -> Path:
        """Return the mp4 of a clip of `source`, made now when it is not there.

        Raises MediaError, StorageError, OSError; BusyError when 32 clips are waiting.
        """
        last = (start_seconds or 0.0) + MOST_SECONDS
        end = last if end_seconds is None else min(end_seconds, last)
        target = self._target(source, start_seconds, end)
        if target.is_file():
            with suppress(OSError):
                os.utime(target)
            return target
        if target not in self._made:
            if len(self._made) >= _MOST_WAITING:
                raise BusyError
            task = asyncio.create_task(self._make(source, target, start_seconds, end))
            self._made[target] = task
            task.add_done_callback(lambda done: self._forget(target, done))
        # A browser that leaves does not stop the work: others may wait for the same clip.
        return await asyncio.shield(self._made[target])

    def _forget(self, target: Path, done: "asyncio.Task[Path]") -> None:
        self._made.pop(target, None)
        if not done.cancelled():
            done.exception()  # each caller has it

    async def _make(self, source: Path, target: Path, start: float | None, end: float) -> Path:
        async with self._jobs:
            try:
                self._folder.mkdir(exist_ok=True)
            except OSError as error:
                raise StorageError(f"{self._folder}: cannot be made ({error.strerror}).") from error
            atomic_file.remove_leftovers(self._folder)
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "vidcurate.curation.review.transcode_child",
                json.dumps([os.fspath(source), os.fspath(target), start, end, os.getpid()]),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            try:
                said, _ = await asyncio.wait_for(child.communicate(), _TIME_LIMIT_SECONDS)
            except TimeoutError as error:
                raise MediaError(
                    f"{source.name}: transcoding took longer than {_TIME_LIMIT_SECONDS:g} s.", kind="too_slow"
                ) from error
            finally:
                if child.returncode is None:
                    child.kill()
                    await child.wait()
            if child.returncode or not target.is_file():
                reason = said.decode("utf-8", "replace").strip() or f"exit code {child.returncode}"
                raise MediaError(f"{source.name}: cannot be transcoded ({reason}).", kind="cannot_cut")
        self._shrink(target)
        return target

    def _shrink(self, kept: Path) -> None:
        """Remove the files that were used longest ago until the folder is within its limit."""
        found = []
        for path in self._folder.glob("*.mp4"):
            with suppress(OSError):
                stat = path.stat()
                found.append((stat.st_mtime, stat.st_size, path))
        size = sum(one[1] for one in found)
        for _, bytes_, path in sorted(found):
            if size <= self._most_bytes:
                return
            if path != kept:
                with suppress(OSError):
                    path.unlink()
                    size -= bytes_

    async def close(self) -> None:
        """Stop the children that are at work."""
        for task in list(self._made.values()):
            task.cancel()
        await asyncio.gather(*self._made.values(), return_exceptions=True)
