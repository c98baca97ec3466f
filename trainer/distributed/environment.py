"""Environment variables in force (NCCL, torch, CUDA, OpenMP), and who set each.

For `python -m trainer --print-env [RECIPE]`. /proc/PID/environ holds a process's environment at its start.
What this process changed later was set by vidcurate or its recipe; else the setter is the first ancestor
whose own environment lacks the value.
"""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.distributed.environment_names import KNOWN, NAMES, RENAMED
from trainer.run_folder import process_table

IN_QUESTION = re.compile(r"^(NCCL|TORCH|PYTORCH|GLOO|CUDA|OMP)_")
NEAR = 0.84
INTERFACES = Path("/sys/class/net")
CONF_FILES = ("/etc/nccl.conf", "~/.nccl.conf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable in force. `value` None: not set, `default` applies. `warning` "": none."""

    name: str
    value: str | None
    set_by: str
    meaning: str
    default: str
    warning: str


# ── warnings ────────────────────────────────────────────────────────────────────────────────────────────────

# Name → (values to warn of, empty for any value; reason).
UNWISE: dict[str, tuple[tuple[str, ...], str]] = {
    "NCCL_P2P_DISABLE": (("1",), "GPUs of a host talk through its memory, many times slower: unset it"),
    "NCCL_SHM_DISABLE": (("1",), "ranks of a host talk over the network: unset it"),
    "NCCL_IB_DISABLE": (("1",), "hosts talk over TCP, many times slower than InfiniBand: unset it"),
    "NCCL_ALGO": ((), "NCCL cannot choose any more; it is for debugging: unset it"),
    "NCCL_PROTO": ((), "NCCL cannot choose any more, and a wrong one has given wrong sums: unset it"),
    "NCCL_DEBUG": (("TRACE", "INFO"), "fills the logs; WARN logs errors"),
    "NCCL_CHECKS_DISABLE": ((), "old NCCL only; it does nothing"),
    "NCCL_LAUNCH_MODE": (("GROUP",), "can deadlock with several communicators: unset it"),
    "TORCH_NCCL_BLOCKING_WAIT": (("1",), "the CPU waits in every collective: unset it"),
    "NCCL_BLOCKING_WAIT": (("1",), "the CPU waits in every collective: unset it"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": (("0",), "a rank whose collective fails waits for ever: unset it"),
    "NCCL_ASYNC_ERROR_HANDLING": (("0",), "a rank whose collective fails waits for ever: unset it"),
    "TORCH_NCCL_ENABLE_MONITORING": (("0",), "a rank that hangs in NCCL is not ended: unset it"),
    "TORCH_DISTRIBUTED_DEBUG": (("DETAIL",), "every collective is checked over all ranks: slow"),
    "CUDA_LAUNCH_BLOCKING": (("1",), "the CPU waits for every kernel: slow, for debugging only"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (("1",), "every tensor asks the driver for memory: very slow"),
    "CUDA_VISIBLE_DEVICES": (("", "-1"), "hides every GPU: the training runs on the CPU"),
    "OMP_WAIT_POLICY": (("ACTIVE", "active"), "threads that wait take the cores of the decode workers"),
    "TORCH_COMPILE_DEBUG": (("1",), "writes every compiled graph: slow"),
}


def _interfaces(value: str) -> str:
    """Return the warning about a list of interfaces: none of this host's matches, or only the loopback."""
    try:
        there = sorted(path.name for path in INTERFACES.iterdir())
    except OSError:
        return ""
    wanted = value.removeprefix("^").removeprefix("=")
    is_exact, words = "=" in value[:2], [word for word in wanted.split(",") if word]
    if value.startswith("^") or not words:
        return ""
    meant = [
        name for name in there for word in words if (name == word if is_exact else name.startswith(word))
    ]
    if not meant:
        return f"this host has no such interface; it has {', '.join(there)}"
    if set(meant) == {"lo"}:
        return "only the loopback: other hosts cannot be reached"
    return ""


def warning(name: str, value: str) -> str:
    """Return the warning about a variable as one line, or ""."""
    if name not in NAMES and name not in RENAMED:
        near = difflib.get_close_matches(name, sorted(NAMES), n=1, cutoff=NEAR)
        if near:
            return f"no known variable has this name; did you mean {near[0]}?"
    if name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") and (odd := _interfaces(value)):
        return odd
    if name == "OMP_NUM_THREADS" and value.isdigit() and int(value) > (os.cpu_count() or 1):
        return f"more threads than this host's {os.cpu_count()} cores"
    values, why = UNWISE.get(name, (("\0",), ""))
    if why and (not values or value in values):
        return why
    if name in RENAMED:
        return f"torch calls it {RENAMED[name]} now"
    return ""


# ── who set it ──────────────────────────────────────────────────────────────────────────────────────────────


def environment_at_start(pid: int) -> dict[str, str] | None:
    """Return a process's environment at its start; None without permission to read it."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    pairs = (entry.split(b"=", 1) for entry in data.split(b"\0") if b"=" in entry)
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in pairs}


def _process_name(pid: int) -> str:
    text = " ".join(word for word in process_table.command_line(pid)[:6] if word)
    for name in (
        "torchrun",
        "torch.distributed.run",
        "trainer.cluster.launch.launch_agent",
        "trainer launch",
        "srun",
        "slurmstepd",
    ):
        if name in text:
            return name
    return Path(text.split(" ")[0]).name if text else "?"


def set_by(name: str, value: str, recipe: Mapping[str, str]) -> str:
    """Return who set a variable: the recipe, vidcurate, or the ancestor process that did."""
    pid = os.getpid()
    own = environment_at_start(pid)
    if own is not None and own.get(name) != value:
        return "the recipe" if recipe.get(name) == value else "vidcurate"
    while own is not None:
        above = process_table.parent(pid)
        theirs = environment_at_start(above) if above > 0 else None
        if theirs is None:
            break
        if theirs.get(name) != value:
            return f"{_process_name(above)} (process {above})"
        pid, own = above, theirs
    return "the user's environment"


def _conf_files() -> dict[str, tuple[str, str]]:
    """Return NCCL_… name → (value, file) of NCCL's own configuration files; the user's comes last."""
    found: dict[str, tuple[str, str]] = {}
    named = os.environ.get("NCCL_CONF_FILE")
    for text in ("/etc/nccl.conf", named) if named else CONF_FILES:
        try:
            lines = Path(text).expanduser().read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        for line in lines:
            name, equals, value = line.partition("=")
            if equals and name.strip().startswith("NCCL_"):
                found[name.strip()] = (value.strip(), text)
    return found


# ── variables in force ──────────────────────────────────────────────────────────────────────────────────────


def apply(wanted: Mapping[str, str]) -> None:
    """Set a recipe's `environment` variables that the user has not set, before NCCL and torch start.

    A variable that the user has set by its older name counts as set.
    """
    set_by_older_name = {RENAMED[name] for name in RENAMED.keys() & os.environ.keys()}
    for name, value in wanted.items():
        if name not in set_by_older_name:
            os.environ.setdefault(name, value)


def in_force(recipe: Mapping[str, str] | None = None) -> list[Variable]:
    """Return the variables in force in this process, and the documented ones that are not set."""
    wanted, files = dict(recipe or {}), _conf_files()
    found = []
    for name in sorted({name for name in os.environ if IN_QUESTION.match(name)} | set(files) | set(KNOWN)):
        known = KNOWN.get(name)
        value = os.environ.get(name)
        who = "default" if value is None else set_by(name, value, wanted)
        if value is None and name in files:  # the environment overrides the files
            value, who = files[name]
        odd = "" if value is None else warning(name, value)
        if value is not None and name in wanted and wanted[name] != value:
            odd = odd or f"the recipe says {wanted[name]}; the environment overrides it"
        found.append(
            Variable(
                name=name,
                value=value,
                set_by=who,
                meaning=known.meaning if known else "not documented here",
                default=known.default if known else "",
                warning=odd,
            )
        )
    return found


def to_text(variables: Sequence[Variable]) -> str:
    """Return the variables as text: those that are set, the defaults, the warnings."""
    is_set = [variable for variable in variables if variable.value is not None]
    lines = ["set:"]
    for variable in is_set:
        lines.append(f"  {variable.name}={variable.value}  by {variable.set_by}: {variable.meaning}")
    lines += ["not set, so the default applies:"] if is_set else ["nothing is set; the defaults apply:"]
    if not is_set:
        lines = lines[1:]
    for variable in variables:
        if variable.value is None:
            lines.append(f"  {variable.name}: {variable.default}  ({variable.meaning})")
    odd = [variable for variable in variables if variable.warning]
    return "\n".join([*lines, *(f"warning: {variable.name}: {variable.warning}" for variable in odd)])
