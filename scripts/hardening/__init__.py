"""Attacks on the promises of molflt: hostile and damaged files, kills, leaks, broken code."""
