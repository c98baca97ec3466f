"""Probe levels: recall and cost of each, beside `ffmpeg -v error -f null`.

    python benchmarks/integrity.py [--clips FOLDER]

Recall: the corpus of `tests.fault_corpus` (damaged files of eight kinds in eight containers, clean ones too),
each file at every level and through the program ffmpeg, whose word is an exit code or a line at the level
error. Cost: CPU seconds a file (user and system, the process of ffmpeg included) on 6 made clips (8 s,
720p, 24 frames/s, a key frame every 2 s) or the clips given, the peers taking turns, the median of 5 rounds.
CPU time, because both sides keep every core of a machine busy when there are many files.

The table of kinds goes into docs/integrity.md, between its two marks.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import av
from probe import make_clips, readable
from rows import keep, row

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.fault_corpus.cases import KINDS, write_corpus
from vidcurate.curation.probe.examine import Task, examine
from vidcurate.curation.probe.findings import LEVELS, REJECTING, disagreements, verdict

PAGE = Path(__file__).parents[1] / "docs" / "integrity.md"
BEGIN, END = "<!-- recall: begin -->", "<!-- recall: end -->"
ROUNDS = 5
Counts = dict[str, Counter[str]]  # kind → how many files each finder found


def ffmpeg(path: Path) -> bool:
    """Run the check of the published pipeline; return whether it finds fault."""
    done = subprocess.run(
        ["ffmpeg", "-nostdin", "-v", "error", "-i", str(path), "-f", "null", "-"],
        capture_output=True,
        check=False,
    )
    return bool(done.returncode or done.stderr.strip())


def count(folder: Path) -> Counts:
    """Return what each level and ffmpeg find of the corpus, by kind; `clean` are false alarms."""
    counts: Counts = {kind: Counter() for kind in ("clean", *KINDS)}
    for case in write_corpus(folder):
        path, found = folder / case.name, counts[case.kind or "clean"]
        found["files"] += 1
        by_ffmpeg = ffmpeg(path)
        found["ffmpeg"] += by_ffmpeg
        for level in LEVELS:
            facts = examine(Task(path=str(path), level=level))
            is_rejected = verdict(facts, REJECTING)[0] != "ok"
            is_noticed = is_rejected or disagreements(facts) is not None
            found[level] += is_noticed
            found[f"{level} rejects"] += is_rejected
            found[f"{level} of ffmpeg's"] += is_noticed and by_ffmpeg
    return counts


def cpu_seconds(function: Callable[[Path], object], paths: list[Path]) -> tuple[float, float]:
    """Return (CPU seconds, wall seconds) a file of this process and of those that it waited for."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    before = [resource.getrusage(each) for each in who]
    start = perf_counter()
    for path in paths:
        function(path)
    wall = perf_counter() - start
    after = [resource.getrusage(each) for each in who]
    used = sum(b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime for a, b in zip(before, after, strict=True))
    return used / len(paths), wall / len(paths)


def full_decode(path: Path) -> int:
    """Decode every frame, in one thread, and look at none."""
    with av.open(os.fspath(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        return sum(1 for _ in container.decode(stream))


def costs(paths: list[Path]) -> dict[str, tuple[float, float]]:
    """Return the median (CPU, wall) seconds a file of each level, of a full decode and of ffmpeg."""
    finders: dict[str, Callable[[Path], object]] = {"ffmpeg": ffmpeg, "full decode": full_decode}
    for level in LEVELS:
        finders[level] = lambda path, level=level: examine(Task(path=str(path), level=level))  # type: ignore[misc]
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in finders}
    for _ in range(ROUNDS):
        for name, finder in finders.items():
            taken[name].append(cpu_seconds(finder, paths))
    return {
        name: (statistics.median(cpu for cpu, _ in each), statistics.median(wall for _, wall in each))
        for name, each in taken.items()
    }


def as_page(counts: Counts, spent: dict[str, tuple[float, float]]) -> str:
    """Return the Markdown of the two tables."""
    finders = ("ffmpeg", *LEVELS)
    lines = [
        "| kind | files | " + " | ".join(f"`{name}`" for name in finders) + " |",
        "| --- |" + " ---: |" * (len(finders) + 1),
    ]
    total: Counter[str] = Counter()
    for kind in KINDS:
        total += counts[kind]
        shown = " | ".join(str(counts[kind][name]) for name in finders)
        lines.append(f"| {kind} | {counts[kind]['files']} | {shown} |")
    for title, mark in (
        ("all", ""),
        ("of these rejected", " rejects"),
        ("of what ffmpeg finds", " of ffmpeg's"),
    ):
        shown = " | ".join(str(total[name + mark] if name in LEVELS else total["ffmpeg"]) for name in finders)
        lines.append(
            f"| **{title}** | {total['ffmpeg'] if 'ffmpeg' in title else total['files']} | {shown} |"
        )
    shown = " | ".join(str(counts["clean"][name]) for name in finders)
    lines += [f"| clean: false alarms | {counts['clean']['files']} | {shown} |", ""]
    lines += [
        "| | CPU s a file | times faster than `ffmpeg` | times faster than decoding |",
        "| --- |" + " ---: |" * 3,
    ]
    for name, (cpu, _) in spent.items():
        lines.append(
            f"| `{name}` | {cpu:.4f} | {spent['ffmpeg'][0] / cpu:.1f} | {spent['full decode'][0] / cpu:.1f} |"
        )
    return "\n".join(lines)


def write_page(table: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n{table}\n{END}{tail}", encoding="utf-8")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--clips", type=Path, help="a folder of videos for the cost instead of made ones")
    given = arguments.parse_args().clips
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch) / "corpus"
        corpus.mkdir()
        counts = count(corpus)
        folder = given or Path(scratch) / "clips"
        if given is None:
            folder.mkdir()
            make_clips(folder, 6)
        spent = costs([path for path in sorted(folder.iterdir()) if readable(path)])
    name = "the given clips" if given else "8 s 720p clips"
    total: Counter[str] = sum((counts[kind] for kind in KINDS), Counter())
    damaged = total["files"]
    rows = []
    for level, goal in (("index", ""), ("keyframes", ">= 0.9 x"), ("full", ">= 1 x")):
        rows.append(
            row(
                f"recall at {level}, {damaged} damaged files",
                total[level] / damaged,
                "of the files",
                peer="ffmpeg -v error -f null",
                peer_value=total["ffmpeg"] / damaged,
                goal=goal,
            )
        )
    rows.append(
        row(
            "truncations found at index",
            counts["truncated"]["index"] / counts["truncated"]["files"],
            "of the files",
            peer="ffmpeg -v error -f null",
            peer_value=counts["truncated"]["ffmpeg"] / counts["truncated"]["files"],
            goal="all",
        )
    )
    for level, peer, goal in (
        ("index", "full decode", ">= 20 x"),
        ("keyframes", "ffmpeg", ">= 10 x"),
        ("full", "ffmpeg", ""),
    ):
        for what, which in (("CPU", 0), ("wall", 1)):
            rows.append(
                row(
                    f"{level}, {what} time, {name}",
                    1 / spent[level][which],
                    f"files/s ({what})",
                    peer="ffmpeg -v error -f null" if peer == "ffmpeg" else "full decode, PyAV, one thread",
                    peer_value=1 / spent[peer][which],
                    goal=goal if what == "CPU" else "",
                )
            )
    keep("integrity_given_clips" if given else "integrity", rows)
    table = as_page(counts, spent)
    print(table)
    assert not sum(counts["clean"][level] for level in LEVELS), "a clean file got a word"
    if given is None and PAGE.exists():
        write_page(table)


if __name__ == "__main__":
    if subprocess.run(["which", "ffmpeg"], capture_output=True, check=False).returncode:
        sys.exit("ffmpeg is not installed: there is no peer to measure against")
    main()
