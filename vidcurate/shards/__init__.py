"""Shards: WebDataset tars, their index and their manifest.

`layout` assigns clips to shards, `write_shard` and `build` write them, `index` reads index.parquet,
`read_clip` reads one clip, `verify` checks a set, `reader_indexes` writes the index files of other
readers.
"""
