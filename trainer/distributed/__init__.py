"""Distributed: ranks, process groups, FSDP2, memory and time of a micro-batch.

`rank` reads torchrun or Slurm, `mesh` has the collectives, `parallelize` applies FSDP2,
`activation_checkpointing` chooses what blocks keep, `memory` and `step_time` predict.
"""
