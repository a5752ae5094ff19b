"""Parts of bench_attention.py, bench_model.py and profile_layer.py."""
