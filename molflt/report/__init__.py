"""Self-contained HTML reports, single figures, and interactive 3D views of structures."""
