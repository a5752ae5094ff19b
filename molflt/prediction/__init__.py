"""Energies of structures by a trained model: batched prediction, evaluation, output files."""
