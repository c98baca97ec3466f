"""Which nodes are meant, how Slurm's are reached, and what becomes of an answer that is none."""

import json
import os
import re
import shlex
import time
from pathlib import Path

import pytest

from tests.substitute_ranks import LIMIT_SECONDS, all_end
from tests.trainer.smi_for_tests import put
from trainer.__main__ import main
from trainer.cluster import ask_nodes, command
from trainer.cluster.ask_nodes import unmarked
from trainer.cluster.node import processes
from trainer.cluster.node.agent import END, marked
from trainer.cluster.nodes import Node, Way, agent_on, command_on, environment_for, read_nodes
from vidcurate.errors import InputError, VidcurateError

Capture = pytest.CaptureFixture[str]

# Says what a real one would: the node list, its names, a step that runs, one that is refused, one that hangs.
SQUEUE = """
case "$*" in
  *--jobs=4711*) echo "RUNNING n[1-3]" ;;
  *--jobs=4712*) echo "RUNNING n[1-2]" ;;
  *--jobs=4713*) echo "RUNNING n3" ;;
  *--jobs=12*) echo "PENDING " ;;
  *) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1 ;;
esac
"""
SCONTROL = """
case "$*" in
  "show hostnames n[1-3]") printf "n1\\nn2\\nn3\\n" ;;
  "show hostnames n[1-2]") printf "n1\\nn2\\n" ;;
  "show hostnames n3") echo n3 ;;
  *) exit 1 ;;
esac
"""
SRUN = """
[ -z "$SLURM_NTASKS$SLURM_STEP_ID" ] || { echo "srun: error: the asking job's own variables" >&2; exit 9; }
while :; do
  case "$1" in
    --nodelist=*) node=${1#*=} ;;
    --overlap) overlap=yes ;;
    --jobid=471[1-3]) job=yes ;;
    --*) ;;
    *) break ;;
  esac
  shift
done
[ "$overlap$job" = yesyes ] || { echo "srun: error: would wait for the job to end" >&2; exit 9; }
case "$node" in
  n1) echo "a prolog's line"; exec "$@" ;;
  n2) echo "srun: error: Unable to create step for job 4711: Job/step already completing" >&2; exit 1 ;;
  *) exec sleep 1000 ;;
esac
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, script in (("squeue", SQUEUE), ("scontrol", SCONTROL), ("srun", SRUN)):
        put(tmp_path / "bin", name, script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


def test_a_hostfile_a_list_and_this_machine_are_nodes(tmp_path: Path) -> None:
    hostfile = tmp_path / "nodes.txt"
    hostfile.write_text("node1 slots=8\nme@node2\n")

    assert read_nodes(str(hostfile)) == (
        Node(name="node1", slots=8, through="ssh"),
        Node(name="me@node2", through="ssh"),
    )
    assert read_nodes("node1.example.org,local") == (
        Node(name="node1.example.org", through="ssh"),
        Node(name="local", through="here"),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is no host"),
        ("a,,b", "'' is no host"),
        ("-oProxyCommand=x", "is no host"),
        ("a,a", "a is there twice"),
        ("a,\x1b[31mb", "is no host"),
        ("no/such/file", "NODES no/such/file: there is no such hostfile"),
        ("nohosts.txt", "NODES nohosts.txt: there is no such hostfile; write a host a line into it, or"),
        ("node1,rack.hosts", "NODES rack.hosts: there is no such hostfile"),
        ("slurm", "no SLURM_JOB_ID"),
        ("slurm:all", "'all' is no job id"),
    ],
)
def test_what_names_no_node_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        read_nodes(text, {})


@pytest.mark.usefixtures("slurm")
def test_the_nodes_of_a_job_are_those_that_slurm_names() -> None:
    nodes = [Node(name=name, through="srun", job="4711") for name in ("n1", "n2", "n3")]
    assert read_nodes("slurm:4711") == tuple(nodes)
    assert read_nodes("slurm", {"SLURM_JOB_ID": "4711"}) == tuple(nodes)
    with pytest.raises(InputError, match=r"slurm:12: the job has no nodes \(PENDING\)"):
        read_nodes("slurm:12")
    with pytest.raises(VidcurateError, match="Invalid job id specified"):
        read_nodes("slurm:13")


def test_without_slurm_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(VidcurateError, match="squeue: there is no such program here"):
        read_nodes("slurm:4711")


@pytest.mark.usefixtures("slurm")
def test_a_jobs_nodes_answer_through_srun_or_are_a_line_each(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "16")  # as inside a job, whose sizes are not those of this step
    monkeypatch.setenv("SLURM_STEP_ID", "3")
    status = ["--seconds", "0"]

    assert main(["cluster", "status", "slurm:4712", "--connect-seconds", "30", *status]) == 1
    node1, *lines = capsys.readouterr().out.splitlines()
    words = ["--limit-seconds", "0.1", "--connect-seconds", "0.15"]
    assert main(["cluster", "status", "slurm:4713", *words, *status]) == 1

    assert re.match(r"n1 +\d+ GPU", node1)
    assert [*lines[-3:], *capsys.readouterr().out.splitlines()] == [
        "n2  no answer: srun: error: Unable to create step for job 4711: Job/step already completing (ended",
        "  with 1)",
        "1 of 2 nodes answered",
        "n3  no answer: did not answer within 0.3 s",
        "0 of 1 nodes answered",
    ]


def test_the_ssh_of_the_user_is_asked_with_limits_and_never_asks_back() -> None:
    way = Way(ssh=("ssh", "-p", "2222"), connect_seconds=7)
    words = command_on(Node(name="me@node1", through="ssh"), ["python", "a b"], way)

    assert words[:3] == ["ssh", "-p", "2222"]
    assert {"BatchMode=yes", "ConnectTimeout=7"} <= set(words)
    assert words[-3:-1] == ["--", "me@node1"]
    assert words[-1] == f"cd {shlex.quote(os.getcwd())} && exec python 'a b'"


def test_a_step_of_slurm_does_not_inherit_the_sizes_of_the_job_that_asks() -> None:
    given = {"SLURM_NTASKS": "16", "SLURM_CONF": "/etc/slurm.conf", "HOME": "/root"}
    assert environment_for(Node(name="n1", through="srun", job="1"), given) == {
        "SLURM_CONF": "/etc/slurm.conf",
        "HOME": "/root",
    }


# ── answers that are none ───────────────────────────────────────────────────────────────────────────────────

HERE = Node(name="here", through="here")


def wait_for(path: Path) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.02)


def say(script: str, seconds: float = 60.0) -> ask_nodes.Answer:
    """Return what a node that runs this shell script gives as its answer."""

    def talk(line: ask_nodes.Line) -> ask_nodes.Document:
        line.send({"action": "status"})
        return line.receive(time.monotonic() + seconds)

    return ask_nodes.ask_each([HERE], lambda node: ["sh", "-c", script], talk)[0]


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo 'Welcome to node1'", "answered, but not as the trainer does: 'Welcome to node1'"),
        ("exit 0", "ended with 0 and said nothing"),
        ("echo 'sh: python: not found' >&2; exit 127", "sh: python: not found (ended with 127)"),
        ("echo '<<<trainer-answer {\"a\": 1'; sleep 0.1; exit 3", "answered, but not as the trainer does"),
        ("echo '<<<trainer-answer [1, trainer-answer>>>'", "answered, but with no document"),
        ("echo '<<<trainer-answer [1] trainer-answer>>>'", "answered, but with no document"),
        ('echo \'<<<trainer-answer {"refused": "no such run"} trainer-answer>>>\'', "no such run"),
        ("printf 'a\\033[2Jb\\n'", "answered, but not as the trainer does: 'a?[2Jb'"),
        ("exec /no/such/program 2>&1 >&2; exit 1", "not found"),
    ],
)
def test_an_answer_that_is_none_is_one_line_that_says_what_came(
    script: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask_nodes, "LEAVE_SECONDS", 30.0)  # all of them end by themselves

    answer = say(script)

    assert answer.document is None
    assert error in answer.error
    assert "\n" not in answer.error


def test_a_node_that_prints_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask_nodes, "MOST_BYTES", 1 << 20)
    answer = say("yes welcome", seconds=600)

    assert answer.error == "printed 1 MiB that are no answer"
    assert answer.seconds < 300


def test_a_node_that_says_nothing_is_given_up_at_its_limit_and_what_it_runs_is_ended(tmp_path: Path) -> None:
    script = "echo $$ > pid.partial; mv pid.partial pid; exec sleep 1000"

    def talk(line: ask_nodes.Line) -> ask_nodes.Document:
        wait_for(tmp_path / "pid")
        return line.receive(time.monotonic() + 0.5)

    began = time.monotonic()
    answer = ask_nodes.ask_each([HERE], lambda node: ["sh", "-c", f"cd {tmp_path}; {script}"], talk)[0]

    assert answer.error == "did not answer within 0.5 s"
    assert time.monotonic() - began < 300
    assert all_end([int((tmp_path / "pid").read_text())])


def test_a_command_that_cannot_be_run_is_an_error_of_its_node() -> None:
    answer = ask_nodes.ask_each([HERE], lambda node: ["/no/such/ssh"], lambda line: {})[0]
    assert answer.error == "/no/such/ssh cannot be run (No such file or directory)"


def test_an_answer_comes_back_whatever_substitutes_it_and_around_it(tmp_path: Path) -> None:
    document = {"command": "grep '<<<trainer-answer x trainer-answer>>>' ünï\n"}
    data = b"Last login <<<trainer-answer \x00" + marked(document)
    (tmp_path / "said").write_bytes(data)

    assert unmarked(data.partition(END)[0]) == document
    assert say(f"printf 'banner without an end'; cat {tmp_path}/said").document == document


def test_an_agent_that_is_asked_for_something_unknown_says_so(capsys: Capture) -> None:
    answer = ask_nodes.ask_nodes([HERE], {"action": "dance"}, Way(connect_seconds=30), limit_seconds=60)[0]
    assert answer.error == "knows no 'dance'; its trainer is of another version"


def test_an_agent_and_what_it_runs_end_when_the_connection_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"sleep 1000 & echo $! > {tmp_path}/pid.partial; mv {tmp_path}/pid.partial {tmp_path}/pid; wait"
    put(tmp_path / "bin", "nvidia-smi", script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    request = {"action": "status", "runs": [], "seconds": 0.0}

    def talk(line: ask_nodes.Line) -> ask_nodes.Document:
        ask_nodes.begin_request(line, request, Way(connect_seconds=60), 600.0)
        wait_for(tmp_path / "pid")
        return {"agent": line.process.pid}

    agent = ask_nodes.ask_each([HERE], lambda node: agent_on(node, Way()), talk)[0]

    assert agent.document is not None
    assert all_end([agent.document["agent"], int((tmp_path / "pid").read_text())])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status", "local", "--seconds", "-1"], "--seconds -1: must be 0 or more"),
        (["health", "local", "--min-disk-gib", "1e308"], "--min-disk-gib 1e+308: must be 0 or more, at most"),
        (["health", "local", "--ssh", "ssh '"], "--ssh ssh ': No closing quotation."),
    ],
)
def test_flags_that_make_no_sense_are_refused(words: list[str], said: str, capsys: Capture) -> None:
    assert main(["cluster", *words]) == 2
    assert f"error: {said}" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["a\0b", "\x1b[31ma", "a slots=" + "9" * 5000, "a slots=-1", "a b c"])
def test_a_forged_line_of_a_hostfile_is_named(line: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "nodes.txt").write_text(f"b\n{line}\n")

    assert main(["cluster", "health", str(tmp_path / "nodes.txt")]) == 2

    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path / 'nodes.txt'}:2: ")
    assert len(said) < 300


WELL = {"concerns": [], "num_gpus": 0, "gpu_name": None, "driver": None, "not_read": []}
CONCERN = {"gpu": None, "text": "\x1b[31mhot", "action": "warn", "advice": "wait"}


@pytest.mark.parametrize(
    "forged",
    [{"concerns": None}, {"concerns": ["x"]}, {"num_gpus": "8"}, {"num_gpus": 10**400}, {"not_read": 1}],
)
def test_a_nodes_answer_in_another_form_is_that_nodes_error(
    forged: dict[str, object], tmp_path: Path, capsys: Capture
) -> None:
    for name, document in {"good": WELL | {"concerns": [CONCERN]}, "odd": WELL | forged}.items():
        (tmp_path / name).write_bytes(marked({"progress": "reached"}) + marked(document))
    script = f'case "$*" in *" good "*) cat {tmp_path}/good ;; *) cat {tmp_path}/odd ;; esac'
    put(tmp_path / "bin", "ssh", script)

    words = ["--ssh", str(tmp_path / "bin/ssh"), "--connect-seconds", "30"]
    assert main(["cluster", "health", "good,odd", *words]) == 77

    said = capsys.readouterr().out
    assert "odd  bad: no answer: answered in another form; is its trainer of another version?" in said
    assert "warn: \\x1b[31mhot; wait" in said
    assert said.endswith("1 of 2 nodes are bad: odd\n")


def test_the_examples_of_the_help_are_understood_and_the_first_runs(capsys: Capture) -> None:
    examples = [shlex.split(line) for line in command.EXAMPLE.splitlines() if line.startswith("  python ")]
    assert {words[4] for words in examples} == set(command.ACTS)
    for words in examples:
        assert words[:4] == ["python", "-m", "trainer", "cluster"]
        command._parser().parse_args(words[4:])
        with pytest.raises(SystemExit):
            command._parser().parse_args([words[4], "--help"])
        assert shlex.join(words) in capsys.readouterr().out

    assert main(examples[0][3:]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 of 1 nodes answered"


def test_json_has_every_node_with_its_error(capsys: Capture) -> None:
    words = ["--ssh", "sh -c 'echo no >&2; exit 255'", "--json", "--connect-seconds", "30"]
    assert main(["cluster", "status", "node1,local", *words, "--seconds", "0"]) == 1

    first, second = json.loads(capsys.readouterr().out)["nodes"]
    assert (first["node"], first["error"]) == ("node1", "no")
    assert (second["node"], second["error"]) == ("local", None)
    # Other test processes may train on this machine at the same time; this one trains nothing.
    mine = {process.pid for process in processes.below([os.getpid()], processes.everything())}
    assert [run for run in second["runs"] if run["pid"] in mine] == []
