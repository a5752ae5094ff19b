"""Reading of structures, neighbour lists and batches, independent of any model."""
