"""Checkpoints: folders written atomically, with a SHA-256 for each file.

`checkpoint` saves, finds and verifies, `retention` deletes old ones, `async_save` saves in the
background, `parts` stores tensors by torch's DCP, `convert` reads and writes PixArt and Open-Sora
weights (`convert_command`: `python -m trainer convert`).
"""
