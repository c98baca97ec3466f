"""Checks before step 1: device, disk, links, node, clocks, and the verdict."""
