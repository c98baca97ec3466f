"""No damaged clip passes unseen: every level of the probe on a corpus of damaged files.

The truth is what was done to each file. What a full decode complains of is found with PyAV alone, and held
against the program `ffmpeg` on a part of the corpus where it is installed.
"""

import os
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import av
import av.logging
import pytest

from tests.fault_corpus.cases import KINDS, Case, write_corpus
from tests.fault_corpus.clips import CONTAINERS
from vidcurate.curation.demo_data import damage
from vidcurate.curation.probe.examine import Task, examine
from vidcurate.curation.probe.findings import LEVELS, REJECTING, disagreements, verdict


@dataclass(frozen=True)
class Corpus:
    folder: Path
    cases: list[Case]
    verdicts: dict[tuple[str, str], tuple[str, str | None]]  # (name, level) → (status, findings)

    def rejects(self, case: Case, level: str) -> bool:
        return self.verdicts[case.name, level][0] != "ok"

    def notices(self, case: Case, level: str) -> bool:
        return self.verdicts[case.name, level] != ("ok", None)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    cases = write_corpus(folder)
    verdicts = {}
    for case in cases:
        for level in LEVELS:
            facts = examine(Task(path=str(folder / case.name), level=level))
            verdicts[case.name, level] = verdict(facts, REJECTING)[0], disagreements(facts)
    return Corpus(folder, cases, verdicts)


def complains(path: Path) -> bool:
    """Say whether anything goes wrong, or is said at the level error, when all of a file is decoded."""
    av.logging.set_level(av.logging.ERROR)
    av.logging.set_skip_repeated(False)
    try:
        with av.logging.Capture() as lines:
            try:
                with av.open(os.fspath(path)) as container:
                    streams = [*container.streams.video, *container.streams.audio]
                    streams = [stream for stream in streams if stream.codec_context]
                    if not streams:
                        return True
                    for stream in streams:
                        stream.codec_context.thread_count = 1
                    for packet in container.demux(streams):
                        packet.decode()
            except (av.FFmpegError, OSError):
                return True
        return bool(lines)
    finally:
        av.logging.set_level(None)


def test_the_corpus_is_what_it_says(corpus: Corpus) -> None:
    damaged = [case for case in corpus.cases if case.kind]
    counts = Counter((case.kind, case.container) for case in damaged)

    assert len(damaged) >= 200
    assert {case.kind for case in damaged} == set(KINDS)
    assert {case.container for case in damaged} == set(CONTAINERS)
    # A transport stream and a live WebM or a fragmented MP4 promise no length that could be wrong.
    silent = {("wrong_counts", name) for name in ("ts", "webm_live", "mp4_fragmented")}
    assert {(kind, name) for kind in KINDS for name in CONTAINERS} - set(counts) == silent
    clean = {
        case.container: case.name for case in corpus.cases if case.name.endswith("clean-0" + _suffix(case))
    }
    for case in damaged:
        data = (corpus.folder / case.name).read_bytes()
        assert data != (corpus.folder / clean[case.container]).read_bytes(), case.name


def _suffix(case: Case) -> str:
    return CONTAINERS[case.container].suffix


def test_the_same_call_gives_the_same_corpus(corpus: Corpus, tmp_path: Path) -> None:
    again = write_corpus(tmp_path, containers=("webm", "ts"))

    assert again == [case for case in corpus.cases if case.container in ("webm", "ts")]
    for case in again:
        assert (tmp_path / case.name).read_bytes() == (corpus.folder / case.name).read_bytes(), case.name


@pytest.mark.parametrize("level", LEVELS)
def test_no_clean_file_gets_a_word(corpus: Corpus, level: str) -> None:
    clean = [case for case in corpus.cases if case.kind is None]

    assert len(clean) >= 24
    assert {
        case.name: corpus.verdicts[case.name, level] for case in clean if corpus.notices(case, level)
    } == {}


def test_the_index_finds_every_truncation_that_can_be_proven(corpus: Corpus) -> None:
    missed = []
    for case in corpus.cases:
        is_whole = case.container == "ts" and (corpus.folder / case.name).stat().st_size % 188 == 0
        if case.kind == "truncated" and not is_whole and not corpus.rejects(case, "index"):
            missed.append(case.name)

    assert missed == []


@pytest.mark.parametrize("container", ["mp4_moov_first", "mp4_moov_last", "mkv", "avi", "ts"])
def test_a_cut_at_any_byte_is_found(corpus: Corpus, tmp_path: Path, container: str) -> None:
    clean = corpus.folder / f"{container}-clean-0{CONTAINERS[container].suffix}"
    data = clean.read_bytes()
    path = tmp_path / clean.name
    for size in range(1, len(data), 1499):
        path.write_bytes(data[:size])
        status, _ = verdict(examine(Task(path=str(path))), REJECTING)
        assert status in ("truncated", "unreadable", "no_video_stream", "no_frames", "damaged_container"), (
            size
        )


def test_a_cut_between_two_fragments_keeps_every_promise(corpus: Corpus, tmp_path: Path) -> None:
    """What no level can see, so that nobody believes it does."""
    data = (corpus.folder / "mp4_fragmented-clean-0.mp4").read_bytes()
    second = data.index(b"moof", data.index(b"moof") + 4) - 4
    path = tmp_path / "cut.mp4"
    path.write_bytes(data[:second])

    assert verdict(examine(Task(path=str(path), level="full")), REJECTING) == ("ok", None)


def test_every_flipped_byte_in_a_cluster_with_a_check_sum_is_found_without_decoding(
    corpus: Corpus, tmp_path: Path
) -> None:
    data = (corpus.folder / "mkv-clean-0.mkv").read_bytes()
    path = tmp_path / "flipped.mkv"
    for seed in range(20):
        path.write_bytes(damage.flip_bytes(data, seed=seed, count=1, within=(0.1, 0.8)))
        status, _ = verdict(examine(Task(path=str(path), level="keyframes")), REJECTING)
        assert status in ("damaged_container", "damaged_packets", "no_frames"), seed


def test_every_level_finds_at_least_what_the_one_below_finds(corpus: Corpus) -> None:
    for lower, higher in pairwise(LEVELS):
        for case in corpus.cases:
            assert corpus.notices(case, higher) or not corpus.notices(case, lower), (case.name, higher)


def test_recall_of_each_level(corpus: Corpus) -> None:
    damaged = [case for case in corpus.cases if case.kind]
    decoded = [case for case in damaged if complains(corpus.folder / case.name)]
    unseen = [case.name for case in decoded if not corpus.notices(case, "full")]
    keyframes = [case for case in damaged if corpus.notices(case, "keyframes")]
    rejected = [case for case in damaged if corpus.rejects(case, "keyframes")]

    # The full level finds all that decoding everything complains of, and more.
    assert unseen == []
    assert sum(corpus.notices(case, "full") for case in damaged) >= 1.4 * len(decoded)
    # Key frames: nine tenths of it, also of those very files; and as many are rejected.
    assert len(keyframes) >= 0.9 * len(decoded)
    assert len(rejected) >= 0.9 * len(decoded)
    assert len([case for case in keyframes if case in decoded]) >= 0.9 * len(decoded)
    # Blocks of zeros and of other bytes in a picture, and lost packets, leave marks that need no decoding.
    found = Counter(case.kind for case in keyframes)
    every = Counter(case.kind for case in damaged)
    assert found["dropped"] == every["dropped"]
    assert found["wrong_counts"] == every["wrong_counts"]
    assert found["garbage_tail"] == every["garbage_tail"]


@pytest.mark.engine
@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="no ffmpeg: the test before asks PyAV instead")
def test_the_full_level_finds_what_the_program_ffmpeg_finds(corpus: Corpus) -> None:
    found = 0
    for case in [case for case in corpus.cases if case.kind][::9]:
        done = subprocess.run(
            ["ffmpeg", "-nostdin", "-v", "error", "-i", corpus.folder / case.name, "-f", "null", "-"],
            capture_output=True,
            check=False,
        )
        if done.returncode or done.stderr.strip():
            found += 1
            assert corpus.notices(case, "full"), (case.name, done.stderr[:200])
    assert found >= 10


# What is wrong among the real clips, by the lowest level that finds it.
_REAL = {
    "index": {
        "empty.mp4": "empty",
        "libwebm_invalid_cluster.mkv": "truncated",
        "not_a_video.mp4": "unreadable",
        "opencv_tree.avi": "frame_count_mismatch",
        "trunc_bbb.webm": "truncated",
        "trunc_moov_first_60pct.mp4": "unreadable",
        "trunc_moov_last_60pct.mp4": "unreadable",
    },
    "keyframes": {"decord_corrupted.mp4": "damaged_packets"},
    "full": {
        "bitflip_h264.mp4": "damaged_frames",
        "dn_mpeg2.m2v": "damaged_frames",  # it was cut inside its last picture
    },
}


def _broken(folder: Path, level: str, most_bytes: int | None = None) -> dict[str, str]:
    found = {}
    for path in sorted(folder.iterdir()):
        if most_bytes is None or path.stat().st_size <= most_bytes:
            status, _ = verdict(examine(Task(path=str(path), level=level)), REJECTING)
            if status != "ok":
                found[path.name] = status
    return found


def test_the_real_broken_clips_are_found_and_the_real_good_ones_pass(shared: Path) -> None:
    clips = shared / "data" / "clips"
    known = {**_REAL["index"], **_REAL["keyframes"]}

    assert _broken(clips, "keyframes") == known
    small = _broken(clips, "full", most_bytes=120_000)
    assert small == {name: known[name] for name in small}
    for name, status in _REAL["full"].items():
        assert verdict(examine(Task(path=str(clips / name), level="full")), REJECTING)[0] == status


@pytest.mark.soak
def test_the_real_good_clips_pass_when_all_of_them_is_decoded(shared: Path) -> None:
    known = {**_REAL["index"], **_REAL["keyframes"], **_REAL["full"]}
    assert _broken(shared / "data" / "clips", "full") == known
