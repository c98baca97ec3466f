"""`python -m trainer serve`: samples every checkpoint of a run beside its training, or over a copy of it.

`presets` says what is sampled, `found` which checkpoints are there and whole, `weights` holds one model whose
weights are swapped, `rounds` makes the clips, `checked` the validation loss, `follow` is the server's act,
`endpoint` answers over HTTP, `media` shows it all to trackers, `command` reads the command line.

It writes to RUN/samples/PRESET and RUN/serve, never to what the training owns.
"""
