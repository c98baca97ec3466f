"""Clock offset between two hosts by NTP's time stamps; time daemon of this host.

Four time stamps, as in NTP (RFC 5905, section 8): sent and arrived are read here, received and answered
there. The offset is ((received − sent) + (answered − arrived)) / 2, with an error of at most half the round
trip; so of several exchanges the quickest counts. The stamps travel as a line of text: over ssh, TCP or
anything else that carries lines.

Nodes of a published run whose daemon polled every 34 minutes stepped their clocks backwards, and NCCL failed;
chrony, which slews the clock instead, solved that.
"""

import ctypes
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trainer.health.timed_command import run_command

NANO = 1e-9

CHRONY = (
    "use chrony: it asks often and turns the clock's speed instead of stepping it; allow steps only at boot "
    "(makestep 1.0 3)"
)


@dataclass(frozen=True, slots=True)
class Stamps:
    """One exchange, in nanoseconds of the epoch: sent and arrived by this clock, the others by theirs."""

    sent: int
    received: int
    answered: int
    arrived: int

    @property
    def round_trip_seconds(self) -> float:
        """Seconds of travel in both directions, without the other side's processing."""
        return max(0, (self.arrived - self.sent) - (self.answered - self.received)) * NANO

    @property
    def offset_seconds(self) -> float:
        """How far their clock is ahead of this one; negative: behind."""
        return ((self.received - self.sent) + (self.answered - self.arrived)) / 2 * NANO


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """Their clock minus this one, true to ± `error_seconds` (half the round trip of the best exchange)."""

    seconds: float
    error_seconds: float
    samples: int

    def to_text(self) -> str:
        return f"{1e3 * self.seconds:+.3f} ms ± {1e3 * self.error_seconds:.3f} ms"


def best(exchanges: Iterable[Stamps]) -> Offset:
    """Return the offset of the exchange with the shortest round trip. Raises ValueError of none."""
    given = list(exchanges)
    if not given:
        raise ValueError("an offset needs at least one exchange of time stamps, got none")
    quickest = min(given, key=lambda stamps: stamps.round_trip_seconds)
    return Offset(
        seconds=quickest.offset_seconds,
        error_seconds=quickest.round_trip_seconds / 2,
        samples=len(given),
    )


def answer(line: str, received: int) -> str:
    """Return the other side's line to a line that came at `received` (ns): "sent received answered"."""
    return f"{line.strip()} {received} {time.time_ns()}"


def stamps(line: str, arrived: int) -> Stamps:
    """Return the exchange of an answered line. Raises ValueError for a line that is none."""
    match = re.fullmatch(r"\s*(\d+) (\d+) (\d+)\s*", line)
    if match is None:
        raise ValueError(f"the other side's line is {line[:80]!r}; three time stamps in nanoseconds are due")
    sent, received, answered = map(int, match.groups())
    return Stamps(sent, received, answered, arrived)


def measure(exchange: Callable[[str], str], samples: int = 8) -> Offset:
    """Return the other clock's offset from `samples` exchanges.

    `exchange` sends a line and returns the other side's line; its limit is the caller's. Raises ValueError
    for an answer that makes no sense, and what `exchange` raises.
    """
    taken = []
    for _ in range(samples):
        said = exchange(str(time.time_ns()))
        taken.append(stamps(said, time.time_ns()))
    return best(taken)


# ── what keeps this host's clock right ──────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Discipline:
    """Time daemon of this host. `is_synchronised` and `offset_seconds` are None where unknown.

    `advice` is one line of what to do, "" where nothing is wrong.
    """

    daemon: str | None
    is_synchronised: bool | None
    offset_seconds: float | None
    said: str
    advice: str


def discipline(seconds: float = 5.0) -> Discipline:
    """Return what disciplines this host's clock: chrony, systemd-timesyncd, or the kernel's state.

    Each query takes at most `seconds`. Raises nothing.
    """
    chrony = run_command(["chronyc", "-n", "tracking"], seconds)
    if chrony.is_good and (found := from_chrony(chrony.text)):
        return found
    systemd = run_command(["timedatectl", "show"], seconds)
    if systemd.is_good and (found := from_timedatectl(systemd.text)):
        return found
    return _from_kernel([said.problem for said in (chrony, systemd) if said.problem])


def from_chrony(text: str) -> Discipline | None:
    """Return what `chronyc tracking` says, None where it does not say it in the known way."""
    leap = re.search(r"^Leap status\s*:\s*(.+?)\s*$", text, re.M)
    if leap is None:
        return None
    system = re.search(r"^System time\s*:\s*([\d.]+) seconds (slow|fast)", text, re.M)
    # The daemon's word: the system clock is so much slow (behind) or fast (ahead) of the true time.
    offset = float(system[1]) * (-1 if system[2] == "slow" else 1) if system else None
    good = leap[1] != "Not synchronised"
    return Discipline(
        daemon="chrony",
        is_synchronised=good,
        offset_seconds=offset,
        said=f"chrony: {leap[1]}" + (f", {system[0].partition(':')[2].strip()}" if system else ""),
        advice="" if good else "chrony runs but reaches no time server: see `chronyc sources`",
    )


def from_timedatectl(text: str) -> Discipline | None:
    """Return what `timedatectl show` says, None where it does not say it in the known way."""
    facts = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    if facts.get("NTPSynchronized") not in ("yes", "no"):
        return None
    good = facts["NTPSynchronized"] == "yes"
    is_on = facts.get("NTP") == "yes"
    return Discipline(
        daemon="systemd-timesyncd" if is_on else None,
        is_synchronised=good,
        offset_seconds=None,
        said=f"timedatectl: NTP={facts.get('NTP', '?')}, NTPSynchronized={facts['NTPSynchronized']}",
        advice=CHRONY if is_on or not good else "",
    )


TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised


def _from_kernel(said: list[str]) -> Discipline:
    """Ask the kernel whether any daemon disciplines its clock: adjtimex(2), which all may read."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        facts = (ctypes.c_byte * 256)()  # struct timex with modes = 0: read only
        state: int = library.adjtimex(ctypes.byref(facts))
    except (OSError, AttributeError):
        state = -1
    if state < 0:
        words = "; ".join([*said, "the kernel does not say either"])
        return Discipline(daemon=None, is_synchronised=None, offset_seconds=None, said=words, advice=CHRONY)
    good = state != TIME_ERROR
    return Discipline(
        daemon=None,
        is_synchronised=good,
        offset_seconds=None,
        said=f"the kernel: {'synchronised' if good else 'not synchronised'}",
        advice="" if good else CHRONY,
    )
