"""Spectra g of RPE functions f on R^ℓ, any ℓ, each with a closed form of f and a density to draw frequencies from.

The families are those of the FLT paper, §4.3: Gaussian mixtures with means, shift-invariant kernels by Bochner's
theorem, and the local RPE with its powers. The model uses the radial one of
:mod:`molflt.attention.far.members`; these serve other dimensions and comparisons with the paper.

    xi = spectrum.sample(r, generator)
    query, key = features(spectrum, positions, positions, xi)      # query @ key.T ≈ f(r_i − r_j), in O(n·r)
"""
