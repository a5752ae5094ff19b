"""Tools for the bundled data and generated pages, figures, notebooks and the lock file."""
