"""Tools that make the bundled data and the generated pages, figures, notebooks and lock file."""
