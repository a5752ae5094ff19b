"""Learned optimisers with a Fourier RPE in their memory (FLT §5.4, appendix B.4, Fig. 3), in miniature.

The members of a population attend to each other through a mask over their positions in R^d
(:mod:`~scripts.literature.optimisers.population`), and an optimiser of single parameters attends to its own past
(:mod:`~scripts.literature.optimisers.history`).
"""
