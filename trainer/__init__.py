"""trainer: shards in; a trained STDiT3, its checkpoints and its samples out."""
