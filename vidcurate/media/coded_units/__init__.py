"""Coded units (NAL) of H.264 and HEVC: fields, leading pictures, orientation.

The container does not tell them, and a decoder tells them only with its pictures.
"""
