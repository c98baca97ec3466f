"""Trainers: manifest, configuration and next command over one exported folder.

`registry.TRAINERS` lists them; `exported` is what they are made from. A trainer's function returns the files
to write, by path relative to the export folder; nothing here writes or decodes.
"""
