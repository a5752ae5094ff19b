"""Measurements of speed, memory and accuracy. Results are CSV files, written by :mod:`scripts.results`."""
