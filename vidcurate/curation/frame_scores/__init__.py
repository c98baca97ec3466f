"""Frame scores: motion, cuts, black frames, sharpness, from one decode of each clip.

`stage.run_frames` is the stage, `decode_once` the decode that all scorers share; one scorer per file.
"""
