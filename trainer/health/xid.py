"""Xid policies: what the NVIDIA driver's Xid numbers mean for a run, as one table.

An Xid is a driver message in the kernel log. Most mean that a program was wrong, some that a GPU is. The
policy follows NVIDIA's catalogue and the list of leptonai/gpud; where the two disagree (NVSentinel#1357) the
table has the more careful action, except for 45, which any killed program leaves (NVSentinel#1748).
"""

from dataclasses import dataclass
from typing import Literal

Action = Literal["ignore", "warn", "restart_job", "drain_node"]
ACTIONS: tuple[Action, ...] = ("ignore", "warn", "restart_job", "drain_node")
"""from the mildest to the most severe"""


@dataclass(frozen=True, slots=True)
class Policy:
    """Meaning of an Xid, the run's automatic action, and advice for a person."""

    action: Action
    meaning: str
    advice: str


RESTART = "start the job again; if it comes back on the same GPU, exclude the node"
RESET = "drain the node and reset the GPU (nvidia-smi -r) or reboot"
REBOOT = "drain the node and reboot it; if it comes back, have the card and its slot looked at"

POLICIES: dict[int, Policy] = {
    8: Policy("restart_job", "the GPU stopped processing", RESTART),
    13: Policy("restart_job", "a program faulted on the GPU (graphics engine exception)", RESTART),
    31: Policy("restart_job", "a program read or wrote memory that is not its own (MMU fault)", RESTART),
    32: Policy("restart_job", "a bad stream of commands reached the GPU", RESTART),
    38: Policy("restart_job", "the driver's firmware failed", RESTART),
    43: Policy("restart_job", "a program's channel was reset after a fault", RESTART),
    45: Policy("ignore", "a program's work was cleared away, as after any kill", "nothing to do"),
    48: Policy("drain_node", "a memory error that ECC cannot correct (double bit)", RESET),
    54: Policy("drain_node", "the auxiliary power of the card is not connected", "look at the card's power"),
    56: Policy("warn", "the display engine failed", "watch the card"),
    57: Policy("warn", "the video memory interface could not be programmed", "watch the card"),
    61: Policy("drain_node", "the GPU's microcontroller has stopped (breakpoint)", RESET),
    62: Policy("drain_node", "the GPU's microcontroller has halted", RESET),
    63: Policy("warn", "a memory row was marked for replacement", "reset the GPU when the job has ended"),
    64: Policy("drain_node", "a memory row could not be replaced", f"{RESET}; if it stays, return the card"),
    68: Policy("restart_job", "the video decoder failed", RESTART),
    69: Policy("restart_job", "a program faulted on the GPU (class error)", RESTART),
    74: Policy(
        "drain_node", "an NVLink failed", "drain the node; look at the link, its bridge and the switch"
    ),
    79: Policy("drain_node", "the GPU has fallen off the bus", REBOOT),
    92: Policy("warn", "many memory errors that ECC corrected", "run the vendor's diagnosis on the card"),
    93: Policy("warn", "the GPU's stored configuration could not be written", "watch the card"),
    94: Policy("restart_job", "a memory error hit one program and was contained", RESTART),
    95: Policy("drain_node", "a memory error that was not contained", RESET),
    109: Policy("restart_job", "a program's context could not be switched", RESTART),
    110: Policy("drain_node", "a security fault of the GPU", REBOOT),
    119: Policy("drain_node", "the GPU's system processor does not answer (GSP time-out)", RESET),
    120: Policy("drain_node", "the GPU's system processor failed (GSP error)", RESET),
    121: Policy("warn", "the link to the CPU (C2C) had an error that was corrected", "watch the card"),
    122: Policy("drain_node", "the GPU's firmware could not be read or written (SPI)", RESET),
    123: Policy("drain_node", "the GPU's power controller does not answer", RESET),
    136: Policy("drain_node", "the link training of the GPU failed", REBOOT),
    137: Policy("restart_job", "a fault came over NVLink from another GPU's program", RESTART),
    140: Policy("drain_node", "memory errors that ECC cannot correct or contain", RESET),
    143: Policy("drain_node", "the GPU could not be initialised", REBOOT),
    144: Policy("warn", "an NVLink reported an error (SAW)", "watch the link"),
    145: Policy("warn", "an NVLink reported an error (RLW)", "watch the link"),
    149: Policy("warn", "an NVLink reported an error (NETIR)", "watch the link"),
    154: Policy(
        "drain_node", "the driver asks for a recovery of the GPU", "do what the line says: reset or reboot"
    ),
}
UNKNOWN = Policy("warn", "an Xid that this table does not have", "look it up in NVIDIA's catalogue of Xids")


def policy(number: int) -> Policy:
    """Return the policy of Xid `number`; an unknown Xid is a warning."""
    return POLICIES.get(number, UNKNOWN)


def worst(actions: "list[Action] | tuple[Action, ...]") -> Action:
    """Return the most severe of `actions`, "ignore" of none."""
    return max(actions, key=ACTIONS.index, default="ignore")
