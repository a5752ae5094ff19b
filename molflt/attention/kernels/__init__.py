"""Feature maps of kernelised attention: κ(q, k) = φ_Q(q)·φ_K(k).

All have one interface, :class:`~molflt.attention.kernels.base.Kernel`, on queries and keys of shape (batch, heads, n,
c).
"""
