"""Cluster tools: status, health, stacks and stop on all nodes of a run.

`command` is `python -m trainer cluster`, `ask_nodes` queries all nodes at once over ssh or Slurm, `node`
answers on each node. `launch` starts trainings. A node needs no installation beyond the training's.
"""
