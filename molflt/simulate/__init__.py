"""Models in simulations: an ASE calculator, a model for torch-sim, and an optimiser of structures."""
