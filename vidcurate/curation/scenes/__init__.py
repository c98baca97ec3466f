"""Scenes: cut raw long videos into clips.

`split.run_split_scenes` finds scenes and writes their table, `extract.run_extract` cuts the clips,
`detect` finds the cuts of one video.
"""
