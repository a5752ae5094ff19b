"""Space groups as stated in files, and the atoms they generate from the sites of a cell."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import gemmi
import numpy as np

from molflt.errors import InputError

_MOST = 192
"""Operations of the largest space groups, in a face-centred cell."""
_MOST_IMAGES = 1 << 22
_STRAIN = 5e-3
"""Relative deviation of the metric tensor from its group's symmetry: lengths are rounded or refined."""
_SAME = 0.1
"""Å between images of a site that are one atom on a special position, with rounded coordinates."""
_SUFFIX = re.compile(r"^(.*?)[\s:]*(?:[(\[]?origin\s+choice\s+|O)?([12HRSZ])[)\]]?$", re.IGNORECASE)
_SETTINGS = {"S": "1", "Z": "2"}
"""Suffixes of the ICSD for the first and second choice of origin."""
NO_SYMMETRY = "no symmetry is given: P 1 is taken"
_REMEDY = "list the operations as _space_group_symop_operation_xyz, or correct what is wrong"


@dataclass(frozen=True)
class Symmetry:
    """Statements of a file about its space group; empty if there are none.

    Attributes:
        operations: as x,y,z.
        hall: symbol.
        name: Hermann-Mauguin symbol, perhaps with a setting after a colon.
        number: in International Tables, 0 if there is none.
        setting: code of a coordinate system: b1, 2, r.
    """

    operations: Sequence[str] = ()
    hall: str = ""
    name: str = ""
    number: int = 0
    setting: str = ""

    def candidates(self, lattice: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """Settings that fit the statements and the (3, 3) lattice, Å, as name and operations.

        Operations are (n, 3, 4), fractional. There are several settings if an origin or the choice of axes is open;
        one without operations if nothing is stated.

        Raises:
            InputError: a statement cannot be understood or contradicts the rest.
        """
        if self.operations or self.hall:
            operations = self._listed()
            found = [("the operations listed" if self.operations else f"Hall symbol {self.hall}", operations)]
            self._refuse_contradiction(operations)
        elif self.name or self.number:
            groups = self._tabulated(lattice)
            found = [(group.xhm(), list(group.operations())) for group in groups]
        else:
            found = [("P 1", [gemmi.Op()])]
        arrays = [(name, _array(operations)) for name, operations in found]
        fitting = [(name, operations) for name, operations in arrays if _fits(operations, lattice)]
        if not fitting:
            lengths = cell_in_words(lattice)
            raise InputError(f"the cell ({lengths}) does not have the symmetry of {arrays[0][0]}; {_REMEDY}")
        return fitting

    def _listed(self) -> list[gemmi.Op]:
        if not self.operations:
            try:
                return list(gemmi.symops_from_hall(self.hall))
            except (RuntimeError, ValueError) as error:
                raise InputError(f"'{self.hall:.40}' is not a Hall symbol ({error}); {_REMEDY}") from error
        if len(self.operations) > _MOST:
            raise InputError(f"{len(self.operations)} operations are more than any space group has, {_MOST}")
        found: dict[str, gemmi.Op] = {}
        for text in self.operations:
            try:
                operation = gemmi.parse_triplet(text).wrap()
            except (RuntimeError, ValueError) as error:
                raise InputError(f"'{text:.60}' is not an operation of symmetry ({error}); correct it") from error
            found[operation.triplet()] = operation
        operations = list(found.values())
        group = gemmi.GroupOps(operations)
        with suppress(RuntimeError):
            # an error if there are more operations than any group has
            group.add_missing_elements()
        if len(group) != len(operations):
            raise InputError(
                f"the {len(found)} operations listed are not a group: the product of two of them is missing; "
                "list all of them"
            )
        return operations

    def _refuse_contradiction(self, operations: list[gemmi.Op]) -> None:
        """Refuse a name or number that contradicts the group of the operations."""
        group = gemmi.find_spacegroup_by_ops(gemmi.GroupOps(operations))
        named = _named(self.name) if self.name else None
        claims = [(f"'{self.name}'", named.number if named else 0), (f"number {self.number}", self.number)]
        for said, number in claims:
            if number == 0:
                continue
            if group is not None and group.number != number:
                raise InputError(
                    f"its {len(operations)} operations of symmetry are those of {group.hm} (number {group.number}), "
                    f"but the space group is said to be {said}; delete the one that is wrong"
                )
            # not in any table: centred in an unusual way, so only the number of rotations can be compared
            tabulated = gemmi.find_spacegroup_by_number(number)
            if group is None and tabulated is not None:
                counts = [len({str(op.rot) for op in ops}) for ops in (operations, tabulated.operations())]
                if counts[0] != counts[1]:
                    raise InputError(
                        f"its operations of symmetry have {counts[0]} rotations and reflections, and those of {said} "
                        f"{counts[1]}; delete the one that is wrong"
                    )

    def _tabulated(self, lattice: np.ndarray) -> list[gemmi.SpaceGroup]:
        """Space groups in the table that fit the given name, number and setting code."""
        table = list(gemmi.spacegroup_table())
        if self.name:
            named = _named(self.name)
            if named is None:
                raise InputError(f"'{self.name:.40}' is not a known space group; {_REMEDY}")
            if self.number not in (0, named.number):
                raise InputError(
                    f"space group '{self.name}' is number {named.number}, and number {self.number} is written beside "
                    "it; delete the one that is wrong"
                )
            if _setting(self.name):
                return [named]
            # short symbols, as P 21/c, mean the first that fits: the unique axis is b
            groups = [g for g in table if g.number == named.number and _short(g.hm) == _short(named.hm)]
            groups.sort(key=lambda group: group.hm != named.hm)
            fitting = [group for group in groups if _fits(_array(list(group.operations())), lattice)] or groups
            groups = [group for group in fitting if group.hm == fitting[0].hm]
        else:
            groups = [group for group in gemmi.spacegroup_table_itb() if group.number == self.number]
            if not groups:
                raise InputError(f"there is no space group number {self.number}; {_REMEDY}")
        code = self.setting.lower()
        chosen = [g for g in groups if code and code in (g.ext.strip("\0").lower(), g.qualifier, _code(g))]
        return chosen or groups


def expand(
    fractions: np.ndarray, operations: np.ndarray, lattice: np.ndarray, called: Callable[[int], str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Generate all atoms from the sites of a cell by symmetry.

    Images of a site within 0.1 Å of it are one atom on a special position, at their mean: files round coordinates
    such as 1/3.

    Args:
        fractions: (n_sites, 3), of the lattice vectors.
        operations: (n, 3, 4), rotations and translations, the identity among them.
        lattice: (3, 3), Å.
        called: name of a site in messages.

    Returns:
        The atoms' fractions (n_atoms, 3), their sites (n_atoms,), and the order of each site's symmetry (n_sites,).

    Raises:
        InputError: a site is neither on a special position nor off it, or there are millions of atoms.
    """
    rotations, shifts = operations[:, :, :3], operations[:, :, 3]
    n, m = len(operations), len(fractions)
    if n * m > _MOST_IMAGES:
        raise InputError(
            f"{m:,} sites and {n} operations of symmetry make too many atoms, more than {_MOST_IMAGES:,}"
        )
    if n == 1:
        return fractions, np.arange(m), np.ones(m, dtype=np.int64)
    images = np.einsum("aij,sj->sai", rotations, fractions) + shifts
    orders = _near(images, fractions[:, None], lattice)[0].sum(axis=1)
    atoms = list(images)
    for site in np.flatnonzero(orders > 1).tolist():
        fraction, own = fractions[site], images[site]
        # more images may be near the corrected mean
        for _ in range(3):
            near, apart = _near(own, fraction, lattice)
            fraction = fraction + apart[near].mean(axis=0)
            own = rotations @ fraction + shifts
        near, _ = _near(own, fraction, lattice)
        same, _ = _near(own[:, None], own, lattice)
        atoms[site] = own[same.argmax(axis=1) == np.arange(n)]
        orders[site] = near.sum()
        if len(atoms[site]) * orders[site] != n:
            raise InputError(
                f"{called(site)} lies so near to an element of symmetry that its images are neither one atom nor "
                "several; write its coordinates with more digits, 1/3 as 0.33333"
            )
    whole = np.concatenate(atoms)
    return whole - np.floor(whole), np.repeat(np.arange(m), [len(own) for own in atoms]), orders


def cell_in_words(lattice: np.ndarray) -> str:
    """Format lengths and angles of a lattice."""
    lengths = np.linalg.norm(lattice, axis=1)
    cosines = [lattice[i] @ lattice[j] / (lengths[i] * lengths[j]) for i, j in ((1, 2), (0, 2), (0, 1))]
    return ", ".join(f"{x:.5g}" for x in (*lengths, *np.degrees(np.arccos(cosines))))


def _near(images: np.ndarray, fraction: np.ndarray, lattice: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mask of images (..., 3) that coincide with a fraction (..., 3), and their offsets from it."""
    apart = images - fraction
    apart -= np.rint(apart)
    return ((apart @ lattice) ** 2).sum(axis=-1) < _SAME**2, apart


def _array(operations: Sequence[gemmi.Op]) -> np.ndarray:
    return np.array([operation.float_seitz() for operation in operations])[:, :3]


def _fits(operations: np.ndarray, lattice: np.ndarray) -> bool:
    """True if rotations leave the lengths and angles of a lattice unchanged."""
    metric = lattice @ lattice.T
    rotations = operations[:, :, :3]
    turned = np.swapaxes(rotations, 1, 2) @ metric @ rotations
    return bool(np.abs(turned - metric).max() <= _STRAIN * metric.max())


def _named(name: str) -> gemmi.SpaceGroup | None:
    """Find the space group of a symbol."""
    found = gemmi.find_spacegroup_by_name(name)
    if found is None and (suffix := _SUFFIX.match(name)):
        setting = suffix[2].upper()
        found = gemmi.find_spacegroup_by_name(f"{suffix[1]}:{_SETTINGS.get(setting, setting)}")
    return found


def _setting(name: str) -> bool:
    """True if a symbol names a setting."""
    return ":" in name or gemmi.find_spacegroup_by_name(name) is None


def _short(name: str) -> str:
    return "".join(part for part in name.split() if part != "1")


def _code(group: gemmi.SpaceGroup) -> str:
    return group.ext.strip("\0").lower() + group.qualifier
