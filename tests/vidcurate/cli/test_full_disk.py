"""A full disk is one line in every stage, and the same command then works."""

import json
import subprocess
import sys
from pathlib import Path

from vidcurate.curation.demo_data import write as demo_data_write

STAGES = (
    "ingest data/captions.csv --videos data/videos --out run",
    "probe run",
    "score run",
    "score-frames run",
    "dedup run",
    "filter run",
    "split-by-difficulty run --set ties=split --set levels=1",
    "build-shards run --out shards",
    "report run",
    "card run",
    "export run table.csv",
)
# Each command twice: with files of at most 2,000 bytes, which fails a write in the middle as a full disk
# does, and without that limit. The forks share one import.
PROGRAM = """
import json, os, resource, sys, tempfile
from vidcurate.cli.main import main
import vidcurate.curation.report.build, vidcurate.shards.build

def run(words, limit):
    out, err = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(err, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.closerange(3, 64)
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        main(words)
        os._exit(0)
    os.close(err)
    with os.fdopen(out) as lines:
        reported = [line for line in lines.read().splitlines() if line.startswith(("error", "Traceback"))]
    return reported, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

for words in json.load(sys.stdin):
    print(json.dumps([run(words.split(), 2000), run(words.split(), None)]), flush=True)
"""


def test_a_full_disk_is_one_line_in_every_stage_and_the_same_command_continues(tmp_path: Path) -> None:
    demo_data_write.write_demo_data(tmp_path / "data", clips=12)

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(STAGES),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    for stage, line in zip(STAGES, done.stdout.splitlines(), strict=True):
        ((reported, code), again) = json.loads(line)
        assert code == 1, stage
        assert len(reported) == 1, (stage, reported)
        assert "cannot be written" in reported[0], stage
        assert again == [[], 0], stage
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".partial")]
