"""trainer: shards in; a trained STDiT3, its checkpoints and its samples out."""

from trainer.cli import moved_commands

moved_commands.install()
