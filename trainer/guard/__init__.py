"""The guard's judgement: what of a step is suspicious, and what the recipe wants done about it.

Everything here is a pure function of plain values: the figures of a step, which are the same on all ranks,
and a memory of the steps before, which lies in the checkpoint. So all ranks decide alike, and a resumed run
decides as one that never stopped. What is then done stands in guarded.py, rollback.py and rerun.py.
"""
