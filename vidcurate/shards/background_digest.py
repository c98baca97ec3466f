"""Background digest: hash a shard's bytes in a thread while another writes them.

BLAKE3 releases the GIL for large data, so with a free core the hashing costs no time.
"""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

# One call of the thread costs 20 µs. Few bytes wait for it, as malloc then reuses their memory: with 8 MB
# waiting, fresh memory cost 60,000 page faults a GB and a tenth of the CPU time.
_BATCH_BYTES = 1 << 19
_MOST_BATCHES = 2


def _update(digest: "Future[Any]", batch: list[bytes]) -> None:
    for data in batch:
        digest.result().update(data)


class BackgroundDigest:
    """Hash object with `update`, `copy` and `hexdigest` as in hashlib, computed by `thread`, in order.

    `thread` has exactly one worker. With two batches waiting, `update` waits for the thread. `update`,
    `copy` and `hexdigest` raise what the hashing raised.
    """

    def __init__(self, digest: Any, thread: ThreadPoolExecutor) -> None:
        self._thread = thread
        self._digest: Future[Any] = thread.submit(lambda: digest)
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        self._sent: deque[Future[None]] = deque()

    def _send(self) -> None:
        if len(self._sent) == _MOST_BATCHES:
            self._sent.popleft().result()
        self._sent.append(self._thread.submit(_update, self._digest, self._batch))
        self._batch, self._batch_bytes = [], 0

    def update(self, data: bytes) -> None:
        """Add `data`, which nobody may change afterwards."""
        self._batch.append(data)
        self._batch_bytes += len(data)
        if self._batch_bytes >= _BATCH_BYTES:
            self._send()

    def copy(self) -> "BackgroundDigest":
        """Return an independent digest of the bytes so far."""
        self._send()
        digest = self._digest
        twin = BackgroundDigest(None, self._thread)
        twin._sent = self._sent.copy()  # a failure before the copy is one of the copy too
        twin._digest = self._thread.submit(lambda: digest.result().copy())
        return twin

    def hexdigest(self) -> str:
        """Return the digest of all bytes so far, as hex."""
        self._send()
        while self._sent:
            self._sent.popleft().result()
        return str(self._digest.result().hexdigest())
