"""Review app over a million clips: first page, filters, sorts, searches, what-if; memory.

    python benchmarks/review_server.py [--rows 1000000]

The server is `vidcurate review` in a process of its own, asked over HTTP; a time is that of a request and its
answer of 60 cards, the median of 20 requests that all differ. The first page is asked for as soon as the
server has printed its address, before any column was read. Five of the 20 sorts are the first by their
column; those are a row of their own. The peer is pandas in a process of its own: the same table held in
memory (reading it is not counted), the same filter or sort, the same 60 rows as JSON.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import numpy as np
import polars as pl
from rows import keep, peak_memory_bytes, row

REPEATS = 20
COLUMNS = ("aesthetic_score", "motion_score", "my_own_score", "duration_seconds", "noun_count")
PAGE = 60
_TEXT = (
    "a the red blue green dog cat person walks runs through forest city street camera slowly pans over "
    "mountain river boat woman man child playing with ball near house under bright sky at night while rain "
    "falls softly close-up of hands making bread kitchen table"
)
WORDS = _TEXT.split()
RARE = ("zebra", "violin", "lantern", "glacier")


def make_run(run: Path, count: int) -> None:
    """Write a filtered run of `count` clips with captions of 50 words."""
    from vidcurate.curation.clip_table import table
    from vidcurate.curation.filter.spec import FilterSpec, Limit
    from vidcurate.curation.filter.stage import run_filter

    rng = np.random.default_rng(0)
    ids = pl.select(pl.concat_str(pl.lit("clip-"), pl.int_range(count).cast(pl.String))).to_series()
    words = np.array(WORDS)
    texts = pl.Series([" ".join(words[rng.integers(0, len(words), 48)]) for _ in range(20_000)])
    rare = pl.Series(rng.choice([*RARE, *["stone"] * 96], count))
    frame = pl.DataFrame(
        {
            "clip_id": ids,
            "video_path": ids + ".mp4",
            "source_dataset": rng.choice(["openvid", "miradata", "own"], count),
            "caption": texts.gather(rng.integers(0, len(texts), count)) + " " + rare + " " + ids,
            "ingest_problem": pl.Series([None], dtype=pl.String).new_from_index(0, count),
            "width": pl.Series(rng.choice([640, 1280, 1920], count).astype(np.int32)),
            "height": pl.Series(rng.choice([480, 720, 1080], count).astype(np.int32)),
            "num_frames": rng.integers(24, 600, count),
            "duration_seconds": rng.gamma(3.0, 2.5, count),
            "noun_count": pl.Series(rng.poisson(14, count).astype(np.int32)),
            "aesthetic_score": rng.normal(5.0, 0.7, count),
            "motion_score": rng.gamma(2.0, 2.0, count),
            "my_own_score": rng.normal(0.0, 1.0, count),
        }
    )
    table.write(frame, run / "score.parquet", table.Provenance(stage="score", settings={}, inputs={}))
    limits = {"duration_seconds": Limit(min=2, max=16), "aesthetic_score": Limit(min=4.5)}
    run_filter(run, FilterSpec(limits=limits))


def queries() -> dict[str, list[dict[str, Any]]]:
    """Return kind → 20 queries that all differ."""
    rng = np.random.default_rng(1)
    cuts = rng.uniform(0.5, 6.0, REPEATS)
    return {
        "filter": [
            {"ranges": {"motion_score": {"min": cut}}, "words": {"is_kept": ["true"]}} for cut in cuts
        ],
        "sort": [
            {
                "sort": COLUMNS[at % len(COLUMNS)],
                "descending": at % 2 == 0,
                "ranges": {"num_frames": {"min": 24 + at}},
            }
            for at in range(REPEATS)
        ],
        "search": [{"text": f"{RARE[at % len(RARE)]} {WORDS[at + 2]}"} for at in range(REPEATS)],
    }  # fmt: skip


def in_server(run: Path) -> dict[str, Any]:
    """Return the seconds of each kind of request, the rows of each query, the server's peak memory."""
    begin = perf_counter()
    command = [
        sys.executable,
        "-m",
        "vidcurate",
        "review",
        str(run),
        "--videos",
        str(run),
        "--port",
        "0",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["url"]
        started = perf_counter() - begin
        origin = address.partition("/?")[0]
        try:
            with httpx.Client(follow_redirects=True, timeout=120) as client:
                client.get(address)
                found: dict[str, Any] = {"start": started, "seconds": {}, "totals": {}}

                def ask(query: dict[str, Any]) -> tuple[float, int]:
                    start = perf_counter()
                    answer = client.get(f"{origin}/api/clips", params={"q": json.dumps(query), "limit": PAGE})
                    answer.raise_for_status()
                    return perf_counter() - start, answer.json()["total"]

                found["first"] = ask({})[0]
                for kind, some in queries().items():
                    asked = [ask(query) for query in some]
                    found["seconds"][kind] = [one[0] for one in asked]
                    found["totals"][kind] = [one[1] for one in asked]
                moved = []
                for at in range(REPEATS):
                    limits = {"aesthetic_score": {"min": 4.0 + at / 20, "max": None}}
                    start = perf_counter()
                    trial = client.post(
                        f"{origin}/api/trial", json={"limits": limits}, headers={"origin": origin}
                    )
                    trial.raise_for_status()
                    moved.append(perf_counter() - start)
                found["seconds"]["what-if"] = moved
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            found["peak_bytes"] = int(next(x for x in status if x.startswith("VmHWM")).split()[1]) * 1024
        finally:
            process.terminate()
    return found


def in_pandas(run: Path) -> dict[str, Any]:
    """Return the same of pandas."""
    import pandas as pd

    clips = pd.read_parquet(run / "score.parquet")
    clips["is_kept"] = pd.read_parquet(run / "filter.parquet", columns=["is_kept"])["is_kept"]

    def shown(query: dict[str, Any]) -> tuple[float, int]:
        start = perf_counter()
        mask = pd.Series(True, index=clips.index)
        for name, ends in query.get("ranges", {}).items():
            mask &= clips[name] >= ends["min"]
        if "words" in query:
            mask &= clips["is_kept"]
        for word in query.get("text", "").split():
            mask &= clips["caption"].str.contains(word, case=False, regex=False)
        rows = clips[mask]
        if "sort" in query:
            rows = rows.sort_values(query["sort"], ascending=not query["descending"], kind="stable")
        rows.head(PAGE).to_json(orient="records")
        return perf_counter() - start, len(rows)

    def trial(least: float) -> float:
        start = perf_counter()
        kept = clips["duration_seconds"].between(2, 16) & (clips["aesthetic_score"] >= least)
        chosen = clips[kept]
        chosen.groupby("source_dataset")["duration_seconds"].agg(["size", "sum"])
        (kept & ~clips["is_kept"]).sum(), (~kept & clips["is_kept"]).sum()
        return perf_counter() - start

    found: dict[str, Any] = {"first": shown({})[0], "seconds": {}, "totals": {}}
    for kind, some in queries().items():
        asked = [shown(query) for query in some]
        found["seconds"][kind] = [one[0] for one in asked]
        found["totals"][kind] = [one[1] for one in asked]
    found["seconds"]["what-if"] = [trial(4.0 + at / 20) for at in range(REPEATS)]
    return {**found, "peak_bytes": peak_memory_bytes()}


WORK: dict[str, Callable[[Path], dict[str, Any]]] = {"server": in_server, "pandas": in_pandas}


def in_a_process(which: str, run: Path, count: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--which", which, "--run", str(run), "--rows", str(count)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--which", choices=[*WORK, "make"], help=argparse.SUPPRESS)
    arguments.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.which == "make":
        make_run(given.run, given.rows)
        print("{}")
        return
    if given.which:
        print(json.dumps(WORK[given.which](given.run)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        in_a_process("make", run, given.rows)
        ours, peer = (in_a_process(which, run, given.rows) for which in WORK)
    assert ours["totals"] == peer["totals"], "the two find other clips"
    of = f"{given.rows:,} clips"
    rows = [
        row(f"first page, {of}", ours["first"], "s", peer="60 rows in pandas, the table in memory",
            peer_value=peer["first"], goal="under 1 s", higher_is_better=False),
    ]  # fmt: skip
    first = [times["seconds"]["sort"][: len(COLUMNS)] for times in (ours, peer)]
    rows.append(
        row(f"first sort by a column, {of}", statistics.median(first[0]), "s", peer="the same in pandas",
            peer_value=statistics.median(first[1]), goal="under 0.3 s", higher_is_better=False)
    )  # fmt: skip
    for kind, what in (
        ("filter", "filter by a range and the verdict"),
        ("sort", "sort by a column and filter by a range"),
        ("search", "search two words in the captions"),
        ("what-if", "what-if of one limit"),
    ):
        rows.append(
            row(f"{what}, {of}", statistics.median(ours["seconds"][kind]), "s", peer="the same in pandas",
                peer_value=statistics.median(peer["seconds"][kind]),
                goal="" if kind == "what-if" else "under 0.3 s", higher_is_better=False)
        )  # fmt: skip
        print(f"{kind}: slowest {max(ours['seconds'][kind]):.3f} s of {REPEATS}", file=sys.stderr)
    print(f"start until the address is printed: {ours['start']:.1f} s", file=sys.stderr)
    rows.append(
        row(f"peak memory, {of}", ours["peak_bytes"] / 2**20, "MiB", peer="the same in pandas",
            peer_value=peer["peak_bytes"] / 2**20, higher_is_better=False)
    )  # fmt: skip
    keep("review_server", rows)


if __name__ == "__main__":
    main()
