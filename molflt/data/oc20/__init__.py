"""Records of OC20: reading and writing of LMDB files, and their pickles without execution."""
