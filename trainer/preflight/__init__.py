"""The checks before the first step: on each rank, on each node, on the links between them, on the data."""
