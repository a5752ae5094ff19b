"""Numerical methods that evaluate the far field f̂(r_i − r_j) for all pairs (DESIGN §3).

Every method is a module that takes a :class:`~molflt.attention.geometry.Geometry` and the widths of a
:class:`~molflt.attention.far.members.GaussianRPE` and returns the value of each basis function on each pair,
``(n_structures, n_max, n_max, n_weights)``. f̂ of a head is a linear combination of them with that head's weights.
"""
