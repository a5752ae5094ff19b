"""Models as ASE calculators."""

from molflt.calculator.ase_calculator import MolFLTCalculator

__all__ = ["MolFLTCalculator"]
