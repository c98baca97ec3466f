"""Health of machines: GPUs, Xids, clocks.

`gpu` reads nvidia-smi, `xid` and `xid_log` the driver's errors, `clock_offset` compares clocks. `watch`
monitors a run, `checks` are the preflight's checks.
"""
