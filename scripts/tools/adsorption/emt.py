"""ASE's EMT potential, summed over all pairs of atoms at once instead of atom by atom.

``ase.calculators.emt.EMT`` loops over atoms in Python, which takes most of the time of a relaxation.
``VectorisedEMT`` inherits its parameters and cutoff and gives the same energy and forces to rounding, about
ten times faster. It computes no stress.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from ase.calculators.calculator import Calculator, all_changes
from ase.calculators.emt import EMT, beta
from vesin import NeighborList


class VectorisedEMT(EMT):
    """EMT for energies and forces of isolated or periodic structures."""

    implemented_properties: ClassVar[list[str]] = ["energy", "free_energy", "energies", "forces"]

    def check_state(self, atoms: Any, tol: float = 0.0) -> list[str]:
        """What changed since the last call. ASE's comparison to a tolerance costs more than the energy."""
        last = self.atoms
        if last is None or not np.array_equal(last.numbers, atoms.numbers):
            return list(all_changes)
        names = ("positions", "cell", "pbc")
        return [name for name in names if not np.array_equal(getattr(last, name), getattr(atoms, name))]

    def calculate(
        self,
        atoms: Any = None,
        properties: list[str] | None = None,
        system_changes: list[str] = all_changes,
    ) -> None:
        """Fill ``self.results`` for ``atoms``; the names follow ASE's file (s: self, o: other)."""
        Calculator.calculate(self, atoms, properties or ["energy"], system_changes)
        if "numbers" in system_changes:
            self.initialize(self.atoms)
            self._per_atom = {name: values[self.ia2iz] for name, values in self.par.items()}
        n, par = len(self.atoms), self._per_atom
        s, o, vector, r = self._pairs()

        w = 1.0 / (1.0 + np.exp(self.acut * (r - self.rc)))
        dlogw = self.acut * (w - 1.0)
        chi = self.chi[self.ia2iz[s], self.ia2iz[o]]
        eta2, kappa, s0 = par["eta2"], par["kappa"], par["s0"]
        dsigma1s = np.exp(-eta2[o] * (r - beta * s0[o])) * chi * w
        dsigma2s = np.exp(-kappa[o] * (r / beta - s0[o])) * chi * w
        dsigma2o = np.exp(-kappa[s] * (r / beta - s0[s])) / chi * w

        sigma1 = np.bincount(s, dsigma1s, minlength=n)
        # An atom without neighbours has the energy -E0 of its own: no cohesive term, no gradient.
        bound = sigma1 > 0
        safe = np.where(bound, sigma1, 1.0)
        ds = -np.log(safe * par["inv12gamma1"]) / (beta * eta2)
        x = par["lambda"] * ds
        cohesive = par["E0"] * (1.0 + x) * np.exp(-x)
        shell = 6.0 * par["V0"] * np.exp(-kappa * ds)
        deds = par["E0"] * par["lambda"] * x * np.exp(-x) + kappa * shell
        deds = np.where(bound, deds / (beta * eta2 * safe), 0.0)

        es = par["neghalfv0overgamma2"][s] * dsigma2s
        eo = par["neghalfv0overgamma2"][o] * dsigma2o
        energies = np.where(bound, cohesive + shell, 0.0) - par["E0"]
        energies += 0.5 * np.bincount(s, es + eo, minlength=n)

        dsigma1o = np.exp(-eta2[s] * (r - beta * s0[s])) / chi * w
        slope = es * (dlogw - kappa[o] / beta) + eo * (dlogw - kappa[s] / beta)
        slope += deds[s] * dsigma1s * (dlogw - eta2[o]) + deds[o] * dsigma1o * (dlogw - eta2[s])
        pull = (slope / r)[:, None] * vector
        forces = np.stack([np.bincount(s, pull[:, axis], minlength=n) for axis in range(3)], axis=1)

        energy = float(energies.sum())
        self.results = {"energy": energy, "free_energy": energy, "energies": energies, "forces": forces}

    def _pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Pairs (s, o) in both directions with the vectors from s to o and their lengths."""
        neighbours = NeighborList(cutoff=self.rc_list, full_list=True)
        i, j, vector, r = neighbours.compute(
            points=self.atoms.positions,
            box=self.atoms.cell.array,
            periodic=self.atoms.pbc,
            quantities="ijDd",
        )
        return i.astype(np.int64), j.astype(np.int64), vector, r
