"""Choices of options, spelt out here so that help needs no import of what they stand for."""

from __future__ import annotations

from typing import Literal

Interchangeable = Literal["auto", "exact", "quadrature", "lattice", "mesh"]
EnergyUnit = Literal["eV", "meV", "kcal/mol", "kJ/mol", "Hartree"]
Per = Literal["structure", "atom"]
TagConvention = Literal["auto", "oc20", "layers"]
OC20Split = Literal["id", "ood_ads", "ood_cat", "ood_both"]
