"""Launch: start a training on many hosts and restart it after failures.

`command` is `python -m trainer launch`, `supervisor` restarts, `start_on_hosts` is one start,
`launch_agent` runs on each host.
"""
