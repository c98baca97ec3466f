"""Node side of the cluster tools: light modules that answer for one machine."""
