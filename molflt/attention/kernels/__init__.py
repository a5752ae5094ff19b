"""Feature maps of kernelised attention: κ(q, k) = φ_Q(q)·φ_K(k), one file per map.

All share one interface, :class:`~molflt.attention.kernels.kernel.Kernel`, on queries and keys of shape
(batch, heads, n, c), so that atoms, sequences and grids use the same ones.
"""
