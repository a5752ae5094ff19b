"""Checks of structures and labels, and the domain of a training set."""
