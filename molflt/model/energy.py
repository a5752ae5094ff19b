"""The energy model: an embedding of atoms, the encoder, and heads for energies (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from molflt.attention.build import Sizes, build_attention
from molflt.attention.config import FarFieldKeys, MethodKeys
from molflt.attention.far.field import ExactMethod
from molflt.attention.geometry import Geometry, geometry_of_batch
from molflt.attention.layout import Layout, Plan
from molflt.attention.mechanism import split_heads
from molflt.attention.near import GaussianDistanceBasis, Neighbourhood, local_neighbourhood
from molflt.attention.sparse import scalar_products, sum_of_entries
from molflt.errors import InputError
from molflt.model.config import ModelConfig
from molflt.model.elements import AtomEmbedding
from molflt.model.encoder import Encoder, full_precision
from molflt.model.scale_shift import ScaleShift
from molflt.vocabulary import TAG_ADSORBATE, MethodName


class EnergyHead(nn.Module):
    """Each atom's share of the standardised energy, MLP(h_i, q_i) · factor[tag_i].

    See 3D-Graphormer, arXiv 2203.04810. The charges q_i distinguish an ion from a neutral atom where no other ion is
    near.
    """

    def __init__(self, dim: int, n_charges: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim + n_charges, dim), nn.GELU(), nn.Linear(dim, 1))
        # The energy is a sum over many atoms: small factors keep the first predictions near the mean. The few atoms
        # of an adsorbate (tag 2) carry most of an adsorption energy.
        self.factor = nn.Parameter(torch.tensor([0.1, 0.1, 1.0]))

    def forward(self, x: Tensor, tags: Tensor, charges: Tensor | None = None) -> Tensor:
        """(n_atoms, dim), (n_atoms,), (n_atoms, n_charges) e → (n_atoms,) float64."""
        if charges is not None:
            x = torch.cat([x, charges.to(x.dtype)], dim=1)
        return (self.mlp(x).squeeze(-1) * self.factor[tags]).to(torch.float64)


def contact(tags: Tensor, geometry: Geometry, neighbourhood: Neighbourhood) -> Tensor:
    """Weight of each atom: 1 in the adsorbate, falling smoothly to 0 at the cutoff from it.

    The composition of a surface far from the adsorbate is no part of an adsorption energy: with these weights the sum
    over atoms does not grow with the slab. Without an adsorbate, all atoms count.

    Returns:
        (n_atoms,) from 0 to 1: of an atom of the surface 1 − exp(−2 Σ_j env(d_ij)), j in the adsorbate.
    """
    adsorbate = tags == TAG_ADSORBATE
    share = adsorbate.to(neighbourhood.others.dtype)[:, None]
    without = geometry.to_atoms(geometry.sum_over_structures(share)) == 0
    reached = neighbourhood.others[:, None] * share.index_select(0, neighbourhood.pattern.columns)
    near = -torch.expm1(-2 * sum_of_entries(neighbourhood.pattern, reached))
    return torch.where(adsorbate[:, None] | without, 1.0, near).squeeze(1)


class DisplacementHead(nn.Module):
    """Displacement of each atom on relaxation, Σ_j w_ij Δ̂_ij over its neighbours.

    It rotates with the structure. The weight w_ij is a sum of ``n_heads`` scalar products of the two atoms, each
    times a function of their distance. The head is a training signal only.
    """

    def __init__(self, dim: int, n_heads: int, n_rbf: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.receiver = nn.Linear(dim, dim)
        self.sender = nn.Linear(dim, dim)
        self.radial = nn.Linear(n_rbf, n_heads)

    def forward(self, x: Tensor, geometry: Geometry, neighbourhood: Neighbourhood) -> Tensor:
        """(n_atoms, dim) → (n_atoms, 3) in units of the standard deviation of the displacements."""
        unit = neighbourhood.displacements / neighbourhood.distances[:, None]
        a, b = (split_heads(part(x), self.n_heads).transpose(0, 1) for part in (self.receiver, self.sender))
        scores = scalar_products(neighbourhood.pattern, a, b) * a.shape[-1] ** -0.5

        def arrows(basis: Tensor, edges: slice) -> Tensor:
            weight = (scores[:, edges] * self.radial(basis).transpose(0, 1)).sum(dim=0)
            return (weight * neighbourhood.others[edges])[:, None] * unit[edges]

        return neighbourhood.sum_over_neighbours(arrows)


@dataclass
class ModelOutput:
    """Output of the model for a batch.

    Attributes:
        energy: (n_structures,) eV, float64.
        atomic_energies: (n_atoms,) eV, float64: each atom's term of the sum, including its E0 and half of the
            interaction of its charges with the others. A mean per structure belongs to no atom and is left out.
        displacement: (n_atoms, 3) Å, predicted relaxed minus given position; None without the auxiliary head.
        embeddings: (n_atoms, dim), the encoder's output for each atom.
        layout: of the batch.
        charges: (n_atoms, n_channels) e, float64, latent; None without them.
        surplus: (n_structures, n_channels) e, by which their sum was wrong before all atoms shared it.
    """

    energy: Tensor
    atomic_energies: Tensor
    displacement: Tensor | None
    embeddings: Tensor
    layout: Layout
    charges: Tensor | None = None
    surplus: Tensor | None = None

    @property
    def contractions(self) -> list[str]:
        """Return the way of each structure's far field; empty without one.

        See ``attention/far/ways.py``.
        """
        far = self.layout.far
        ways = {} if far is None else {b: str(group.way) for group in far.groups for b in group.structures}
        return [ways[b] for b in sorted(ways)]


@dataclass
class Inputs:
    """Inputs of the model from a batch, see ``molflt.vocabulary``.

    Attributes:
        charge: (n_structures,) e; None if the model does not use it.
        layout: of the batch.
    """

    positions: Tensor
    atomic_numbers: Tensor
    tags: Tensor
    cell: Tensor
    pbc: Tensor
    charge: Tensor | None
    layout: Layout


class EnergyModel(nn.Module):
    """Energy of a structure.

    It is invariant to rotation, translation, reflection, atom order and periodic image.

    Args:
        config: sizes and attention.
        seed: of the random frequencies and features, which are saved with the weights.
    """

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.seed = seed
        self.radial = GaussianDistanceBasis(config.n_rbf, config.cutoff, config.pair_types, config.spacing)
        self.embedding = AtomEmbedding(config.dim, config.n_rbf)
        self.positions, layers = build_attention(
            config.attention,
            Sizes(
                dim=config.dim,
                n_heads=config.n_heads,
                n_layers=config.n_layers,
                n_rbf=config.n_rbf,
                n_recycles=config.n_recycles,
                dropout=config.attention_dropout,
                seed=seed,
                pair_types=config.pair_types,
            ),
        )
        self.encoder = Encoder(layers, config.dim, config.ffn_dim, config.dropout, config.n_recycles)
        self.energy_head = EnergyHead(config.dim, config.charges)
        self.charge_head = self.dispersion = None
        if config.charges:
            # Few models have any.
            from molflt.model.charges import ChargeHead, Dispersion

            self.charge_head = ChargeHead(config.dim, config.charges)
            self.dispersion = Dispersion() if config.dispersion else None
        self.displacement_head = (
            DisplacementHead(config.dim, config.n_heads, config.n_rbf) if config.auxiliary_head else None
        )
        # Under this name its tensors are in model files.
        self.standardiser = ScaleShift()
        # Takes the place of :meth:`evaluate`, as a function of model and inputs.
        self.compiled: Callable[[EnergyModel, Inputs], ModelOutput] | None = None

    def forward(self, batch: Any, n_max: int | None = None) -> ModelOutput:
        """Return energies of a ``torch_geometric`` batch with a neighbour list; see ``molflt.vocabulary``.

        Args:
            batch: a collated batch whose neighbour list reaches ``config.neighbour_cutoff``.
            n_max: width of the padded layout; no result depends on it.
        """
        charge = None
        if self.charge_head is not None:
            charge = batch.charge if "charge" in batch else batch.cell.new_zeros(len(batch.cell))
        layout = self.layout(batch, n_max)
        inputs = Inputs(batch.positions, batch.atomic_numbers, batch.tags, batch.cell, batch.pbc, charge, layout)
        far = layout.far
        # A mesh is made structure by structure.
        if self.compiled is None or (far is not None and any(group.way == "mesh" for group in far.groups)):
            return self.evaluate(inputs)
        return self.compiled(self, inputs)

    def evaluate(self, batch: Inputs) -> ModelOutput:
        """Compute the output of :meth:`forward`; can be compiled."""
        with full_precision(self.device):
            geometry = geometry_of_batch(batch, batch.layout, self.dtype)
            neighbourhood = local_neighbourhood(geometry, self.radial, self.config.cutoff)
            context = self.positions(geometry, neighbourhood)
            x = self.embedding(geometry, batch.tags, neighbourhood)
        x = self.encoder(x, geometry, context)
        with full_precision(self.device):
            statistics = self.standardiser
            charges = surplus = None
            if self.charge_head is not None:
                assert batch.charge is not None
                charges, surplus = self.charge_head(x, geometry, statistics.std, batch.charge)
            shares = self.energy_head(x, batch.tags, charges)
            if self.config.read_out == "contact":
                shares = shares * contact(batch.tags, geometry, neighbourhood)
            atomic = statistics.references[geometry.atomic_numbers] + statistics.std * shares
            if charges is not None:
                from molflt.model.charges import long_range

                attraction = None if self.dispersion is None else self.dispersion(geometry.atomic_numbers)
                atomic = atomic + long_range(geometry, charges, attraction, self.config.cutoff)
            energy = statistics.mean + geometry.sum_over_structures(atomic)
            displacement = None
            if self.displacement_head is not None:
                displacement = self.displacement_head(x, geometry, neighbourhood)
                displacement = displacement * statistics.displacement_std.to(displacement.dtype)
        return ModelOutput(energy, atomic, displacement, x, batch.layout, charges, surplus)

    def layout(self, batch: Any, n_max: int | None = None) -> Layout:
        """Return the layout that comes with the batch, or make one.

        Raises:
            ValueError: the layout was made for another kind of model.
        """
        given: Layout | None = getattr(batch, "layout", None) if n_max is None else None
        if given is None:
            return self.plan()(batch, n_max).to(batch.positions.device)
        # Widths are not compared, since that would wait for a device: a plan has a margin.
        has_far, plan = self.positions.n_weights > 0, given.plan
        mine = (self.config.cutoff, self.positions.wide, has_far, self.config.charges > 0)
        if mine != (plan.cutoff, plan.wide, plan.far is not None, plan.charges is not None):
            raise ValueError("the batch was laid out for another kind of model; use the plan of this one")
        return given

    def plan(self) -> Plan:
        """Return the plan of layouts at the present weights, see :class:`StructureCollater`.

        On a GPU it waits for the widths of the far field.
        """
        with torch.no_grad():
            plan = self.positions.plan(self.config.cutoff)
        if not self.config.charges:
            return plan
        from molflt.attention.far.coulomb import PLAN

        return replace(plan, charges=PLAN)

    def redraw_features(self, seed: int) -> None:
        """Draw the random features of every layer anew, the same for the same seed."""
        from molflt.attention.kernels.random_features import redraw

        redraw(self, torch.Generator().manual_seed(seed))

    def n_parameters(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.parameters())

    @property
    def dtype(self) -> torch.dtype:
        """Floating dtype of the weights, in which the network computes."""
        return self.energy_head.factor.dtype

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.energy_head.factor.device


def set_frequencies(model: EnergyModel, frequencies: MethodName) -> None:
    """Evaluate a trained model's far field by another numerical method, and record it.

    Args:
        model: changed in place, including its configuration.
        frequencies: one of the methods that compute the RPE function f itself, to the model's tolerance.

    Raises:
        InputError: there is no such method, the model has no far field, or its far field is an estimator of f,
            whose deviation from f is part of what the weights learnt.
    """
    attention = model.config.attention
    if frequencies not in (known := get_args(MethodName)):
        raise InputError(f"frequencies={frequencies}: no such method; choose one of {', '.join(known)}")
    if not isinstance(attention, MethodKeys):
        why = "has no Fourier far field"
        if isinstance(attention, FarFieldKeys):
            why = f"was trained with mechanism={attention.mechanism}, an estimator that is part of it"
        raise InputError(f"this model {why}; it cannot be used with frequencies={frequencies}: leave it out")
    model.positions.method = ExactMethod(frequencies, attention.tolerance)
    attention.frequencies = frequencies
