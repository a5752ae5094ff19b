"""Numerical methods for the far field: how f̂(r_i − r_j) is obtained for all pairs (DESIGN §3).

Every method is a module that turns a :class:`~molflt.attention.geometry.Geometry` and the widths of a
:class:`~molflt.attention.far.members.GaussianRPE` into ``(n_structures, n_max, n_max, n_weights)``: the value of each
basis function on each pair. f̂ of a head is then a linear combination with that head's weights.
"""
