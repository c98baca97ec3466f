"""Preflight: check GPUs, links, disks, clocks and data before the first step.

`run_checks` runs the checks of `trainer.health.checks` on all ranks; `command` is `--preflight`.
"""
