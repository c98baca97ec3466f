"""Dedup time and memory: the searches for copies among a million clips.

    python benchmarks/dedup.py [--rows 1000000]

By look: five 63-bit hashes a clip, one clip in a hundred the turned and noisy copy of another. The peer is
what has no index: numpy over all pairs, one frame in one orientation, timed on 20,000 clips and scaled by the
square. By words: captions of 10 to 110 words, one in a hundred with a word or two changed. The peer is
datasketch (MinHash of 128 and MinHashLSH at the same threshold, over the same runs of three words), timed on
4,000 captions and scaled; it is installed by hand (`pip install datasketch`). Each search runs in a separate
process, one thread, whose largest resident size is its memory. Seconds are those of the CPU.
"""

import argparse
import json
import subprocess
import sys
from time import process_time
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rows import keep, peak_memory_bytes, row

THRESHOLD = 0.8
PEER_CLIPS, PEER_CAPTIONS = 20_000, 4_000


def _noisy(hashes: NDArray[np.uint64], bits: int, rng: np.random.Generator) -> NDArray[np.uint64]:
    for _ in range(bits):
        hashes = hashes ^ (np.uint64(1) << rng.integers(1, 64, hashes.shape, dtype=np.uint64))
    return hashes


def make_hashes(count: int) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """Return hashes (count, 5), and which rows are copies of which."""
    from vidcurate.curation.dedup.orientations import turned

    rng = np.random.default_rng(0)
    base = rng.integers(0, 2**64, count, dtype=np.uint64)
    # The frames of a clip look alike: 12 of 63 bits change from one to another.
    hashes = np.stack([_noisy(base, 12, rng) for _ in range(5)], axis=1)
    copies = np.arange(count - count // 100, count)
    sources = rng.permutation(count - count // 100)[: len(copies)]
    hashes[copies] = turned(_noisy(hashes[sources], 4, rng), "rotated 90")
    return hashes, sources, copies


def make_captions(count: int) -> tuple[pl.Series, NDArray[np.int64], NDArray[np.int64]]:
    """Return captions of frequent and rare words, and which rows are copies of which."""
    rng = np.random.default_rng(1)
    words = [f"w{number:x}" for number in range(20_000)]
    chances = np.cumsum(1 / np.arange(1, len(words) + 1))
    ends = np.cumsum(rng.integers(10, 110, count))
    drawn = np.searchsorted(chances, rng.random(ends[-1]) * chances[-1]).astype(np.int16)
    texts = np.split(drawn, ends[:-1])
    copies = np.arange(count - count // 100, count)
    sources = rng.permutation(count - count // 100)[: len(copies)]
    for copy, source in zip(copies.tolist(), sources.tolist(), strict=True):
        changed = texts[source].copy()
        changed[rng.integers(0, len(changed), 1 + len(changed) // 60)] = len(words) - 1
        texts[copy] = changed
    written = [" ".join([words[word] for word in text.tolist()]) for text in texts]
    return pl.Series(written), sources, copies


def _recall(pairs: Any, sources: NDArray[np.int64], copies: NDArray[np.int64]) -> float:
    found = set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    return float(np.mean([pair in found for pair in zip(sources.tolist(), copies.tolist(), strict=True)]))


def by_look(count: int) -> dict[str, float]:
    from vidcurate.curation.dedup import perceptual

    hashes, sources, copies = make_hashes(count)
    before = peak_memory_bytes()
    start = process_time()
    found = perceptual.find_perceptual_pairs(hashes, max_bits=8, min_frames=3, min_set_bits=5)
    seconds = process_time() - start
    return {
        "seconds": seconds,
        "peak_bytes": peak_memory_bytes(),
        "data_bytes": before,
        "recall": _recall(found.pairs, sources, copies),
        "false": len(found.pairs) - len(copies),
    }


def by_words(count: int) -> dict[str, float]:
    from vidcurate.curation.dedup import captions

    texts, sources, copies = make_captions(count)
    before = peak_memory_bytes()
    start = process_time()
    found = captions.find_caption_pairs(texts, THRESHOLD)
    seconds = process_time() - start
    true = captions.runs(texts.gather(np.concatenate([sources, copies])))
    half = len(sources)
    reach = np.concatenate(
        [
            captions.overlap(true, np.arange(first, last), np.arange(first + half, last + half))
            for first in range(0, half, 1 << 16)
            for last in [min(first + (1 << 16), half)]
        ]
    )
    twins = reach >= THRESHOLD
    return {
        "seconds": seconds,
        "peak_bytes": peak_memory_bytes(),
        "data_bytes": before,
        "recall": _recall(found.pairs, sources[twins], copies[twins]),
        "twins": int(twins.sum()),
    }


def all_pairs_seconds(count: int) -> float:
    """Return the seconds of numpy over all pairs of `count` hashes."""
    hashes = make_hashes(count)[0][:, 0].copy()
    start = process_time()
    found = 0
    for number in range(count - 1):
        found += int(np.count_nonzero(np.bitwise_count(hashes[number] ^ hashes[number + 1 :]) <= 8))
    return process_time() - start


def datasketch_seconds(count: int) -> float:
    """Return the seconds of datasketch's MinHashLSH over `count` captions."""
    from datasketch import MinHash, MinHashLSH

    texts = make_captions(count)[0].to_list()
    start = process_time()
    index = MinHashLSH(threshold=THRESHOLD, num_perm=128)
    for number, text in enumerate(texts):
        words = text.split()
        runs = {" ".join(words[at : at + 3]).encode() for at in range(max(1, len(words) - 2))}
        mark = MinHash(num_perm=128)
        mark.update_batch(list(runs))
        index.query(mark)
        index.insert(str(number), mark)
    return process_time() - start


def in_a_process(which: str, count: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--which", which, "--rows", str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--which", choices=["look", "words"], help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.which:
        print(json.dumps((by_look if given.which == "look" else by_words)(given.rows)))
        return
    look, words = in_a_process("look", given.rows), in_a_process("words", given.rows)
    print(f"by look: {look}\nby words: {words}")
    pairs = all_pairs_seconds(min(PEER_CLIPS, given.rows)) * (given.rows / min(PEER_CLIPS, given.rows)) ** 2
    sketched = (
        datasketch_seconds(min(PEER_CAPTIONS, given.rows)) * given.rows / min(PEER_CAPTIONS, given.rows)
    )
    keep(
        "dedup",
        [
            row(
                f"twins by look, {given.rows:,} clips x 5 frames x 8 orientations",
                look["seconds"],
                "s",
                peer="numpy over all pairs, 1 frame, 1 orientation (scaled)",
                peer_value=pairs,
                higher_is_better=False,
            ),
            row(
                f"twins by words, {given.rows:,} captions",
                words["seconds"],
                "s",
                peer="datasketch MinHashLSH (scaled)",
                peer_value=sketched,
                higher_is_better=False,
            ),
            row(
                "peak memory of twins by look",
                look["peak_bytes"] / 2**20,
                "MiB",
                peer="the hashes alone",
                peer_value=look["data_bytes"] / 2**20,
                higher_is_better=False,
            ),
            row(
                "peak memory of twins by words",
                words["peak_bytes"] / 2**20,
                "MiB",
                peer="the captions alone",
                peer_value=words["data_bytes"] / 2**20,
                higher_is_better=False,
            ),
        ],
    )


if __name__ == "__main__":
    main()
