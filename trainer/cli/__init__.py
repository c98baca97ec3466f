"""Command line of the trainer: arguments, exit codes, one-line errors.

`commands` has what all commands share, `training_arguments` the arguments of a training, `exit_codes` its
ends.
"""
