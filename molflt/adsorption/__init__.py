"""Adsorption of a molecule on metals: surfaces, guesses of where the molecule sits, and which of them counts."""
