"""The values that options may take. They stand here, without a heavy import, so that help comes at once."""

from __future__ import annotations

from typing import Literal

EnergyUnit = Literal["eV", "meV", "kcal/mol", "kJ/mol", "Hartree"]
Per = Literal["structure", "atom"]
"""What an energy in the data is of."""
TagConvention = Literal["auto", "oc20", "layers"]
"""How tags are read: see :func:`molflt.data.ase_io.from_atoms`."""
OnError = Literal["raise", "skip"]
"""Whether a structure that cannot be predicted ends the prediction, or is left out of it."""
MethodName = Literal["auto", "exact", "lattice", "mesh"]
"""Methods for the far field that compute the same function, to the model's tolerance."""
OC20Split = Literal["id", "ood_ads", "ood_cat", "ood_both"]
Figure = Literal["curves", "parity", "residuals", "elements", "adsorbates", "sizes", "rpe", "spectrum"]
"""What ``molflt plot`` draws."""

Compile = Literal["off", "on", "auto"]
"""Whether the model is compiled; auto: on CUDA, where there is a C compiler and enough to do."""
