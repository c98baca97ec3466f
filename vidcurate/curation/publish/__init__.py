"""Publish shards on the Hugging Face hub: README with features, and upload.

Main names: `readme.run_readme`, `upload.push`. May import the clip table, the report's card and the shards.
"""
