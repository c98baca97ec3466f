"""The same recipe on any engine, in any number of processes or parts, killed or not, gives the same bytes."""

import hashlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from vidcurate.curate import CurateRecipe, curate
from vidcurate.curation.demo_data import write as demo_data_write
from vidcurate.errors import StageError
from vidcurate.executor.map_clips import no_progress
from vidcurate.executor.parts_folder import ExecutorSpec, Part
from vidcurate.recipe.recipe import load

RECIPE = """
run: {run}
workers: {workers}
engine: {engine}
ingest: {{metadata: data/captions.csv, videos: data/videos}}
probe: {{level: full}}
score: {{noun_engine: builtin}}
frames: {{}}
dedup: {{}}
filter: {{limits: {{short_side: {{min: 32}}, num_frames: {{min: 8}}}}}}
split: {{levels: 2, validation_fraction: 0.1}}
"""
SEED = 11


def recipe_of(home: Path, run: str, workers: int = 1, engine: str = "local") -> Path:
    path = home / f"{run}.yaml"
    path.write_text(RECIPE.format(run=run, workers=workers, engine=engine))
    return path


def pipeline(home: Path, run: str, *, workers: int = 1, engine: str = "local", **more: Any) -> dict[str, Any]:
    recipe = load(recipe_of(home, run, workers, engine), CurateRecipe)
    more.setdefault("until", "split")
    return curate(
        recipe,
        progress_bar=lambda what: nullcontext(no_progress),
        on_done=lambda stage, summary: None,
        **more,
    )


def digests(run: Path) -> dict[str, str]:
    """Return the SHA-256 of a run's files but two that say nothing of clips: a lock, and what it cost."""
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name not in (".lock", "costs.jsonl")
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that the tests work in, with demo data and one undisturbed curation of it, `calm`."""
    folder = tmp_path_factory.mktemp("engines")
    demo_data_write.write_demo_data(folder / "data", clips=14)
    before = Path.cwd()
    os.chdir(folder)
    try:
        pipeline(folder, "calm")
        yield folder
    finally:
        os.chdir(before)


def test_the_calm_run_has_every_stage_and_rejects_something(home: Path) -> None:
    tables = {path.stem for path in (home / "calm").glob("*.parquet")}

    assert {"ingest", "probe", "score", "frames", "dedup", "filter", "split", "ledger"} <= tables
    assert not [path for path in (home / "calm").iterdir() if path.name.startswith(".")]


def test_two_processes_give_the_same_bytes(home: Path) -> None:
    pipeline(home, "two", workers=2)

    assert digests(home / "two") == digests(home / "calm")


def test_three_parts_give_the_same_bytes_and_a_missing_or_stale_one_is_named(home: Path) -> None:
    first = [
        pipeline(home, "parts", executor=ExecutorSpec(part=Part(number=number, of=3))) for number in (3, 1)
    ]
    with pytest.raises(StageError, match=r"part 2/3 is missing \(\d+ of 14 clips\).*--part 2/3"):
        pipeline(home, "parts", executor=ExecutorSpec(merge=True))
    assert [summary["probe"]["part"] for summary in first] == ["3/3", "1/3"]
    assert first[1]["probe"]["parts_missing"] == ("2/3",)
    assert not (home / "parts" / "probe.parquet").exists()
    pipeline(home, "parts", executor=ExecutorSpec(part=Part(number=2, of=3)))
    merged = pipeline(home, "parts", executor=ExecutorSpec(merge=True), until="score")
    assert merged["probe"]["rows_in"] == 16
    with pytest.raises(StageError, match="no part is done"):
        pipeline(home, "parts", executor=ExecutorSpec(merge=True))
    for number in (1, 2, 3):
        found = pipeline(home, "parts", executor=ExecutorSpec(part=Part(number=number, of=3)))
        assert found["score-frames"]["part"] == f"{number}/3"
    pipeline(home, "parts", executor=ExecutorSpec(merge=True))

    assert digests(home / "parts") == digests(home / "calm")


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Ray cluster of two nodes with a CPU each, which live in a folder of their own."""
    pytest.importorskip("ray", reason="Ray (the extra `ray`) is not installed")
    import ray
    from ray.cluster_utils import Cluster

    here = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("nodes"))
    small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    cluster.add_node(**small)
    os.chdir(here)
    before = os.environ.get("RAY_ADDRESS")
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()
        os.environ.pop("RAY_ADDRESS")
        if before is not None:
            os.environ["RAY_ADDRESS"] = before


@pytest.mark.engine
def test_a_cluster_of_two_nodes_gives_the_same_bytes(home: Path, two_nodes: str) -> None:
    pipeline(home, "ray", workers=2, engine="ray")

    assert digests(home / "ray") == digests(home / "calm")


def names_in(run: Path) -> set[str]:
    """Return the names of all files that are in a run's folder at this moment, half-written ones too."""
    return {os.path.join(folder, name) for folder, _, names in os.walk(run) for name in names}


def watched(command: list[str], home: Path, run: Path, until: int | None = None) -> tuple[int, str]:
    """Run a command, kill it when `until` new files have come up in the run's folder.

    Returns how many came up, and the newest table by then; that of a command that came to its end is "".
    """
    before, came = names_in(run), set[str]()
    process = subprocess.Popen(command, cwd=home, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        came |= names_in(run) - before
        if until is not None and len(came) >= until:
            process.kill()
            process.wait()
            tables = [
                path.stem for path in sorted(run.glob("*.parquet"), key=lambda path: path.stat().st_mtime)
            ]
            return len(came), ["nothing", *tables][-1]
        time.sleep(0.001)
    assert process.returncode == 0
    return len(came), ""


def killed(home: Path, run: str, engine: str, kills: int) -> list[str]:
    """Run the recipe from the command line, kill it at random points of its way, finish it.

    A point is a number of files, not of seconds: a busy machine is not killed while it still starts. Returns
    the newest table at each kill.
    """
    draw = random.Random(SEED)

    def command(name: str) -> list[str]:
        recipe = recipe_of(home, name, workers=2, engine=engine)
        return [sys.executable, "-m", "vidcurate", "curate", str(recipe), "--until", "split", "--json"]

    whole, _ = watched(command(f"{run}-counted"), home, home / f"{run}-counted")
    points: list[str] = []
    while len(points) < kills:
        _, newest = watched(command(run), home, home / run, draw.randint(1, max(2, whole // 3)))
        if newest:
            points.append(newest)
        else:  # it was through: from the beginning again
            assert digests(home / run) == digests(home / "calm")
            shutil.rmtree(home / run)
    watched(command(run), home, home / run)
    return points


@pytest.mark.soak
@pytest.mark.parametrize("kills", [3, 20])
def test_killed_at_random_moments_and_run_again_it_ends_with_the_same_bytes(home: Path, kills: int) -> None:
    points = killed(home, f"killed-{kills}", "local", kills)

    print(f"killed behind {', '.join(points)}")
    assert digests(home / f"killed-{kills}") == digests(home / "calm")


@pytest.mark.soak
def test_killed_on_a_cluster_and_run_again_it_ends_with_the_same_bytes(home: Path, two_nodes: str) -> None:
    points = killed(home, "killed-ray", "ray", 20)

    print(f"killed behind {', '.join(points)}")
    assert digests(home / "killed-ray") == digests(home / "calm")


@pytest.mark.soak
def test_the_sbatch_template_of_the_docs_gives_the_same_bytes(home: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    template = next(part.partition("```")[0] for part in page.split("```bash\n") if "curate.sh" in part)
    (tmp_path / "curate.sh").write_text(template.replace("parts=64", "parts=2"))
    fake = tmp_path / "sbatch"  # runs what it is given at once, each index of an array after the other
    fake.write_text(FAKE_SBATCH)
    fake.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    recipe = recipe_of(home, "slurm")
    recipe.write_text(recipe.read_text().replace("run: slurm", f"run: {home / 'slurm'}"))

    done = subprocess.run(
        ["bash", str(tmp_path / "curate.sh"), f"{recipe} --set shards.max_clips=8"],
        cwd=home,
        env=os.environ | {"PATH": path, "SBATCH_LOG": str(tmp_path / "log")},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "log").read_text().split() == ["1/2", "2/2", "merge", "1/2", "2/2", "merge"]
    mine = digests(home / "slurm")
    assert {name: mine[name] for name in digests(home / "calm")} == digests(home / "calm")
    assert (home / "slurm" / "report.html").exists()


FAKE_SBATCH = r"""#!/usr/bin/env python3
import os, re, subprocess, sys
arguments = sys.argv[1:]
command = arguments[arguments.index("--wrap") + 1]
found = [re.fullmatch(r"--array=1-(\d+)", word) for word in arguments]
array = next((one for one in found if one), None)
for index in range(1, int(array[1]) + 1) if array else [None]:
    with open(os.environ["SBATCH_LOG"], "a") as log:
        log.write(f"{index}/{array[1]}\n" if array else "merge\n")
    more = {"SLURM_ARRAY_TASK_ID": str(index)} if array else {}
    subprocess.run(["bash", "-c", command], check=True, stdout=sys.stderr, env=os.environ | more)
print(os.getpid())
"""
