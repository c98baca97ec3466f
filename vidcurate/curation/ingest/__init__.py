"""Ingest: read a metadata table and its videos into the clip table.

`stage.run_ingest` is the stage, `detect` recognises the schema, `adapters` has one file per schema,
`reconcile` checks rows against files.
"""
