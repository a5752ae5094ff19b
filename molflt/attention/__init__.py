"""Attention over atoms: content kernels, relative positional encodings and their numerical methods."""
