"""Encoders: video VAE and T5 text encoder, and tiny ones for tests.

`registry` has the protocols and makes an encoder from its spec.
"""
