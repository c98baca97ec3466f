"""Export: the kept clips as folders and manifests that other video trainers read.

`stage.run_export` is the command, `clips` plans, `write_clip` copies or transcodes one clip, `trainers`
writes manifests and configurations, one file for each kind of trainer.
"""
