"""Figures and tables of the papers in miniature; the page is docs/literature.md."""
