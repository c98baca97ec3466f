"""How a training process ends, as one number that a launcher, a supervisor and a batch system understand.

From 75 on they are temporary failures in the sense of sysexits.h: the folder of the run is sound.
"""

from collections.abc import Iterable

DONE = 0
FAILED = 1
WRONG_REQUEST = 2
REQUEUE = 75
"""saved after a signal: give the same command again"""
RESTART = 76
"""this process cannot go on (it hung, or another rank was lost): begin again from the newest checkpoint"""
BAD_NODE = 77
"""a node failed its preflight or computed wrongly: begin again without it"""
HALT = 78
"""the guard has stopped the run: to begin again would end the same way, a person has to look"""
INTERRUPTED = 130


def foremost(codes: Iterable[int]) -> int:
    """Return the code to act on of ranks that ended at about the same time; negative ones are signals.

    When one rank ends for a reason, the others lose it and end with 76: 78, 77, 2, then a failure (1, a
    signal, any other code), 76, 75, 0. Of several failures it is the first given. Raises ValueError for none.
    """
    weights = {HALT: 6, BAD_NODE: 5, WRONG_REQUEST: 4, RESTART: 2, REQUEUE: 1, DONE: 0}
    return max(codes, key=lambda code: weights.get(code, 3))
