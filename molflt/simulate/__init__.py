"""Models in simulations: an ASE calculator, a torch-sim model, an optimiser of structures."""
