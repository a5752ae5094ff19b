"""Where a prediction comes from: the atoms' energies, and the attention of one of them."""
