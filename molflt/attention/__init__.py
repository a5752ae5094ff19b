"""Attention over atoms: content kernels, positional encodings and their numerical methods."""
