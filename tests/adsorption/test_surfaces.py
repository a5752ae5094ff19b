"""Surfaces of any plane and crystal, judged by closed forms, by ASE's builders of some planes, and by pymatgen."""

from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from ase import Atoms
from ase.build import bcc110, bulk, fcc100, fcc110, fcc111, fcc211, hcp0001, make_supercell
from ase.constraints import FixAtoms
from ase.data import covalent_radii
from ase.geometry import minkowski_reduce
from ase.io import write
from ase.neighborlist import neighbor_list

from molflt.adsorption import molecule
from molflt.adsorption.cutting import PLANES, THICKNESS, VACUUM, all_sites, cut, enlarged
from molflt.adsorption.placing import guesses
from molflt.adsorption.surfaces import METALS, surface, surfaces
from molflt.data.ase import to_atoms
from molflt.errors import InputError

A = 3.92
PT, IRON, RU = bulk("Pt", "fcc", a=A, cubic=True), bulk("Fe", "bcc", a=2.87, cubic=True), bulk("Ru", a=2.7, c=4.28)
CU3AU = Atoms(
    "AuCu3", scaled_positions=[[0, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]], cell=[3.75] * 3, pbc=True
)
ROOT3 = 3**0.5


def area_of(slab):
    return float(np.linalg.norm(np.cross(slab.cell[0], slab.cell[1])))


def environment(atoms, reach=5.2):
    """Sorted distances of each atom's neighbours, the atoms in the order of their heights: the same for two slabs
    that differ by a motion, a reflection or the choice of their cell."""
    i, distance = neighbor_list("id", atoms, reach)
    rows = [tuple(np.round(np.sort(distance[i == k]), 3)) for k in range(len(atoms))]
    heights = np.round(atoms.positions[:, 2] - atoms.positions[:, 2].max(), 3)
    counts = Counter(zip(heights.tolist(), rows, strict=True))
    return {key: n / area_of(atoms) for key, n in counts.items()}


@pytest.mark.parametrize(
    ("crystal", "indices", "area", "spacing"),
    [
        (PT, (1, 1, 1), A**2 * ROOT3 / 4, A / ROOT3),
        (bulk("Pt", a=A), (1, 1, 1), A**2 * ROOT3 / 4, A / ROOT3),
        (PT, (1, 0, 0), A**2 / 2, A / 2),
        (PT, (-1, 1, 0), A**2 / 2**0.5, A / 8**0.5),
        (PT, (2, 1, 1), A**2 * 6**0.5 / 2, A / 24**0.5),
        (PT, (3, 2, 1), A**2 * 14**0.5 / 2, A / 56**0.5),
        (PT, (5, 3, 1), A**2 * 35**0.5 / 4, A / 35**0.5),
        (IRON, (1, 1, 0), 2.87**2 / 2**0.5, 2.87 / 2**0.5),
        (IRON, (1, 0, 0), 2.87**2, 2.87 / 2),
        (IRON, (3, 1, 0), 2.87**2 * 10**0.5 / 2, 2.87 / 10**0.5),
        (RU, (0, 0, 1), 2.7**2 * ROOT3 / 2, 4.28 / 2),
        (RU, (1, 0, 0), 2.7 * 4.28, None),
    ],
)
def test_planes_of_elements(crystal, indices, area, spacing):
    """A plane's atoms times spacing is the volume of an atom; cell, spacing and thickness in closed form.

    Only in the primitive cell of ASE's does (111) name the same plane as in the conventional one.
    """
    ends = cut(crystal, indices)
    assert len(ends) == (2 if spacing is None else 1)
    for slab in ends:
        planes = slab.get_tags()
        per_plane = np.bincount(planes)
        assert set(per_plane) == {1}
        assert area_of(slab) == pytest.approx(area)
        heights = np.sort(slab.positions[:, 2])
        if spacing is not None:
            assert np.diff(heights) == pytest.approx(spacing, abs=1e-9)
        assert planes.max() + 1 >= PLANES
        assert heights[-1] >= THICKNESS - 0.1
        # Without any of the planes it would be too thin.
        assert planes.max() + 1 == PLANES or heights[-2] < THICKNESS - 0.1 + (0 if spacing else heights[-1])
        assert slab.positions[:, 2].min() == pytest.approx(0, abs=1e-9)


def test_prisms_of_hcp_end_in_two_ways():
    """(10-10): planes a/√12 and a/√3 apart; the wider gap is broken first."""
    wide, narrow = (np.diff(np.sort(slab.positions[:, 2])[::-1]) for slab in cut(RU, (1, 0, 0)))
    assert -wide[:2] == pytest.approx([2.7 / 12**0.5, 2.7 / ROOT3])
    assert -narrow[:2] == pytest.approx([2.7 / ROOT3, 2.7 / 12**0.5])


@pytest.mark.parametrize(
    ("crystal", "indices", "reference"),
    [
        (PT, (1, 1, 1), fcc111("Pt", (2, 3, 4), a=A, vacuum=9)),
        (PT, (1, 0, 0), fcc100("Pt", (3, 3, 5), a=A, vacuum=9)),
        (PT, (1, 1, 0), fcc110("Pt", (2, 2, 6), a=A, vacuum=9)),
        (IRON, (1, 1, 0), bcc110("Fe", (3, 2, 4), a=2.87, vacuum=9)),
        (RU, (0, 0, 1), hcp0001("Ru", (3, 3, 4), a=2.7, c=4.28, vacuum=9)),
    ],
)
def test_the_same_slabs_as_ase(crystal, indices, reference):
    """Every atom has the neighbours that ASE's own builders give it, at the same depth."""
    (slab,) = cut(crystal, indices)
    ours = enlarged(slab, 7, 0.0)
    assert len(ours) == 7 * len(slab)
    assert environment(ours) == pytest.approx(environment(reference))


def test_steps_are_those_of_ase():
    """fcc(211) has ASE's three rows of a terrace on top, whatever the thickness."""
    (slab,) = cut(PT, (2, 1, 1))
    ours = enlarged(slab, 4, 0.0)
    top = environment(ours), environment(fcc211("Pt", (3, 4, 5), a=A, vacuum=9))
    first = [sorted(key for key in one if key[0] > -2.0) for one in top]
    assert first[0] == first[1]
    assert len(first[0]) == 3


def test_ends_of_an_alloy():
    """Cu3Au: (100) ends in Au and Cu one to one, or in copper; (111) in one way, of the bulk's composition."""
    mixed, copper = cut(CU3AU, (1, 0, 0))
    for slab, top in ((mixed, {"Au": 1, "Cu": 1}), (copper, {"Cu": 2})):
        assert area_of(slab) == pytest.approx(3.75**2)
        assert slab[slab.get_tags() == slab.get_tags().max()].symbols.formula.count() == top
    (close,) = cut(CU3AU, (1, 1, 1))
    assert len(close) == 16
    assert area_of(close) == pytest.approx(3.75**2 * ROOT3)
    assert close.symbols.formula.count() == {"Au": 4, "Cu": 12}


def test_the_upper_side_is_that_of_the_indices():
    """Zinc blende has the cation outside on (111) and its like, and the anion on the opposite faces, as in textbooks;
    a mirror image would not show, so the kinks of fcc(531) are counted: it and (5-31) are each other's image."""
    blende = bulk("ZnS", "zincblende", a=5.41, cubic=True)
    left = blende.copy()
    left.set_cell(blende.cell[[1, 0, 2]])
    for indices in product((-1, 1), repeat=3):
        for crystal in (blende, left):
            widest = cut(crystal, indices)[0]
            top = widest[widest.get_tags() == widest.get_tags().max()].symbols
            assert set(top) == ({"Zn"} if np.prod(indices) == 1 else {"S"})
    wurtzite = bulk("ZnO", "wurtzite", a=3.25, c=5.2, u=0.382)
    assert [set(cut(wurtzite, (0, 0, side))[0][-1:].symbols) for side in (1, -1)] == [{"O"}, {"Zn"}]
    hands = [_hand(cut(PT, indices)[0]) for indices in ((5, 3, 1), (3, 1, 5), (-5, -3, 1), (5, -3, 1), (3, 5, 1))]
    assert hands == [hands[0]] * 3 + [-hands[0]] * 2


def _hand(slab):
    """The sense in which the three highest planes are passed from atom to atom, the shortest way."""
    plane = minkowski_reduce(slab.cell, pbc=[True, True, False])[0]
    (first, second, third) = (slab.positions[slab.get_tags() == slab.get_tags().max() - k][0] for k in range(3))
    steps = []
    for step in (second - first, third - second):
        scaled = step[:2] @ np.linalg.inv(plane[:2, :2])
        images = (scaled - np.round(scaled) + np.array(list(product((-1, 0, 1), repeat=2)))) @ plane[:2, :2]
        steps.append(images[np.argmin(np.linalg.norm(images, axis=1))])
    return int(np.sign(np.linalg.det(steps)))


def test_ends_are_those_of_pymatgen():
    """The compositions of the outermost planes are those that pymatgen's generator finds."""
    surface_of = pytest.importorskip("pymatgen.core.surface")
    adaptor = pytest.importorskip("pymatgen.io.ase").AseAtomsAdaptor
    rocksalt = bulk("MgO", "rocksalt", a=4.21, cubic=True)
    for crystal, indices in ((CU3AU, (1, 0, 0)), (CU3AU, (1, 1, 0)), (CU3AU, (1, 1, 1)), (rocksalt, (1, 1, 1))):
        generator = surface_of.SlabGenerator(
            adaptor.get_structure(crystal), indices, 6, 13, primitive=False, center_slab=False
        )
        theirs = []
        for slab in generator.get_slabs(ftol=0.05):
            atoms = adaptor.get_atoms(slab)
            normal = np.cross(*np.asarray(atoms.cell)[:2])
            z = atoms.positions @ normal / np.linalg.norm(normal)
            # Of two slabs that are each other's reverse it gives one.
            for end in (atoms[z > z.max() - 0.1], atoms[z < z.min() + 0.1]):
                theirs.append(end.symbols.formula.reduce()[0].format("hill"))
        ours = [
            one[one.get_tags() == one.get_tags().max()].symbols.formula.reduce()[0].format("hill")
            for one in cut(crystal, indices)
        ]
        assert sorted(set(theirs)) == sorted(set(ours))


@pytest.mark.parametrize(
    ("crystal", "indices", "counts"),
    [
        (PT, (1, 1, 1), {"ontop": 1, "bridge": 3, "hollow": 2}),
        (PT, (1, 0, 0), {"ontop": 1, "bridge": 2, "hollow": 1}),
        (IRON, (1, 1, 0), {"ontop": 1, "bridge": 3, "hollow": 2}),
        (IRON, (1, 0, 0), {"ontop": 1, "bridge": 2, "hollow": 1}),
        (RU, (0, 0, 1), {"ontop": 1, "bridge": 3, "hollow": 2}),
        # Ridge and trough are rows of atoms; so are the three of a step.
        (PT, (1, 1, 0), {"ontop": 2, "bridge": 6, "hollow": 4}),
        (CU3AU, (1, 1, 1), {"ontop": 4, "bridge": 12, "hollow": 8}),
    ],
)
def test_sites_of_known_faces(crystal, indices, counts):
    """The number of sites of each kind in the smallest cell, and as many times more in a larger and skewed one."""
    (slab,) = cut(crystal, indices)
    assert Counter(site.kind for site in all_sites(slab)) == counts
    skewed = make_supercell(slab, [[2, 1, 0], [3, 4, 0], [0, 0, 1]])
    assert Counter(site.kind for site in all_sites(skewed)) == {kind: 5 * n for kind, n in counts.items()}


def test_kinds_of_sites():
    """fcc(111) has two hollows, over an atom of the second layer or not, and one of each other kind."""
    found = surfaces("Pt:111", "1/4")[0]
    assert list(found.sites) == ["ontop", "hollow 1", "hollow 2", "bridge"]
    top, second = (
        found.atoms.positions[np.isclose(found.atoms.positions[:, 2], z), :2]
        for z in np.unique(np.round(found.atoms.positions[:, 2], 6))[:-3:-1]
    )
    shifts = np.array([[i, j] for i in (-1, 0, 1) for j in (-1, 0, 1)]) @ np.asarray(found.atoms.cell)[:2, :2]
    nearest = [
        [np.linalg.norm(layer[:, None] + shifts - place, axis=2).min() for layer in (top, second)]
        for place in found.sites.values()
    ]
    a = np.linalg.norm(found.atoms.cell[0]) / 2
    assert nearest[0] == pytest.approx([0.0, a / ROOT3], abs=1e-6)
    assert sorted(row[1] for row in nearest[1:3]) == pytest.approx([0.0, a / ROOT3], abs=1e-6)
    assert [row[0] for row in nearest[1:]] == pytest.approx([a / ROOT3, a / ROOT3, a / 2], abs=1e-6)


@pytest.mark.parametrize("n", [1, 3, 4, 7, 9, 12])
def test_cells_keep_images_apart(n):
    """On fcc(111) the best cells are hexagonal for these numbers; coverage is 1/n."""
    (found,) = surfaces("Pd:111", Fraction(1, n) if n != 12 else "1/12")
    assert found.coverage == pytest.approx(1 / n)
    assert len(found.atoms) == 4 * n
    a = 2.785035
    assert found.atoms.cell.lengths()[:2] == pytest.approx([a * n**0.5] * 2, abs=1e-4)
    assert found.of_set == (n == 12)


@pytest.mark.parametrize("on", ["Pt:211", "Ru:10-10", "W", "Na", "Zn:10-11"])
def test_surfaces_to_place_on(on):
    """Periods, vacuum, fixed half and tags; guesses that clash neither with the metal nor with their images."""
    conformers = molecule("OCC")
    for one in surfaces(on, width=4.0):
        lengths = one.atoms.cell.lengths()
        assert lengths[:2].min() >= 8.8 - 0.06
        assert lengths[2] == pytest.approx(one.atoms.positions[:, 2].max() + VACUUM)
        assert one.atoms.cell.angles()[:2] == pytest.approx([90, 90])
        assert np.linalg.det(one.atoms.cell) > 0
        z = one.atoms.positions[:, 2]
        assert z[one.fixed].max() < z[~one.fixed].min()
        assert 0.3 < one.fixed.mean() <= 0.5
        assert np.array_equal(one.atoms.get_tags(), np.where(one.fixed, 0, 1))
        found = guesses(one, conformers, 6, "OCC")
        assert len(found) == 6
        for guess in found:
            atoms = to_atoms(guess.structure)
            i, j, distance, shift = neighbor_list("ijdS", atoms, 4.0)
            tags = atoms.get_tags()
            sums = covalent_radii[atoms.numbers[i]] + covalent_radii[atoms.numbers[j]]
            assert (distance / sums)[(tags[i] == 2) & (tags[j] < 2)].min() > 0.95
            assert distance[(tags[i] == 2) & (tags[j] == 2) & shift.any(axis=1)].min(initial=4.0) > 2.4


def test_a_tall_molecule_has_room():
    """A chain that fits no cell of the set lies on a plane that is cut for it."""
    conformers = molecule("C" * 12)
    assert guesses(surfaces("Pt:100", width=16.0)[0], conformers, 2, "dodecane")


def test_names_of_the_set_are_the_set():
    """A close-packed plane of a known metal is the set's own slab, however it is named; others are cut."""
    for text in ("Pt", "pt:111", "Pt(111)", "Pt:-111", "Pt:222", "Ru:0001", "Ru:00-1", "Fe:101"):
        (one,) = surfaces(text)
        assert one.of_set
        assert one.atoms == surface(one.metal).atoms
    assert not any(one.of_set for text in ("Pt:100", "Ru:10-10", "Fe:100", "W") for one in surfaces(text))
    # Cut slabs have the set's lattice constants.
    for metal in METALS:
        flat = surface(metal)
        (other,) = surfaces(metal, "1/1")
        one, two = (np.sort(some.atoms.positions[:, 2]) for some in (flat, other))
        assert two[1] - two[0] == pytest.approx(one[12] - one[11], abs=2e-4)
        assert area_of(other.atoms) == pytest.approx(area_of(flat.atoms) / 12, rel=1e-5)


def test_files(tmp_path):
    """Crystals are cut and slabs are taken as they are, whichever images their atoms have, and right way up."""
    write(tmp_path / "alloy.cif", CU3AU)
    write(tmp_path / "POSCAR", PT, format="vasp")
    found = surfaces(f"{tmp_path}/alloy.cif:100", "1/2")
    assert [one.name for one in found] == ["AuCu3(100) end AuCu", "AuCu3(100) end Cu"]
    assert [list(one.sites) for one in found] == [
        ["ontop Au", "ontop Cu", "hollow Au-Cu", "bridge Au-Cu"],
        ["ontop Cu", "hollow Cu 1", "hollow Cu 2", "bridge Cu"],
    ]
    (one,) = surfaces(f"{tmp_path}/POSCAR:111", "1/3")
    assert environment(one.atoms) == pytest.approx(environment(enlarged(cut(PT, (1, 1, 1))[0], 3, 0.0)))

    step = fcc211("Pt", (3, 2, 4), a=A, vacuum=8)
    step.pbc = True
    step.set_constraint(FixAtoms(step.positions[:, 2] < 9.0))
    wrapped = step.copy()
    wrapped.positions += [0.3, 0.2, 11.0]
    wrapped.wrap()
    # The same slab in a cell whose third vector leans, and in one that is turned in space.
    leaning = step.copy()
    leaning.set_cell([step.cell[0], step.cell[1], step.cell[2] + 2 * step.cell[0]])
    turned = wrapped.copy()
    turned.rotate(70, (1, 2, 3), rotate_cell=True)
    (plain,) = surfaces(step)
    for k, other in enumerate((wrapped, leaning, turned)):
        path = tmp_path / f"{k}.extxyz"
        write(path, other)
        for given in (path, other):
            (one,) = surfaces(given)
            assert environment(one.atoms) == pytest.approx(environment(plain.atoms))
            assert np.sort(one.atoms.positions[one.fixed, 2]) == pytest.approx(
                np.sort(plain.atoms.positions[plain.fixed, 2]), abs=1e-6
            )
            assert len(one.sites) == len(plain.sites)
    assert plain.fixed.sum() == (step.positions[:, 2] < 9.0).sum()


@pytest.mark.parametrize(
    ("on", "coverage", "message"),
    [
        ("Xx", None, "'Xx' is neither a metal nor a file; write Pt, Pt:211"),
        ("none.cif:111", None, "'none.cif:111' is neither a metal nor a file"),
        ("Si", None, "Si: its lattice has no close-packed plane; name one, as Si:100"),
        ("Mn:100", None, r"Mn: ASE has no crystal of it \(.*\); give a file, as Mn.cif:100"),
        ("Pt:000", None, "Pt:000: one of the indices must not be zero"),
        ("Ru:1011", None, "of four indices the first three add up to zero"),
        ("Pt", "0.7", "coverage 0.7: write one molecule to how many surface atoms, as 1/4 or 0.25"),
        ("Pt", "x", "coverage x: write one molecule"),
        ("Pt", "0", "coverage 0: write one molecule"),
        ("Ru:11-20", "1/3", r"Ru\(11-20\): its smallest cell has 2 surface atoms, .* 1/2, 1/4, 1/6 and so on"),
        ("Pt", "1/500", "would have more than 400 atoms; make a slab of your own"),
        (PT, None, "Pt4: no slab, .*; to cut a crystal, name a plane, as Pt4:111"),
        (fcc111("Pt", (2, 2, 3), vacuum=8), "1/2", "Pt12: a slab has the coverage that its size gives"),
    ],
)
def test_mistakes(on, coverage, message):
    with pytest.raises(InputError, match=message) as caught:
        surfaces(on, coverage)
    assert "\n" not in str(caught.value)
