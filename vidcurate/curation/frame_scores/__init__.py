"""Frame scores: motion, cuts, black frames and sharpness from one decode per clip.

`stage.run_frames` is the stage, `decode_once` the decode that all scorers share; one scorer per file.
"""
