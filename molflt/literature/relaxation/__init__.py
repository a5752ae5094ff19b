"""Relaxation of structures by what came out of the search for a learned optimiser (docs/literature.md)."""

from molflt.literature.relaxation.optimiser import PairLBFGS

__all__ = ["PairLBFGS"]
