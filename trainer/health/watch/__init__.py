"""Watch: end hung runs, name slow ranks, log stalls.

`monitor` starts `monitor_process` beside each rank; `heartbeat` is what a rank shows of itself,
`end_hung_run` what the monitors do together, `stacks` and `flight_recorder` where it hangs.
"""
