"""Clip table: one row per clip, one Parquet file per stage.

`schema` defines every column, `table` reads and writes stage files with their provenance,
`rejection_ledger` says why each rejected clip was rejected, `costs` what each stage took.
"""
