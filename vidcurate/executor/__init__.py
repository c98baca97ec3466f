"""Executor: map a function over clips or shards, in processes or on a Ray cluster.

`map_clips` works in chunks that survive a kill, `lazy_items` makes items as they are needed, `parts_folder`
keeps the finished chunks, `common_failure` stops a stage whose every clip fails alike, `worker_processes`
is the process pool with a timeout per clip, `ray_actors` the same on Ray, `child_processes` starts, watches
and kills the processes, `map_shards` maps over shards, `shared_memory` holds arrays that several processes
read, `progress` prints rate and time left.
"""
