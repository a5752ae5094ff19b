"""Checks for forces in another unit than stated, or with the wrong sign."""

from __future__ import annotations

import warnings
from collections.abc import Collection

import numpy as np
from scipy.spatial.distance import cdist, pdist
from scipy.spatial.transform import Rotation
from torch_geometric.data import Data

from molflt.data.images import shortest_images
from molflt.data.labels import FORCE_UNITS, LabelSpec

_FORCE = 15.0
"""eV/Å: suspicious median of the root mean square component; molecules at 1,200 K have 2."""
_KEPT_ATOMS, _KEPT = 50_000, 200
"""Most atoms in all, and most structures of the same atoms, that are compared."""
_NEAR, _DESCRIBED = 0.5, 64
"""Largest displacement of an atom between compared geometries, Å, and atoms used to find near ones."""
_FEWEST_PAIRS, _CORRELATED, _OFF = 5, 0.85, 1.7
"""Fewest pairs of geometries, the least correlation of work and energy, and their ratio that indicates an error:
units differ by a factor of 1.9 at least. For acetylacetone at 300 K the ratio is 1.0 to 1.1."""


class ForceCheck:
    """Comparison of forces with differences of energy between geometries of the same atoms.

    For a quadratic energy E_a − E_b = ½(F_a + F_b)·(r_b − r_a) is exact. Geometries close to each other are compared,
    once molecules are rotated onto each other and atoms of a crystal moved to the nearest image.
    """

    def __init__(self, spec: LabelSpec) -> None:
        self.spec = spec
        self._alike: dict[tuple[bytes, ...], list[tuple[int, Data]]] = {}
        self._n_kept = 0
        self._sizes: list[float] = []

    def add(self, place: int, data: Data) -> None:
        """Add a structure, with its label and forces, and its index in the set."""
        self._sizes.append(float(data.forces.square().mean().sqrt()))
        self._keep(tuple(data[name].numpy().tobytes() for name in ("atomic_numbers", "cell", "pbc")), place, data)

    def merge(self, later: ForceCheck) -> None:
        """Add the findings on structures that come later in the set."""
        self._sizes += later._sizes
        for key, some in later._alike.items():
            for place, data in some:
                self._keep(key, place, data)

    def _keep(self, key: tuple[bytes, ...], place: int, data: Data) -> None:
        alike = self._alike.setdefault(key, [])
        if len(alike) < _KEPT and self._n_kept < _KEPT_ATOMS:
            alike.append((place, data))
            self._n_kept += data.num_nodes

    def _compared(self, without: Collection[int]) -> tuple[np.ndarray, np.ndarray]:
        """Work from every geometry to the nearest of the same atoms, and its expected value, eV."""
        found: list[tuple[float, float]] = []
        for kept in self._alike.values():
            alike = [data for place, data in kept if place not in without]
            if len(alike) > 1 and len(alike[0].positions) > 1:
                shapes = [_shape(data, alike[0]) for data in alike]
                distances = cdist(shapes, shapes)
                np.fill_diagonal(distances, np.inf)
                nearest = distances.argmin(axis=1)
                pairs = {(min(k, other), max(k, other)) for k, other in enumerate(nearest.tolist())}
                found += [work for a, b in sorted(pairs) if (work := self._work(alike[a], alike[b])) is not None]
        pairwise = np.array(found, dtype=np.float64).reshape(-1, 2)
        return pairwise[:, 0], pairwise[:, 1]

    def _work(self, a: Data, b: Data) -> tuple[float, float] | None:
        """Work and its expected value, eV; None if the geometries are too far apart."""
        (r_a, f_a), (r_b, f_b) = ((data.positions.numpy(), data.forces.numpy()) for data in (a, b))
        if bool(a.pbc.any()):
            moved = _moved(a, b)
        else:
            r_a, r_b = r_a - r_a.mean(axis=0), r_b - r_b.mean(axis=0)
            with warnings.catch_warnings():
                # for atoms on a line, any rotation about it will do
                warnings.simplefilter("ignore")
                turn, _ = Rotation.align_vectors(r_a, r_b)
            moved, f_b = turn.apply(r_b) - r_a, turn.apply(f_b)
        if np.linalg.norm(moved, axis=1).max() > _NEAR:
            return None
        target = self.spec.target
        return float(((f_a + f_b) * moved).sum()) / 2, float(a[target]) - float(b[target])

    def doubts(self, source: str, without: Collection[int] = ()) -> list[str]:
        """Warnings about the forces, with the remedy; ``source`` names the structures.

        Structures ``without`` are ignored: one with wrong forces or a wrong energy says nothing about the others.
        """
        work, difference = self._compared(without)
        sizes = float(np.linalg.norm(work)), float(np.linalg.norm(difference))
        if len(work) >= _FEWEST_PAIRS and min(sizes) > 0:
            agreement = float(work @ difference) / (sizes[0] * sizes[1])
            if abs(agreement) > _CORRELATED:
                return self._disagree(float(np.sign(agreement)) * sizes[1] / sizes[0], source)
        typical = float(np.median(self._sizes)) if self._sizes else 0.0
        if typical <= _FORCE:
            return []
        return [
            f"{source}: forces, read as {self._read_as}, have components of {typical:.3g} eV/Å (root mean square, "
            "median of structures), where 1 is usual. If they are stored in another unit, give --force-unit or, in "
            f"training, data.force_unit, such as {self._nearest(1 / typical)}"
        ]

    @property
    def _read_as(self) -> str:
        return self.spec.force_unit or f"{self.spec.unit}/Ang"

    def _nearest(self, factor: float) -> str:
        """Find the unit in which forces would be larger by about this factor."""
        now = self.spec.force_factor
        return min(FORCE_UNITS, key=lambda unit: abs(np.log(FORCE_UNITS[unit] / now / factor)))

    def _disagree(self, slope: float, source: str) -> list[str]:
        found = []
        if slope < 0:
            found.append("have the wrong sign, as derivatives of the energy would; store them with the other")
        if not 1 / _OFF < abs(slope) < _OFF:
            factor, unit = max(abs(slope), 1 / abs(slope)), self._nearest(abs(slope))
            found.append(
                f"are {'smaller' if abs(slope) > 1 else 'larger'} by a factor of {factor:.3g} than they should be; "
                f"if the energies are in {self.spec.unit}, give --force-unit or, in training, data.force_unit={unit}"
            )
        if not found:
            return []
        return [
            f"{source}: the forces, read as {self._read_as}, do not fit the energies: by differences of energy "
            f"between geometries of the same atoms they {' and '.join(found)}"
        ]


def _shape(data: Data, first: Data) -> np.ndarray:
    """Descriptor of a geometry whose distances tell near ones, unchanged under rotation."""
    if bool(data.pbc.any()):
        return _moved(first, data).ravel()
    shape: np.ndarray = pdist(data.positions[:_DESCRIBED].numpy())
    return shape


def _moved(a: Data, b: Data) -> np.ndarray:
    """Displacements of the atoms from ``a`` to ``b``, to the nearest image, (n, 3) Å."""
    return shortest_images((b.positions - a.positions).numpy(), a.cell[0].numpy(), a.pbc[0].numpy())[0]
