"""The generator of the bundled adsorption data."""
