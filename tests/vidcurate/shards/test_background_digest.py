"""The digest of the second thread is that of the first, in order, whatever the sizes."""

import hashlib
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from blake3 import blake3

from vidcurate.shards import background_digest
from vidcurate.shards.background_digest import BackgroundDigest


@pytest.mark.parametrize("make", [blake3, hashlib.sha256])
def test_updates_and_copies_in_any_order_give_the_digest_of_the_bytes(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_digest, "_BATCH_BYTES", 1000)
    chance = random.Random(0)
    with ThreadPoolExecutor(1) as thread:
        found, plain = BackgroundDigest(make(), thread), make()
        for _ in range(100):
            data = chance.randbytes(chance.choice((0, 1, 512, 5000)))
            found.update(data)
            plain.update(data)
            if chance.random() < 0.2:
                before = found.copy(), plain.copy()
                found.update(b"rolled back")
                assert before[0].hexdigest() == before[1].hexdigest()
                found = before[0].copy()  # as a tar rolls back, more than once
        assert found.hexdigest() == plain.hexdigest() == found.hexdigest()


class _Slow:
    """A hash that takes its time, and fails at a word."""

    def __init__(self) -> None:
        self.seen = 0

    def update(self, data: bytes) -> None:
        time.sleep(0.001)
        self.seen += 1
        if data == b"fail":
            raise MemoryError("no memory to hash")

    def copy(self) -> "_Slow":
        return self


def test_only_a_few_batches_wait_for_a_slow_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_digest, "_BATCH_BYTES", 1)
    slow = _Slow()
    with ThreadPoolExecutor(1) as thread:
        digest = BackgroundDigest(slow, thread)
        for number in range(20):
            digest.update(b"x")
            assert slow.seen >= number - background_digest._MOST_BATCHES


def _digest_of(digest: BackgroundDigest, parts: list[bytes]) -> str:
    for data in parts:
        digest.update(data)
    return digest.hexdigest()


@pytest.mark.parametrize("num_later", [0, 9])
def test_a_failed_hash_is_raised_and_gives_no_digest(num_later: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_digest, "_BATCH_BYTES", 1)
    with ThreadPoolExecutor(1) as thread:
        digest = BackgroundDigest(_Slow(), thread)
        with pytest.raises(MemoryError, match="no memory to hash"):
            _digest_of(digest, [b"fail", *[b"x"] * num_later])


def test_a_copy_knows_what_failed_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_digest, "_BATCH_BYTES", 1)
    with ThreadPoolExecutor(1) as thread:
        digest = BackgroundDigest(_Slow(), thread)
        digest.update(b"fail")
        with pytest.raises(MemoryError, match="no memory to hash"):
            digest.copy().hexdigest()
