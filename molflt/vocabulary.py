"""All fields of a structure: name, shape, dtype, unit and meaning.

A structure is a ``torch_geometric.data.Data`` whose attributes carry these names; a batch is the
``torch_geometric.data.Batch`` of such structures, in which per-structure fields get a leading dimension of
``n_structures`` and per-atom fields are concatenated. Lengths are in Å, energies in eV, everywhere.

Displacements follow one convention: edge ``e`` with ``edge_index[:, e] = (i, j)`` carries what atom ``j``
sends to atom ``i``, and Δ_ij = r_i − r_j − cell_offsets[e] @ cell, that is, ``j`` stands for its image
translated by ``cell_offsets[e] @ cell``.

The allowed values of options are here as well, without heavy imports, so that help comes at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from molflt.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

MAX_ATOMIC_NUMBER = 118
TAG_SUBSURFACE, TAG_SURFACE, TAG_ADSORBATE = 0, 1, 2
N_TAGS = 3


@dataclass(frozen=True)
class Field:
    """One entry of the vocabulary.

    ``shape`` uses the symbols n_atoms and n_edges; ``dtype`` is a name in PyTorch.
    """

    shape: tuple[str | int, ...]
    dtype: str
    unit: str
    meaning: str
    required: bool = False


FIELDS: dict[str, Field] = {
    "atomic_numbers": Field(("n_atoms",), "int64", "", "atomic number Z, 1 to 118", required=True),
    "positions": Field(("n_atoms", 3), "float64", "Å", "Cartesian positions r_i", required=True),
    "cell": Field((1, 3, 3), "float64", "Å", "lattice vectors as rows; zero without a cell", required=True),
    "pbc": Field((1, 3), "bool", "", "whether each lattice vector is periodic", required=True),
    "tags": Field(("n_atoms",), "int64", "", "0 sub-surface, 1 surface, 2 adsorbate", required=True),
    "fixed": Field(("n_atoms",), "bool", "", "atoms held in place by a relaxation", required=True),
    "positions_relaxed": Field(("n_atoms", 3), "float64", "Å", "positions after relaxation"),
    "conformers": Field(
        ("n_conformers", "n_atoms", 3),
        "float64",
        "Å",
        "positions of several conformers, of which energies are the lowest",
    ),
    "y_init": Field((1,), "float64", "eV", "adsorption energy of the given geometry"),
    "y_relaxed": Field((1,), "float64", "eV", "adsorption energy of the relaxed geometry"),
    "energy": Field((1,), "float64", "eV", "total energy of the given geometry"),
    "forces": Field(("n_atoms", 3), "float64", "eV/Å", "forces on the given geometry, −∂energy/∂r_i"),
    "charge": Field((1,), "float64", "e", "total charge, for models with charges; not given: 0"),
    "sid": Field((1,), "int64", "", "system id, as in OC20"),
    "edge_index": Field((2, "n_edges"), "int64", "", "(i, j): atom j sends to atom i"),
    "cell_offsets": Field(("n_edges", 3), "int32", "", "lattice translation of the sender's image"),
}
"""The tensors of a structure. A structure also carries ``num_nodes`` (int), ``name`` (str: where it came from),
``info`` (dict: what a table would say of it) and ``extra`` (:class:`molflt.data.extras.Extra`), for no model."""

TARGETS: tuple[str, ...] = ("y_relaxed", "y_init", "energy")
"""Fields a model can be trained on."""

QUANTITIES = {
    "y_relaxed": "adsorption energy of the relaxed structure",
    "y_init": "adsorption energy of the given structure",
    "energy": "energy of the given structure",
}
"""Targets in words."""

DIFFERENTIABLE: tuple[str, ...] = ("y_init", "energy")
"""Targets that are energies of the given geometry: their derivatives are forces and stress.

``y_relaxed`` is one number for all geometries that relax to the same structure; its derivative is no force.
"""

LABELS: tuple[str, ...] = (*TARGETS, "forces", "positions_relaxed")
"""Fields of a structure that a prediction does not need."""


EnergyUnit = Literal["eV", "meV", "kcal/mol", "kJ/mol", "Hartree"]
Per = Literal["structure", "atom"]
"""Extent of an energy in the data: a structure or an atom."""
Compile = Literal["off", "on", "auto"]
"""Compilation of the model; auto: on CUDA, if there is a C compiler and enough to do."""
TagConvention = Literal["auto", "oc20", "layers"]
"""Convention of tags: see :func:`molflt.data.ase.from_atoms`."""
OnError = Literal["raise", "skip"]
"""Treatment of a structure that cannot be predicted: end the prediction, or leave it out."""
MethodName = Literal["auto", "exact", "lattice", "mesh"]
"""Methods for the far field that compute the same function, to the model's tolerance."""
OC20Split = Literal["id", "ood_ads", "ood_cat", "ood_both"]
Figure = Literal["curves", "parity", "residuals", "elements", "adsorbates", "sizes", "rpe", "spectrum"]
"""Figures that ``molflt plot`` draws."""


def check(fields: dict[str, Tensor], where: str) -> None:
    """Check tensors against the vocabulary.

    Args:
        fields: tensors by name; names outside the vocabulary are refused.
        where: file and record, for the message.

    Raises:
        InputError: a required field is missing; a shape or dtype is wrong; a number is not finite; an atomic
            number or a tag is out of range; there is no atom.
    """
    for name, field in FIELDS.items():
        if field.required and name not in fields:
            raise InputError(f"{where}: field '{name}' is missing ({field.meaning})")
    sizes: dict[str, int] = {"n_atoms": int(fields["atomic_numbers"].shape[0])}
    if sizes["n_atoms"] == 0:
        raise InputError(f"{where}: the structure has no atoms")
    for name, value in fields.items():
        if name not in FIELDS:
            raise InputError(f"{where}: unknown field '{name}'; known: {', '.join(FIELDS)}")
        field = FIELDS[name]
        expected = tuple(
            sizes.setdefault(s, _size_at(value, i)) if isinstance(s, str) else s for i, s in enumerate(field.shape)
        )
        if tuple(value.shape) != expected:
            raise InputError(f"{where}: '{name}' has shape {tuple(value.shape)}, expected {expected}")
        if str(value.dtype) != f"torch.{field.dtype}":
            raise InputError(f"{where}: '{name}' has dtype {value.dtype}, expected torch.{field.dtype}")
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise InputError(f"{where}: '{name}' holds NaN or infinity; correct or remove the record")
    if bool((fields["atomic_numbers"] == 0).any()):
        raise InputError(
            f"{where}: 'atomic_numbers' must lie between 1 and {MAX_ATOMIC_NUMBER}, found 0: a ghost or dummy atom, "
            "which models do not know; remove it"
        )
    _check_range(fields["atomic_numbers"], 1, MAX_ATOMIC_NUMBER, "atomic_numbers", where)
    _check_range(fields["tags"], 0, N_TAGS - 1, "tags", where)


def _size_at(value: Tensor, axis: int) -> int:
    return int(value.shape[axis]) if axis < value.dim() else -1


def _check_range(value: Tensor, low: int, high: int, name: str, where: str) -> None:
    smallest, largest = int(value.min()), int(value.max())
    if smallest < low or largest > high:
        raise InputError(f"{where}: '{name}' must lie between {low} and {high}, found {smallest} to {largest}")
