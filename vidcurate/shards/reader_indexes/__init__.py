"""Index files that other readers of WebDataset tars expect: Energon, DALI, wids.

`export.run_export_index` writes them.
"""
