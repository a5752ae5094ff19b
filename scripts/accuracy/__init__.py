"""Parts of ``scripts/benchmark_accuracy.py``."""
