"""recipes/slurm.sbatch as bash runs it, with real ranks below an srun that does what Slurm's does to them."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import IO

import pytest

from tests import fake_slurm
from tests.patched_ranks import LOCK_STEP, ROOT, patched, read_in_lock_step
from tests.pressed_runs import has_steps, pressed, wait_for
from tests.trainer.shards_for_tests import command_words, events, make_shards, numbers
from trainer.run_folder.checkpoint import checkpoint

SCRIPT = ROOT / "recipes" / "slurm.sbatch"
LIMIT_SECONDS = 300.0
STEPS = (
    "stages.0.steps=8",
    "stages.0.checkpoint_every=100",
    "stages.0.log_every=1",
    "loader.num_workers=0",
    "sample=null",
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards")


def submit(
    folder: Path, script: Path, words: list[str], out: int | IO[str] = subprocess.PIPE, **more: str
) -> "subprocess.Popen[str]":
    """Run sbatch with two tasks on a node, in `folder`; `out` receives what all say."""
    slurm = fake_slurm.install(folder / "slurm", random.randrange(10**6))
    options = ["--ntasks-per-node=2"]
    return subprocess.Popen(
        [str(folder / "slurm" / "bin" / "sbatch"), *options, str(script), *words],
        stdout=out,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=os.environ
        | slurm
        | {"SBATCH_OPTIONS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        | more,
    )


def end_tasks(folder: Path, job: "subprocess.Popen[str]") -> None:
    """Kill a job that a failed test leaves behind, and its tasks."""
    for pid in map(int, (folder / "slurm" / "tasks").read_text().split()):
        if job.poll() is None:
            os.kill(pid, signal.SIGKILL)
    job.kill()
    job.wait()


def turns(folder: Path) -> list[int]:
    return [int(code) for code in (folder / "slurm" / "turns").read_text().split()]


@pytest.mark.soak
@pytest.mark.parametrize("to", ["every rank", "the script"])
def test_the_save_signal_reaches_the_ranks_and_the_job_asks_for_turns_until_it_is_done(
    shards: Path, tmp_path: Path, to: str
) -> None:
    script = SCRIPT
    if to == "the script":  # some sites have it so
        script = tmp_path / "with_b.sbatch"
        script.write_text(SCRIPT.read_text().replace("--signal=USR1@600", "--signal=B:USR1@600"))
    run, gate = tmp_path / "run", tmp_path / "gate"
    gate.mkdir()
    lock_step = patched(tmp_path / "patch", LOCK_STEP, PYTHONGATE=str(gate))
    job = submit(tmp_path, script, command_words(shards, run, *STEPS), **lock_step)

    def time_is_nearly_up(step: int) -> None:
        if step == 3:
            limit = tmp_path / "slurm" / "time-limit"
            limit.touch()
            until = time.monotonic() + LIMIT_SECONDS
            while limit.exists() and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(0.5)  # the script looks for signals five times a second

    reported = read_in_lock_step(job, gate, limit_seconds=LIMIT_SECONDS, on_step=time_is_nearly_up)

    assert job.returncode == 0, reported
    assert turns(tmp_path) == [0, 0]
    assert [line["signal"] for line in events(run, "stop")] == ["SIGUSR1"]
    (resumed,) = events(run, "resume")
    assert resumed["step"] in (4, 5)  # what was in progress was finished and saved
    assert [line["step"] for line in numbers(run)] == list(range(1, 9))
    assert "the ranks ended with 75; asking for another turn" in reported
    assert any(line.startswith("done: 8 steps") for line in reported)
    assert reported[-1] == "the ranks ended with 0; the run is done"


@pytest.mark.parametrize(
    ("codes", "ends", "said"),
    [
        ("78", [78], "the guard stopped the run, a person has to look"),
        ("2", [2], "the request was wrong"),
        ("77", [77], "leave out the node named above with sbatch --exclude"),
        ("76 75 1 137 1", [0, 0, 0, 0, 1], "3 turns have failed in a row"),
        ("76 0", [0, 0], "the run is done"),
    ],
)
def test_each_exit_code_of_the_ranks_has_its_consequence(
    tmp_path: Path, codes: str, ends: list[int], said: str
) -> None:
    (tmp_path / "codes").write_text(codes)
    program = tmp_path / "python"
    program.write_text(
        "#!/bin/sh\n[ $SLURM_PROCID = 0 ] || exit 0\n"
        f"exit $(cut -d' ' -f$((SLURM_RESTART_COUNT + 1)) {tmp_path}/codes)\n"
    )
    program.chmod(0o755)
    job = submit(tmp_path, SCRIPT, ["a.yaml"], PYTHON=str(program))
    reported, _ = job.communicate(timeout=LIMIT_SECONDS)

    assert turns(tmp_path) == ends, reported
    assert job.returncode == ends[-1]
    assert said in reported.splitlines()[-1]


SAVES = """\
#!/bin/sh
trap 'exit 75' USR1 TERM
touch {folder}/up-$SLURM_PROCID
while :; do sleep 0.1; done
"""


@pytest.mark.parametrize("to", ["tasks script", "script"])
def test_a_job_that_is_cancelled_saves_and_does_not_come_back(tmp_path: Path, to: str) -> None:
    program = tmp_path / "python"
    program.write_text(SAVES.format(folder=tmp_path))
    program.chmod(0o755)
    job = submit(tmp_path, SCRIPT, ["a.yaml"], PYTHON=str(program))
    wanted = [tmp_path / "up-0", tmp_path / "up-1", tmp_path / "slurm" / "tasks"]
    until = time.monotonic() + LIMIT_SECONDS
    while not all(path.exists() for path in wanted) and time.monotonic() < until:
        time.sleep(0.02)

    partial = tmp_path / "slurm" / ".cancel"
    partial.write_text(to)
    partial.rename(partial.with_name("cancel"))

    reported, _ = job.communicate(timeout=LIMIT_SECONDS)
    assert (turns(tmp_path), job.returncode) == ([75], 75), reported
    assert "the ranks ended with 75 after the job's end was requested" in reported.splitlines()[-1]


# More than the test lets them make.
MANY = ("stages.0.steps=100000", *STEPS[1:])


@pytest.mark.parametrize(
    "to",
    [
        pytest.param("tasks script", id="scancel or a preemption"),
        pytest.param("script", id="the script alone", marks=pytest.mark.soak),
    ],
)
def test_a_sigterm_lets_real_ranks_save_and_the_job_does_not_come_back(
    shards: Path, tmp_path: Path, to: str
) -> None:
    run, said = tmp_path / "run", tmp_path / "said"
    with said.open("w") as out:
        job = submit(tmp_path, SCRIPT, command_words(shards, run, *MANY), out)
    try:
        wait_for(lambda: has_steps(run, 2), said.read_text)
        partial = tmp_path / "slurm" / ".cancel"
        partial.write_text(to)
        partial.rename(partial.with_name("cancel"))
        wait_for(lambda: job.poll() is not None, said.read_text)
    finally:
        end_tasks(tmp_path, job)

    assert (turns(tmp_path), job.returncode) == ([75], 75), said.read_text()
    assert checkpoint.load(run).state["step"] == len(numbers(run))
    (stop,) = events(run, "stop")
    own = ["SIGTERM"] if "tasks" in to else []
    assert stop["signal"] in ["SIGUSR1", *own]  # what the script passed on, or its own
    assert "the ranks ended with 75 after the job's end was requested" in said.read_text().splitlines()[-1]
    assert "Traceback" not in said.read_text()


def test_ctrl_c_at_srun_lets_the_ranks_save_and_stop_with_one_line(shards: Path, tmp_path: Path) -> None:
    """The second Ctrl-C, which srun makes a SIGINT and a SIGTERM of, is the ranks' first."""
    run = tmp_path / "run"
    slurm = fake_slurm.install(tmp_path / "slurm", 1)
    step = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "1", "OMP_NUM_THREADS": "1"}
    srun = (str(tmp_path / "slurm" / "bin" / "srun"), "--cpus-per-task=1")
    words = ["trainer", *command_words(shards, run, *MANY)]
    with pressed(words, tmp_path / "job", before=srun, **slurm, **step) as job:
        job.wait_for_steps(run, 2)
        job.press()
        job.wait_for(lambda: "srun: interrupt (one more within 1 sec to abort)" in job.text())
        assert "SIGINT" not in job.text()  # the ranks run on
        job.press()
        assert job.end() == 75, job.text()

    saved = checkpoint.load(run).state["step"]
    assert saved == len(numbers(run))
    assert [line["signal"] for line in events(run, "stop")] == ["SIGINT"]
    said_last = [line for line in job.text().splitlines() if line.startswith("interrupted")]
    assert said_last == [
        f"interrupted; the same command continues from {run}/step-{saved:08d} of 100,000 steps"
    ]
    assert "Traceback" not in job.text()


def test_failures_in_a_row_are_counted_over_the_tasks_of_an_array(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    for task in ("1", "2", "3"):
        array = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": task}
        job = submit(tmp_path, SCRIPT, ["a.yaml"], PYTHON=str(program), **array)
        reported, _ = job.communicate(timeout=LIMIT_SECONDS)

    assert turns(tmp_path) == [0, 0, 1]
    assert "3 turns have failed in a row" in reported
    assert (tmp_path / "slurm" / "cancelled").read_text() == "77"


@pytest.mark.parametrize(("code", "end", "cancelled"), [(75, 0, False), (0, 0, True), (78, 78, True)])
def test_in_a_job_array_the_next_task_is_the_next_turn(
    tmp_path: Path, code: int, end: int, cancelled: bool
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nexit {code}\n")
    program.chmod(0o755)
    array = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "1"}
    job = submit(tmp_path, SCRIPT, ["a.yaml"], PYTHON=str(program), **array)
    reported, _ = job.communicate(timeout=LIMIT_SECONDS)

    assert (turns(tmp_path), job.returncode) == ([end], end), reported
    rest = tmp_path / "slurm" / "cancelled"
    assert rest.exists() == cancelled
    assert not cancelled or rest.read_text() == "77"
