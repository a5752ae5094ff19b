"""Matrices ω (m, c) of random features, one file each: rows that are, or stand for, draws of N(0, I)."""
