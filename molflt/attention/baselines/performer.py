"""Kernelised attention without positional encoding, with any feature map (FLT Eq. 2)."""

from __future__ import annotations

from torch import Tensor

from molflt.attention.geometry import Geometry
from molflt.attention.kernels.kernel import Kernel, kernelised_attention
from molflt.attention.mechanism import ContentAttention


class KernelisedAttention(ContentAttention):
    """D̂⁻¹(Q'(K'ᵀV)), Q' and K' the features of q d^{-1/4} and k d^{-1/4}. Linear in the atoms.

    With positive features and orthogonal weights it is Performer.

    Args:
        dim: width of the model.
        n_heads: heads.
        kernel: the feature map.
        dropout: on the values.
    """

    def __init__(self, dim: int, n_heads: int, kernel: Kernel, dropout: float) -> None:
        super().__init__(dim, n_heads, dropout)
        self.kernel = kernel

    def attend(self, query: Tensor, key: Tensor, value: Tensor, geometry: Geometry) -> Tensor:
        """See :class:`ContentAttention`."""
        return kernelised_attention(self.kernel, query, key, value, geometry.atom_mask[:, None, :, None])
