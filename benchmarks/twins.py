"""Dedup by look: copies found, and clips wrongly taken for copies.

    python benchmarks/twins.py [--clips FOLDER] [--synthetic 60]

Each source clip (the synthetic data set's, and up to 48 frames of every readable file of FOLDER) is copied in
the ways of COPIES and hashed by the stage `frames`. The pairs that `dedup` gives are checked by where they
come from: a copy paired with its source is a hit, two different sources are a false alarm, printed by name.
Files that are known to show the same (TWINS) count for nothing. The peer is what is commonly done: one pHash
of the first frame (DCT, median), within 15 bits of 64.

Two choices are asserted: of a clip and its copy with black bars the clip is kept, and of a clip and the clip
with the start of the next source behind it too. The latter must have one cut more than the two together.
"""

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import polars as pl
from clip_copies import COPIES, Frames, spliced
from numpy.typing import NDArray
from rows import keep, row

from vidcurate.curation.dedup import perceptual, preference, unseen_bars
from vidcurate.curation.dedup.pairs import Pairs
from vidcurate.curation.dedup.search import twins_by_look
from vidcurate.curation.dedup.spec import PerceptualSpec
from vidcurate.curation.demo_data.choose import plan_clips
from vidcurate.curation.demo_data.scene import render_clip
from vidcurate.curation.frame_scores.scorers import SCORES, ClipFile, measure
from vidcurate.curation.frame_scores.spec import FramesSpec
from vidcurate.errors import MediaError
from vidcurate.media import decode, encode, headers

FACTS = ("width", "height", "num_cuts", *preference.BARS)
SPLICED = "the next source behind it"
# Files of public test clips that show the same pictures: one encoded again, cut or turned.
TWINS = (
    ("bbb_642x642_vp9.webm", "bbb_800x640_h264_pyramid.mp4"),
    ("bitflip_h264.mp4", "tc_bt709_full.mp4"),
    ("dn_uuid540.mp4", "dn_xmp480qt.mov"),
    ("tc_h264_10bit.mp4", "tc_h265_10bit.mp4"),
    (
        "media3_mdat_too_long.mp4", "media3_mpeg2.ts", "media3_portrait.mp4",
        "media3_rotate_reflect.mp4", "media3_sample.flv",
    ),
)  # fmt: skip
_SHORT_SIDE, _LONGEST = 160, 48
_PEER = {"peer": "pHash of the first frame, 15 bits of 64"}


def _even(frames: Frames) -> Frames:
    return np.ascontiguousarray(frames[:, : frames.shape[1] // 2 * 2, : frames.shape[2] // 2 * 2])


def _synthetic(count: int) -> Iterator[tuple[str, Frames]]:
    for clip in plan_clips(max(count * 2, 10), seed=1):
        if clip.planted is None and count > 0:
            count -= 1
            yield (
                f"synthetic {clip.family} {clip.name}",
                render_clip(
                    clip.scene, num_frames=24, height=max(clip.height, 96), width=max(clip.width, 96)
                ),
            )


def _real(folder: Path) -> Iterator[tuple[str, Frames]]:
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        try:
            header, index = headers.read_header_and_index(path)
            scale = _SHORT_SIDE / min(header.height, header.width)
            yield (
                path.name,
                decode.read_frames(
                    path,
                    list(range(min(_LONGEST, index.num_frames))),
                    height=max(32, round(header.height * scale / 2) * 2),
                    width=max(32, round(header.width * scale / 2) * 2),
                    accept_corrupt=True,
                ),
            )
        except (MediaError, ValueError):
            continue


def _first_frame_phash(frames: Frames) -> int:
    small = cv2.resize(cv2.cvtColor(frames[0], cv2.COLOR_RGB2GRAY), (32, 32), interpolation=cv2.INTER_AREA)
    block = cv2.dct(small.astype(np.float32))[:8, :8]
    bits = (block > np.median(block)).reshape(-1)
    return int(np.packbits(bits).view(">u8")[0])


def _hash(
    frames: Frames, scratch: Path, options: dict[str, Any]
) -> tuple[list[int], list[int], dict[str, int]]:
    given = {"fps": 24.0, "crf": 18, **options}
    path = scratch / f"clip{given.pop('suffix', '.mp4')}"
    encode.write_video(path, _even(frames), **given)
    spec = FramesSpec()
    scores = {name: SCORES[name] for name in ("hashes", "letterbox", "cuts")}
    columns = measure(ClipFile(path=str(path)), spec, scores)
    height, width = _even(frames).shape[1:3]
    facts = {"width": width, "height": height, "num_cuts": columns["num_cuts"]}
    facts |= {name: columns[name] for name in preference.BARS}
    return columns["perceptual_hashes"], columns["perceptual_thumbnail"], facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Clips:
    """Clips by name of their source and what was done to it.

    `firsts` are the peer's hashes, `facts` what decides which copy is kept: (clips, FACTS).
    """

    names: list[str]
    made: list[str]
    hashes: NDArray[np.uint64]
    thumbnails: NDArray[np.uint8]
    firsts: NDArray[np.uint64]
    facts: NDArray[np.int64]


def make(sources: Iterator[tuple[str, Frames]]) -> Clips:
    """Copy every source in every way, splice it with the source behind it, and hash the copies.

    A splice has the name of its first clip, and stands behind the source that its second is from.
    """
    names, made, hashes, thumbs, firsts, every = [], [], [], [], [], []
    before: tuple[str, Frames] | None = None
    with tempfile.TemporaryDirectory() as scratch:
        for name, frames in sources:
            versions = [(name, "source", frames, {})]
            versions += [(name, how, change(frames), options) for how, (change, options) in COPIES.items()]
            if before is not None:
                versions.append((before[0], SPLICED, spliced(before[1], frames), {}))
            for of, how, changed, options in versions:
                hashed, thumbnail, facts = _hash(changed, Path(scratch), options)
                names.append(of)
                made.append(how)
                hashes.append(hashed)
                thumbs.append(thumbnail)
                every.append([facts[fact] for fact in FACTS])
                firsts.append(_first_frame_phash(changed))
            before = (name, frames)
            print(name, flush=True)
    return Clips(
        names=names,
        made=made,
        hashes=np.array(hashes, dtype=np.uint64),
        thumbnails=np.array(thumbs, dtype=np.uint8),
        firsts=np.array(firsts, dtype=np.uint64),
        facts=np.array(every, dtype=np.int64),
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--clips", type=Path)
    arguments.add_argument("--synthetic", type=int, default=60)
    arguments.add_argument("--kept", type=Path, help="a file for the hashes, read when it is there")
    given = arguments.parse_args()
    if given.kept and given.kept.exists():
        held = np.load(given.kept)
        clips = Clips(**{name: held[name] for name in held.files})
    else:
        clips = make(itertools.chain(_synthetic(given.synthetic), _real(given.clips) if given.clips else ()))
        if given.kept:
            np.savez(given.kept, **{name: getattr(clips, name) for name in Clips.__slots__})
    check(clips, {frozenset(pair) for same in TWINS for pair in itertools.combinations(same, 2)})


def _peer_finds(clips: Clips, one: int, other: int) -> bool:
    return (int(clips.firsts[one]) ^ int(clips.firsts[other])).bit_count() <= 15


def _check_kept(clips: Clips, pairs: Pairs, source_of: dict[str, int]) -> list[dict[str, Any]]:
    """Assert that a clip is kept over its copies with black bars and over its splice; return the rows."""
    table = pl.DataFrame(dict(zip(FACTS, clips.facts.T, strict=True)))
    table = table.with_columns(clip_id=pl.format("{}", pl.int_range(pl.len())).str.zfill(6))
    shares = unseen_bars.picture_shares(clips.thumbnails, preference.sizes_inside(table), pairs)
    place = preference.rank(table, [preference.PIXELS, preference.FEWER_CUTS], shares).place
    found = set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    rows = []
    for what in ("black bars", SPLICED):
        copies = [number for number, how in enumerate(clips.made) if str(how).startswith(what)]
        of = {number: source_of[str(clips.names[number])] for number in copies}
        compared = [number for number in copies if (of[number], number) in found]
        wrong = [number for number in compared if place[number] < place[of[number]]]
        right = len(compared) - len(wrong)
        print(f"kept over its copy ({what}): {right} of {len(compared)} pairs; {len(copies)} copies")
        for number in wrong:
            print(f"  wrong: {clips.names[number]}: {clips.made[number]}")
        if compared:
            rows.append(
                _of_all(
                    f"clips kept over their copy ({what}), of {len(compared)} pairs", right / len(compared)
                )
            )
        assert not wrong
    return rows


def _check_cuts(
    clips: Clips, pairs: Pairs, source_of: dict[str, int], known: set[frozenset[str]]
) -> list[dict[str, Any]]:
    """Print the splices that have not one cut more than their two clips; return the share that has."""
    found = set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    cuts = clips.facts[:, FACTS.index("num_cuts")]
    counts = {"exact": 0, "missed": 0, "more": 0}
    behind = -1
    for number, how in enumerate(clips.made):
        behind = number if how == "source" else behind
        before = source_of[str(clips.names[number])]
        both = frozenset({str(clips.names[before]), str(clips.names[behind])})
        if how != SPLICED or (before, behind) in found or both in known:
            continue
        more = int(cuts[number] - cuts[before])
        expected = {1, 1 + int(cuts[behind])}  # a cut of the second may lie behind its first half
        result = "exact" if more in expected else "missed" if more < 1 else "more"
        counts[result] += 1
        if result != "exact":
            print(f"splice, cuts {result}: {' + '.join((clips.names[before], clips.names[behind]))}: {more}")
    total = sum(counts.values())
    print(f"splices of different clips: {total}: {counts}")
    return [_of_all(f"splices with one cut more than their clips, of {total}", counts["exact"] / total)]


def _of_all(metric: str, value: float) -> dict[str, Any]:
    return row(metric, value, "", peer="all of them", peer_value=1.0)


def _by_kind(
    hits: dict[str, int], of_peer: dict[str, int], totals: dict[str, int]
) -> Iterator[dict[str, Any]]:
    """Yield the recall of all copies with black bars, and of each kind of copy."""
    bars = [how for how in COPIES if how.startswith("black bars")]
    kinds = {f" with black bars, {len(bars)} kinds": bars, **{f": {how}": [how] for how in COPIES}}
    for what, hows in kinds.items():
        found, by_peer, total = (sum(counts[how] for how in hows) for counts in (hits, of_peer, totals))
        yield row(f"recall of {total} copies{what}", found / total, "", **_PEER, peer_value=by_peer / total)


def check(clips: Clips, known: set[frozenset[str]]) -> None:
    """Print recall by kind of copy and every false alarm; keep the recalls and the totals."""
    spec = PerceptualSpec()
    found = twins_by_look(clips.hashes, clips.thumbnails, spec).pairs
    pairs = set(zip(found.first.tolist(), found.second.tolist(), strict=True))
    by_hash = twins_by_look(clips.hashes, None, spec).pairs
    pairs_by_hash = set(zip(by_hash.first.tolist(), by_hash.second.tolist(), strict=True))
    source_of = {
        str(name): number
        for number, (name, how) in enumerate(zip(clips.names, clips.made, strict=True))
        if how == "source"
    }
    cut_rows = _check_cuts(clips, found, source_of, known)
    kept_rows = _check_kept(clips, found, source_of)
    speaks = perceptual.says_something(clips.hashes, spec.min_set_bits).sum(axis=1) >= spec.min_frames
    finders = {
        "dedup": lambda one, other: (one, other) in pairs,
        "hashes alone": lambda one, other: (one, other) in pairs_by_hash,
        "first-frame pHash": lambda one, other: _peer_finds(clips, one, other),
    }
    hits = {finder: {how: 0 for how in COPIES} for finder in finders}
    totals = dict.fromkeys(COPIES, 0)
    for number, (name, how) in enumerate(zip(clips.names, clips.made, strict=True)):
        source = source_of[str(name)]
        if how in COPIES and speaks[source]:
            totals[str(how)] += 1
            for finder, finds in finders.items():
                hits[finder][str(how)] += finds(source, number)
    print(f"\n{'copy':34} {'of':>4} " + " ".join(f"{finder:>17}" for finder in finders))
    for how in COPIES:
        print(f"{how:34} {totals[how]:4} " + " ".join(f"{hits[finder][how]:17}" for finder in finders))
    silent = [name for name, source in source_of.items() if not speaks[source]]
    print(f"\nnot compared, too few frames that say anything: {silent}")
    originals = {name: number for name, number in source_of.items() if speaks[number]}
    distinct = [pair for pair in itertools.combinations(originals, 2) if frozenset(pair) not in known]
    alarms = {finder: 0 for finder in finders}
    for one, other in distinct:
        for finder, finds in finders.items():
            is_alarm = finds(originals[one], originals[other])
            alarms[finder] += is_alarm
            if is_alarm and finder == "dedup":
                print(f"wrongly twins: {one} = {other}")
    total = sum(totals.values())
    right = {finder: sum(hits[finder].values()) for finder in finders}
    print(f"of {len(distinct):,} pairs of different sources: {alarms}")
    peer = "first-frame pHash"
    keep(
        "twins",
        [
            row(
                f"recall of {total:,} copies of {len(originals)} clips, {len(COPIES)} kinds",
                right["dedup"] / total,
                "",
                **_PEER,
                peer_value=right[peer] / total,
            ),
            row(
                f"precision over those copies and {len(distinct):,} pairs of different clips",
                right["dedup"] / (right["dedup"] + alarms["dedup"]),
                "",
                **_PEER,
                peer_value=right[peer] / (right[peer] + alarms[peer]),
            ),
            *kept_rows,
            *cut_rows,
            *_by_kind(hits["dedup"], hits[peer], totals),
        ],
    )


if __name__ == "__main__":
    main()
