"""Exit codes of a training process, for launchers, supervisors and batch systems.

Codes from 75 on are temporary failures in the sense of sysexits.h: the run folder is sound.
"""

from collections.abc import Iterable

DONE = 0
FAILED = 1
WRONG_REQUEST = 2
REQUEUE = 75
"""saved after a signal: run the same command again"""
RESTART = 76
"""this process cannot continue (it hung, or another rank was lost): restart from the newest checkpoint"""
BAD_NODE = 77
"""a node failed its preflight or computed wrongly: restart without it"""
HALT = 78
"""the guard has stopped the run: a restart would end the same way; a person must look"""
INTERRUPTED = 130


def most_severe(codes: Iterable[int]) -> int:
    """Return the code to act on, of ranks that ended at about the same time; negative codes are signals.

    When one rank ends for a reason, the others lose it and end with 76. So the order is 78, 77, 2, then a
    failure (1, a signal, any other code), 76, 75, 0. Of several failures, return the first given. Raises
    ValueError for none.
    """
    weights = {HALT: 6, BAD_NODE: 5, WRONG_REQUEST: 4, RESTART: 2, REQUEUE: 1, DONE: 0}
    return max(codes, key=lambda code: weights.get(code, 3))
