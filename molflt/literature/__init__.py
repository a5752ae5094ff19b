"""The mechanisms of the literature, beside the one the package is for: removable as one folder.

Nothing imports this package but :mod:`molflt.attention.registry`, which finds its mechanisms by name.
"""
