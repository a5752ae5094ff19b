"""molflt: linear, exactly invariant Fourier-RPE transformers for molecules and materials."""

__version__ = "0.1.0"
