"""Curation: the stages that turn captioned video into a scored table of clips.

One sub-room a stage: ingest, probe, caption_scores, frame_scores, model_scores, dedup, filter,
difficulty, scenes, fetch and report. In each, `stage` has `run_<stage>` and `spec` its settings.
`clip_table` is the table that all of them read and write.
"""
