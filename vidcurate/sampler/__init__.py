"""Sampler: which clips step t reads, as a pure function of index, recipe and seed.

`buckets` assigns shapes, `bucket_cells` and `mixture` decide which level or source has its turn,
`epoch_shuffle` shuffles the clips of an epoch, `order` computes the micro-batches of a step,
`rank_balance` assigns them to ranks, `order_state` is what a checkpoint keeps.
"""
