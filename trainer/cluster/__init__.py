"""Cluster tools: status, health, clocks, stacks and stop on all nodes of a run.

`command` is `python -m trainer cluster`, `ask_nodes` asks all nodes at once over ssh or Slurm, `node`
answers on each. `launch` starts trainings. Nothing is installed on a node but what trains there.
"""
