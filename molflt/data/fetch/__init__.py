"""Public data sets: download, check, unpack, and the commands to train on them."""
