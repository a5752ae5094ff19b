"""Attention over sequences and grids, as FLT's paper compares it (§5.1, §5.2).

Everything linear in the tokens is a :class:`~molflt.attention.kernels.Kernel`, cosFormer and FLT among them,
and shares one normalised sum, forward or causal. Softmax and the log-linear Performer have sums of their own.

    rpe = LocalRpe(n_heads, n_terms=4, n_frequencies=32, generator=generator)   # one for all layers
    content = build_kernel("posrf-orf", dim // n_heads + rpe.width, n_heads, 64, 0, generator)
    layer = KernelisedSequenceAttention(dim, n_heads, ConcatenatedKernel(content, rpe), causal=True)
    x = x + layer(x)                                                            # (batch, n, dim)
"""
