"""What a model does, to look at: self-contained HTML reports, single figures, structures that one can turn."""
