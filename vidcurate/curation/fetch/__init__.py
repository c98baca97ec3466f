"""Fetch: download the kept clips of a data set that is published in zip parts.

`plan` decides what to download, `stage` downloads byte ranges, `zips` reads central directories.
"""
