"""Records of OC20: LMDB files read and written, and their pickles, which run nothing."""
