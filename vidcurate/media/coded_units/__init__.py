"""Coded units (NAL) of H.264 and HEVC: fields, leading pictures and orientation, read without a decoder.

The container does not tell them, and a decoder tells them only with its pictures.
"""
