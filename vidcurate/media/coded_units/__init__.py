"""Coded units of H.264, HEVC, VP8, VP9 and MPEG: what each picture is.

Fields, leading and hidden pictures, orientation: the container does not tell them, and a decoder tells them
only with its pictures.
"""
