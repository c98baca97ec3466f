"""`python -m trainer cluster …`: what runs on the nodes, how they are, and how a run is ended or looked into.

One program asks all nodes at once, over ssh or Slurm; on each node `trainer.node.agent` answers with one
document. Nothing is installed on a node but what trains there, and nothing waits without a limit.
"""
