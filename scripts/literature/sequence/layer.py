"""One layer for each kind of attention on sequences and grids."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.kernels import Kernel
from scripts.literature.sequence.prefix_sums import check_causal, sequence_attention
from scripts.literature.sequence.relative_bias import RelativeBias, log_linear_attention, softmax_attention


class SequenceAttention(nn.Module):
    """Projections and heads around a mechanism.

    Args:
        dim: width of the model.
        n_heads: number of heads.
        causal: whether a token sees only itself and the tokens before it.
    """

    def __init__(self, dim: int, n_heads: int, causal: bool) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.causal = causal
        self.projection = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Apply the mechanism: (batch, heads, n, head_dim) → the same; softmax means exp(q·k)."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """(batch, n, dim) → (batch, n, dim)."""
        query, key, value = self.projection(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        scale = self.head_dim**-0.25
        return self.output(self.attend(query * scale, key * scale, value).transpose(1, 2).flatten(2))


class SoftmaxSequenceAttention(SequenceAttention):
    """Dense softmax with a relative bias, which layers may share; quadratic in the tokens."""

    def __init__(self, dim: int, n_heads: int, bias: RelativeBias, causal: bool) -> None:
        super().__init__(dim, n_heads, causal)
        self.bias = bias

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See :class:`SequenceAttention`."""
        bias, shape = self.bias(query.shape[-2])
        return softmax_attention(query, key, value, bias, shape, self.causal)


class KernelisedSequenceAttention(SequenceAttention):
    """Kernelised attention with any kernel, linear in the tokens.

    Positions enter only through kernels that know them: with a
    :class:`~scripts.literature.sequence.positioned_kernels.ConcatenatedKernel` this is FLT as published, with a
    :class:`~scripts.literature.sequence.positioned_kernels.CosformerKernel` cosFormer.

    The kernel is a feature map of vectors of width head_dim. Other arguments as for :class:`SequenceAttention`.

    Raises:
        ValueError: the kernel sees the future, and ``causal`` forbids it.
    """

    def __init__(self, dim: int, n_heads: int, kernel: Kernel, causal: bool) -> None:
        super().__init__(dim, n_heads, causal)
        if causal:
            check_causal(kernel, n_heads, self.head_dim)
        self.kernel = kernel

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See :class:`SequenceAttention`."""
        return sequence_attention(self.kernel, query, key, value, self.causal)


class LogLinearAttention(SequenceAttention):
    """Log-linear Performer; with ``normalise`` of unit queries and keys (NPRF, Algorithm 1).

    That bounds the variance of φ (§3.3). Kernel and bias as for the layers above.

    Raises:
        ValueError: the kernel sees the future, and ``causal`` forbids it.
    """

    def __init__(
        self, dim: int, n_heads: int, kernel: Kernel, bias: RelativeBias, causal: bool, normalise: bool = True
    ) -> None:
        super().__init__(dim, n_heads, causal)
        if causal:
            check_causal(kernel, n_heads, self.head_dim)
        self.kernel = kernel
        self.bias = bias
        self.normalise = normalise

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See :class:`SequenceAttention`."""
        if self.normalise:
            query, key = functional.normalize(query, dim=-1), functional.normalize(key, dim=-1)
        bias, shape = self.bias(query.shape[-2])
        return log_linear_attention(self.kernel, query, key, value, bias, shape, self.causal)
