"""Feature maps of kernelised attention: κ(q, k) = φ_Q(q)·φ_K(k).

All of them, those of the literature included, have one interface, :class:`~molflt.attention.kernels.kernel.Kernel`,
on queries and keys of shape (batch, heads, n, c). Atoms, sequences and grids use the same ones.
"""
