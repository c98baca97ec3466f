"""What a node answers to `python -m trainer cluster`: light modules that know nothing of the other nodes."""
