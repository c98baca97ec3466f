"""Difficulty: split clips into levels and folds.

`stage.run_split` is the stage, `cut` places the borders, `jumps` measures how far levels are apart,
`advice` says what to do about it.
"""
