"""Adsorption of a molecule on metals: surfaces, placements, and the choice among them."""
