"""Publish shards on the Hugging Face hub: the README that its readers take features from, and the upload.

Main names: `readme.run_readme`, `upload.push`. May import the clip table, the report's card and the shards.
"""
