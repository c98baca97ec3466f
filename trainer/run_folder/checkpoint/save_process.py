"""Save process beside a rank: write its checkpoint files in the background.

A thread of the rank would take the GIL thousands of times in a save, and the thread that launches kernels
would wait for it: on four H200s the update after the start of a save took 5.9 s instead of 3.2 s
(docs/decisions.md). The rank copies the tensors into shared memory; the process writes and hashes files, and
the rank's thread only waits for the answer. The process uses no GPU, and the kernel ends it when its rank
ends.
"""

import mmap
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from trainer.health import timed_command
from trainer.run_folder.checkpoint import checkpoint, parts
from vidcurate.errors import StorageError
from vidcurate.executor.child_processes import GROUP_SIGNALS, group_signals_blocked, ignoring
from vidcurate.executor.die_with_parent import die_with_parent
from vidcurate.executor.shared_memory import anonymous_file
from vidcurate.storage.checksum import sha256_file

ALIGNED_BYTES = 64
_PROGRAM = (
    ignoring(GROUP_SIGNALS) + "import sys; sys.path.insert(0, sys.argv[1]); "
    "from trainer.run_folder.checkpoint.save_process import main; main(*map(int, sys.argv[2:]))"
)


class SaveProcess:
    """The process, and `tensors`: part → name → a tensor in shared memory.

    Create it in the main thread: the process ends with the thread that started it. `pinned` page-locks the
    memory, for fast copies from a GPU. Raises StorageError where the driver refuses.
    """

    def __init__(self, kinds: Mapping[str, parts.Kinds], *, pinned: bool) -> None:
        self._kinds = kinds
        layout, size = _memory_layout(kinds)
        memory = anonymous_file(size)
        self.tensors = _tensors(layout, memory, size)
        if pinned:
            _pin(self.tensors, size)
        ours, theirs = socket.socketpair()
        with theirs, group_signals_blocked():
            root = str(Path(__file__).resolve().parents[3])
            numbers = [str(number) for number in (theirs.fileno(), memory, size, os.getpid())]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, root, *numbers],
                pass_fds=[theirs.fileno(), memory],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            )
        os.close(memory)
        self._channel = Connection(ours.detach())
        self._send(layout)

    def fits(self, kinds: Mapping[str, parts.Kinds]) -> bool:
        """Return whether the shared memory has the layout of these tensors."""
        return kinds == self._kinds

    def shard_writer(self, part: str, folder: Path) -> Callable[[SavePlan], list[WriteResult]]:
        """Return a function that writes the planned shards of a part into `folder`, or raises OSError."""

        def write(plan: SavePlan) -> list[WriteResult]:
            results: list[WriteResult] = self._ask("write", part, folder, plan)
            # Use the plan's own objects: with copies the bytes of the pickled metadata would differ.
            own = {item.index: item.index for item in plan.items}
            return [replace(result, index=own[result.index]) for result in results]

        return write

    def digest(self, path: Path) -> str:
        """Return the SHA-256 of a file; the process hashes a file that it wrote at once. Raises OSError."""
        found: str = self._ask("digest", path)
        return found

    def close(self) -> None:
        """End the process; all answered writes are on the disk."""
        self._channel.close()
        timed_command.kill(self._process)

    def _send(self, message: Any) -> None:
        """Send what `Connection.recv` reads. Raises OSError.

        An error of `Connection.send` holds a view of a BytesIO, over which the garbage collector of Python
        3.12.0 and 3.12.1 crashes (CPython gh-111049).
        """
        self._channel.send_bytes(pickle.dumps(message))

    def _ask(self, *question: Any) -> Any:
        try:
            self._send(question)
            answer = self._channel.recv()
        except (OSError, EOFError) as error:
            code = self._process.poll()
            raise OSError(f"the save process has ended ({code})") from error
        if isinstance(answer, Exception):
            raise answer
        return answer


# ── shared memory ───────────────────────────────────────────────────────────────────────────────────────────

Layout = dict[str, dict[str, tuple[torch.dtype, tuple[int, ...], int]]]  # part → name → dtype, shape, offset


def _memory_layout(kinds: Mapping[str, parts.Kinds]) -> tuple[Layout, int]:
    layout: Layout = {}
    size = 0
    for part, theirs in kinds.items():
        layout[part] = {}
        for name, (dtype, shape) in theirs.items():
            layout[part][name] = (dtype, shape, size)
            size += -(-torch.Size(shape).numel() * dtype.itemsize // ALIGNED_BYTES) * ALIGNED_BYTES
    return layout, max(size, 1)


def _tensors(layout: Layout, memory: int, size: int) -> dict[str, dict[str, Tensor]]:
    mapped = mmap.mmap(memory, size)

    def tensor(dtype: torch.dtype, shape: tuple[int, ...], first: int) -> Tensor:
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(mapped, dtype=dtype, count=count, offset=first).reshape(shape)

    return {part: {name: tensor(*at) for name, at in theirs.items()} for part, theirs in layout.items()}


def _pin(tensors: Mapping[str, Mapping[str, Tensor]], size: int) -> None:
    first = min(value.data_ptr() for values in tensors.values() for value in values.values() if value.numel())
    code = int(torch.cuda.cudart().cudaHostRegister(first, size, 0))  # type: ignore[no-untyped-call]
    if code:
        raise StorageError(
            f"{size / 2**30:.1f} GiB for copies of the tensors cannot be page-locked (cudaHostRegister: "
            f"{code}); raise the limit of locked memory, or set checkpoint_in_background false."
        )


# ── in the process ──────────────────────────────────────────────────────────────────────────────────────────


def main(descriptor: int, memory: int, size: int, parent: int) -> None:
    """Serve the rank `parent` over the socket `descriptor` until it closes."""
    die_with_parent(parent)
    os.nice(5)  # the rank's own threads come first
    with Connection(descriptor) as channel, ThreadPoolExecutor(checkpoint.HASHING_THREADS) as pool:
        tensors = _tensors(channel.recv(), memory, size)
        digests = {}
        while True:
            try:
                match channel.recv():
                    case "write", part, folder, plan:
                        answer: Any = parts.write_planned(folder, plan, tensors[part])
                        for path in {folder / result.storage_data.relative_path for result in answer}:
                            digests[path] = pool.submit(sha256_file, path)
                    case "digest", path:
                        answer = (digests.pop(path, None) or pool.submit(sha256_file, path)).result()
            except (EOFError, ConnectionResetError):
                return
            except Exception as error:  # noqa: BLE001 - raised in the rank
                answer = error
            channel.send(answer)
