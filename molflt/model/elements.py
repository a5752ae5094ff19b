"""Element similarity, and the embeddings of atoms that start from it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache

import torch
from ase.data import atomic_numbers, covalent_radii, missing
from torch import Tensor, nn

from molflt.attention.geometry import Geometry
from molflt.attention.near import Neighbourhood
from molflt.vocabulary import MAX_ATOMIC_NUMBER, N_TAGS

_ENDS = (0, 2, 10, 18, 36, 54, 86, 118)
"""Atomic numbers of the noble gases, with which periods end."""

_RADII_ALIKE, _PAULING_ALIKE = 0.2, 0.3
"""Å, and on Pauling's scale: elements with smaller differences are alike."""

_SHARES = (0.32, 0.08, 0.22, 0.22)
"""Shares of group, period, radius and electronegativity in the similarity of two elements; the rest is an element's
own. If a group counted no more than a period, zinc would be taken to resemble copper and nickel, not cadmium."""

_PAULING = """
H 2.20
Li 0.98 Be 1.57 B 2.04 C 2.55 N 3.04 O 3.44 F 3.98
Na 0.93 Mg 1.31 Al 1.61 Si 1.90 P 2.19 S 2.58 Cl 3.16
K 0.82 Ca 1.00 Sc 1.36 Ti 1.54 V 1.63 Cr 1.66 Mn 1.55 Fe 1.83 Co 1.88 Ni 1.91 Cu 1.90 Zn 1.65
Ga 1.81 Ge 2.01 As 2.18 Se 2.55 Br 2.96 Kr 3.00
Rb 0.82 Sr 0.95 Y 1.22 Zr 1.33 Nb 1.60 Mo 2.16 Tc 1.90 Ru 2.20 Rh 2.28 Pd 2.20 Ag 1.93 Cd 1.69
In 1.78 Sn 1.96 Sb 2.05 Te 2.10 I 2.66 Xe 2.60
Cs 0.79 Ba 0.89 La 1.10 Ce 1.12 Pr 1.13 Nd 1.14 Sm 1.17 Gd 1.20 Dy 1.22 Ho 1.23 Er 1.24 Tm 1.25 Lu 1.27
Hf 1.30 Ta 1.50 W 2.36 Re 1.90 Os 2.20 Ir 2.20 Pt 2.28 Au 2.54 Hg 2.00
Tl 1.62 Pb 2.33 Bi 2.02 Po 2.00 At 2.20
Fr 0.70 Ra 0.90 Ac 1.10 Th 1.30 Pa 1.50 U 1.38 Np 1.36 Pu 1.28
"""
"""Electronegativities on Pauling's scale (CRC Handbook of Chemistry and Physics, after Allred 1961)."""


def group_and_period(atomic_number: int) -> tuple[int, int]:
    """Group, 1 to 18, and period, 1 to 7; lanthanides and actinides count as group 3.

    Args:
        atomic_number: Z, 1 to 118.
    """
    period = bisect_left(_ENDS, atomic_number)
    before_end, after_start = _ENDS[period] - atomic_number, atomic_number - _ENDS[period - 1]
    if after_start <= 2 and before_end:
        return after_start, period
    return max(3, 18 - before_end), period


def descriptors() -> Tensor:
    """Group, period, covalent radius in Å and electronegativity, (119, 4) float64.

    Radii are those of Cordero et al. 2008, from ASE. Missing values are NaN, as for atomic number 0.
    """
    words = _PAULING.split()
    pauling = {atomic_numbers[symbol]: float(value) for symbol, value in zip(words[::2], words[1::2], strict=True)}
    found = [(math.nan,) * 4]
    for z in range(1, MAX_ATOMIC_NUMBER + 1):
        radius = math.nan if covalent_radii[z] == missing else covalent_radii[z]
        found.append((*group_and_period(z), radius, pauling.get(z, math.nan)))
    return torch.tensor(found, dtype=torch.float64)


def element_similarity() -> Tensor:
    """Similarity of every two elements, (119, 119) float64: one for an element and itself.

    It is the sum of what the two share: one for the same group and for the same period, and exp(−Δ²/2ℓ²) each for
    radii and electronegativities, each times its part of :data:`_SHARES`.
    """
    table = descriptors()
    places, properties = table[:, :2], table[:, 2:] / torch.tensor([_RADII_ALIKE, _PAULING_ALIKE], dtype=table.dtype)
    same = (places[:, None] == places).to(table.dtype)
    near = torch.exp(-(properties[:, None] - properties).square() / 2).nan_to_num()
    return (torch.cat([same, near], dim=2) @ torch.tensor(_SHARES, dtype=table.dtype)).fill_diagonal_(1.0)


@cache
def _root() -> Tensor:
    """Triangular L of element_similarity = L Lᵀ, on the CPU even if a model is on the meta device."""
    with torch.device("cpu"):
        return torch.linalg.cholesky(element_similarity())


def element_embedding(dim: int) -> nn.Embedding:
    """Return a vector for each atomic number, initially normal with covariance :func:`element_similarity`.

    What is learnt for one element is thus a first guess for similar ones, and a model need not discover that Nb and
    Ta, say, are alike. CGCNN (Xie & Grossman 2018, arXiv 1710.10324) introduced such descriptors as inputs; as the
    start of trained vectors they impose no constraint.

    Args:
        dim: length of the vectors; drawn from torch's global generator.
    """
    table = nn.Embedding(MAX_ATOMIC_NUMBER + 1, dim)
    with torch.no_grad():
        # In double precision and rounded once: in single precision, the order of sums depends on the processor.
        table.weight.copy_(_root().to(table.weight.device) @ table.weight.double())
    return table


def lend_vectors(model: nn.Module, trained: Sequence[int]) -> None:
    """Give every element that a model was not trained on the vectors of the most similar one that it was, in place.

    Its own vectors still are as random as they started, but for the similarity of that start, while those of all
    others have moved.

    Args:
        model: all of its tables with a row for each element are changed.
        trained: atomic numbers, at least one.
    """
    known = torch.tensor(sorted(trained))
    nearest = known[element_similarity()[:, known].argmax(dim=1)]
    with torch.no_grad():
        for table in model.modules():
            if isinstance(table, nn.Embedding) and len(table.weight) == len(nearest):
                table.weight.copy_(table.weight[nearest])


class AtomEmbedding(nn.Module):
    """Element embedding + tag embedding + 3D centrality.

    Centrality is the sum over the neighbour list of the Gaussian basis (3D-Graphormer, arXiv 2203.04810, Eq. 4),
    here weighted by the neighbour's element, so that four oxygen atoms and four gold atoms at the same distances
    differ from the first layer on.
    """

    def __init__(self, dim: int, n_rbf: int) -> None:
        super().__init__()
        self.element = element_embedding(dim)
        self.tag = nn.Embedding(N_TAGS, dim)
        self.neighbour_element = element_embedding(n_rbf)
        self.centrality = nn.Sequential(nn.Linear(n_rbf, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, geometry: Geometry, tags: Tensor, neighbourhood: Neighbourhood) -> Tensor:
        """Tags (n_atoms,) → (n_atoms, dim)."""
        z = geometry.atomic_numbers

        def messages(basis: Tensor, edges: slice) -> Tensor:
            weights = self.neighbour_element(neighbourhood.types[1][edges].to(torch.int64))
            return basis * weights * neighbourhood.others[edges, None]

        summed = neighbourhood.sum_over_neighbours(messages)
        return self.element(z) + self.tag(tags) + self.centrality(summed)
