"""Ingest adapters: one file per metadata schema."""
