"""How a training process ends, as one number that a launcher, a supervisor and a batch system understand.

From 75 on they are temporary failures in the sense of sysexits.h: the folder of the run is sound.
"""

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
