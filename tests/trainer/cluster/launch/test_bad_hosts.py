"""Which hosts a supervisor leaves out, by what the ranks of an attempt have written, whatever clocks say."""

import json
import os
from pathlib import Path
from typing import Any

from trainer.cluster.launch.bad_hosts import PREFLIGHT, bad_hosts, seen
from trainer.cluster.launch.start_on_hosts import Ended
from trainer.run_folder import jsonl

ALIKE = {"a": "localhost", "b": "localhost"}  # as containers may be called


def ended(codes: dict[int, int], names: dict[str, str]) -> Ended:
    ranks = {host: range(2 * number, 2 * number + 2) for number, host in enumerate(names)}
    return Ended(ranks_of=ranks, names=names, codes=codes)


def write(run: Path, *nodes: dict[str, Any]) -> None:
    partial = run / "partial"
    partial.write_text(json.dumps({"nodes": nodes}))
    partial.replace(run / PREFLIGHT)


def node(host: str, ranks: list[int], *bad: int) -> dict[str, Any]:
    checks = [{"rank": rank, "verdict": "bad" if rank in bad else "ok"} for rank in ranks]
    return {"host": host, "ranks": ranks, "verdict": "bad" if bad else "ok", "checks": checks}


def test_of_hosts_of_one_name_the_one_whose_rank_is_bad_is_left_out(tmp_path: Path) -> None:
    before = seen(tmp_path)
    write(tmp_path, node("localhost", [0, 1, 2, 3], 3))
    assert list(bad_hosts(tmp_path, ended(dict.fromkeys(range(4), 77), ALIKE), before)) == ["b"]


def test_a_verdict_of_this_attempt_counts_whatever_the_clock_of_the_file_server_says(tmp_path: Path) -> None:
    names = {"a": "one", "b": "two"}
    all_bad = ended(dict.fromkeys(range(4), 77), names)
    before = seen(tmp_path)
    write(tmp_path, node("one", [0, 1]), node("two", [2, 3], 2))
    os.utime(tmp_path / PREFLIGHT, (0, 0))  # far behind this machine's
    assert list(bad_hosts(tmp_path, all_bad, before)) == ["b"]

    after = seen(tmp_path)
    os.utime(tmp_path / PREFLIGHT, (9e9, 9e9))
    assert bad_hosts(tmp_path, all_bad, seen(tmp_path)) == {}  # of the attempt before
    write(tmp_path, node("one", [0, 1], 0), node("two", [2, 3]))
    assert list(bad_hosts(tmp_path, all_bad, after)) == ["a"]


def test_a_drain_of_this_attempt_counts_whatever_the_clock_of_the_first_host_says(tmp_path: Path) -> None:
    names = {"a": "one", "b": "two"}
    drain = {"event": "guard", "step": 3, "action": "drain", "time": 1.0}
    jsonl.append_line(tmp_path / jsonl.EVENTS, drain | {"verdict": {"ranks": [0], "reason": "then"}})
    before = seen(tmp_path)
    lost = ended(dict.fromkeys(range(4), 76), names)
    assert bad_hosts(tmp_path, lost, before) == {}
    jsonl.append_line(tmp_path / jsonl.EVENTS, drain | {"verdict": {"ranks": [2], "reason": "now"}})
    assert bad_hosts(tmp_path, lost, before) == {"b": "rank 2: now"}


def test_without_a_verdict_file_a_preflights_line_names_the_host_and_any_other_77_its_own(
    tmp_path: Path,
) -> None:
    names = {"a": "one", "b": "two", "c": "three"}
    before = seen(tmp_path)

    def bad(codes: dict[int, int], lines: dict[int, str], names: dict[str, str] = names) -> list[str]:
        how = ended(codes, names)
        how.last_words = {rank: [line, "", "a warning at the exit"] for rank, line in lines.items()}
        return sorted(bad_hosts(tmp_path, how, before))

    reported = "error: bad node two, three: two rank 2: copy: …"
    mine = "error: Xid 79 on 0000:1b:00.0 on one"
    everyone = dict.fromkeys(range(6), 77)
    assert bad(everyone, dict.fromkeys(range(6), reported)) == ["b", "c"]
    assert bad({0: 77, 2: -15, 4: 76}, {0: reported}) == ["b", "c"]
    assert bad({0: 77, 2: -15, 4: 76}, {0: mine}) == ["a"]
    assert bad({0: 77, 2: 77, 4: 76}, {0: mine, 2: mine}) == ["a", "b"]
    assert bad({0: 77, 2: -15}, {0: "error: bad node elsewhere: …"}) == []  # of no host here
    assert bad({0: 77, 2: -15}, {0: "error: bad node localhost: …"}, ALIKE) == []  # which of them?
    assert bad(everyone, dict.fromkeys(range(6), mine)) == []
    assert bad({0: 77, 2: 77, 4: 77}, {0: mine, 2: reported, 4: reported}) == ["a", "b", "c"]


def test_a_pipe_in_place_of_a_preflight_names_no_host_and_is_waited_for_by_nobody(tmp_path: Path) -> None:
    before = seen(tmp_path)
    os.mkfifo(tmp_path / PREFLIGHT)
    assert seen(tmp_path).preflight is None
    assert bad_hosts(tmp_path, ended(dict.fromkeys(range(4), 77), ALIKE), before) == {}
