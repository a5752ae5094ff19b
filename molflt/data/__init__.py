"""Structures in: OC20 LMDB, ASE, RDKit and SMILES; neighbour lists; batches. Knows no model."""
