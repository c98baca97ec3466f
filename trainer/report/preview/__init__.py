"""Preview: what a recipe or a run reads and needs, without training.

`dry_run` is `--dry-run`, `plan_command` is `python -m trainer plan`, `inspect_command` is `python -m trainer
inspect`, `clips_command` is `python -m trainer clips`, `environment` is `--print-env`.
"""
