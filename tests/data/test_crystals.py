"""Crystals from CIF: symmetry against pymatgen and spglib, what is declared, and what is refused or remarked on."""

import io

import gemmi
import numpy as np
import pytest
from ase.build import bulk
from ase.cell import Cell

from molflt.data.crystals import cif_frames
from molflt.data.text import Notes
from molflt.errors import InputError, InputWarning

pytest.importorskip("pymatgen")
pytest.importorskip("spglib")
import spglib
from pymatgen.core import Lattice, Structure
from pymatgen.io.cif import CifParser

CELL = ("length_a", "length_b", "length_c", "angle_alpha", "angle_beta", "angle_gamma")
CUBE = (4.0, 4.0, 4.0, 90, 90, 90)
SALT = "Na1 Na 0 0 0\nCl1 Cl 0.5 0.5 0.5\n"


def cif(sites, *items, cell=CUBE, extra="", block="x"):
    """A block: its cell, items, and sites of label, type, x, y, z and what ``extra`` names."""
    lengths = [f"_cell_{name} {value}" for name, value in zip(CELL, cell, strict=True)]
    columns = ["label", "type_symbol", "fract_x", "fract_y", "fract_z", *extra.split()]
    loop = [f"_atom_site_{name}" for name in columns]
    return "\n".join([f"data_{block}", *lengths, *items, "loop_", *loop, sites])


def named(name):
    return f"_space_group_name_H-M_alt '{name}'"


def operations(group):
    return "loop_\n_space_group_symop_operation_xyz\n" + "\n".join(f"'{op.triplet()}'" for op in group.operations())


def crystals(text, notes=None):
    """All of a text; the first error is raised."""
    found = []
    for frame in cif_frames(io.StringIO(text), "a.cif", notes or Notes("a.cif")):
        if isinstance(frame, InputError):
            raise frame
        found.append(frame)
    return found


def one(text):
    (atoms,) = crystals(text)
    return atoms


def cell_of(group):
    system, (a, b, c) = group.crystal_system_str(), (11.0, 12.5, 14.0)
    if group.ext == "R":
        return (a, a, a, 70, 70, 70)
    if system == "triclinic":
        return (a, b, c, 83, 97, 101)
    if system == "monoclinic":
        return (a, b, c, *(102 if axis == group.monoclinic_unique_axis() else 90 for axis in "abc"))
    gamma = 120 if system in ("trigonal", "hexagonal") else 90
    return (a, b if system == "orthorhombic" else a, a if system == "cubic" else c, 90, 90, gamma)


GROUPS = [
    "P 1", "P -1", "P 1 21 1", "P 1 1 21", "P 1 21/c 1", "P 1 21/n 1", "P 1 1 21/b", "P 21/b 1 1", "C 1 2/c 1",
    "A 1 2/n 1", "I 1 2/a 1", "B 1 1 2/b", "P n m a", "P b n m", "P m c n", "C m c a", "A b m a", "F d d d:1",
    "F d d d:2", "P 4/n m m:1", "P 4/n m m:2", "I 41/a m d:1", "I 41/a m d:2", "P 42 21 2", "R 3:H", "R 3:R",
    "R -3 m:H", "R -3 m:R", "R 3 c:H", "R 3 c:R", "P 31 2 1", "P 32 1 2", "P 63/m m c", "P 61 2 2", "P a -3",
    "P n -3 m:1", "P n -3 m:2", "F d -3 m:1", "F d -3 m:2", "I -4 3 d",
]  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
def test_symmetry_against_pymatgen_and_spglib(name):
    """By listed operations, by name, by Hall symbol, and rounded: atoms, composition, distances and space group."""
    group, random = gemmi.find_spacegroup_by_name(name), np.random.default_rng(5)
    lattice = Cell.fromcellpar(cell_of(group))
    # two sites in general position, and one that is special in many groups; no two atoms near each other
    apart = 0.0
    while apart < 0.9:
        points = [*random.uniform(size=(2, 3)), np.zeros(3)]
        images = np.array([op.apply_to_xyz(p.tolist()) for p in points for op in group.operations()])
        between = images - np.array(points)[:, None]
        distances = np.linalg.norm((between - np.rint(between)) @ lattice[:], axis=2)
        # the last is its own image
        apart = np.sort(distances[distances > 1e-6])[0] if len(images) > 3 else 9.0
    sites = zip(("H1 H", "He1 He", "F1 F"), points, strict=True)
    exact, rounded = "", ""
    for site, point in sites:
        exact += f"{site} {' '.join(f'{x:.6f}' for x in point)}\n"
        rounded += f"{site} {' '.join(f'{x:.3f}' for x in point)}\n"
    cell = cell_of(group)
    texts = [
        cif(exact, operations(group), cell=cell),
        cif(exact, named(name), cell=cell),
        cif(exact, f"_space_group_name_Hall '{group.hall}'", cell=cell),
        cif(rounded, named(name), operations(group), f"_space_group_IT_number {group.number}", cell=cell),
    ]
    parser = CifParser(io.StringIO(texts[0]), site_tolerance=1e-3, occupancy_tolerance=1e3)
    (expected,) = parser.parse_structures(primitive=False, check_occu=False)
    for text, tolerance in zip(texts, (1e-4, 1e-4, 1e-4, 0.05), strict=True):
        atoms = one(text)
        assert sorted(atoms.numbers) == sorted(expected.atomic_numbers)
        ours, theirs = (
            np.sort(Structure(Lattice(atoms.cell[:]), numbers, places).distance_matrix, axis=None)
            for numbers, places in (
                (atoms.numbers, atoms.get_scaled_positions()),
                (expected.atomic_numbers, expected.frac_coords),
            )
        )
        np.testing.assert_allclose(ours, theirs, atol=tolerance)
        spg = (atoms.cell[:], atoms.get_scaled_positions(), atoms.numbers)
        assert spglib.get_symmetry_dataset(spg, symprec=tolerance).number == group.number


@pytest.mark.parametrize("digits", [2, 3, 4, 5])
def test_rounded_special_positions_are_one_atom(digits):
    third, two_thirds = (f"{x:.{digits}f}" for x in (1 / 3, 2 / 3))
    atoms = one(cif(f"Mg1 Mg {third} {two_thirds} 0.25\n", named("P 63/m m c"), cell=(3.21, 3.21, 5.21, 90, 90, 120)))
    exact = bulk("Mg", "hcp", a=3.21, c=5.21)
    np.testing.assert_allclose(atoms.get_all_distances(mic=True), exact.get_all_distances(mic=True), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "cell", "site", "expected"),
    [
        ("R -3 m", (4.746, 4.746, 4.746, 57.23, 57.23, 57.23), "Bi 0.234 0.234 0.234", (2, 3.07)),
        ("F d -3 m S", (3.567, 3.567, 3.567, 90, 90, 90), "C 0 0 0", (8, 1.54)),
        ("Fd-3mZ", (3.567, 3.567, 3.567, 90, 90, 90), "C 0.125 0.125 0.125", (8, 1.54)),
    ],
)
def test_settings(name, cell, site, expected):
    atoms = one(cif(f"X1 {site}\n", named(name), cell=cell))
    near = (atoms * (2, 2, 2)).get_all_distances(mic=True)
    np.fill_diagonal(near, 9)
    assert (len(atoms), round(near.min(), 2)) == expected


def test_a_setting_that_is_left_open():
    """Refused, unless the rest of the file decides; the unique axis of a short symbol is decided by the cell."""
    carbon, cell = "C1 C 0.125 0.125 0.125\n", (3.567, 3.567, 3.567, 90, 90, 90)
    for item in (named("F d -3 m"), "_space_group_IT_number 227"):
        with pytest.raises(InputError, match=r"setting F d -3 m:1 or F d -3 m:2, and the file does not say which"):
            crystals(cif(carbon, item, cell=cell))
        notes = Notes("a.cif")
        (atoms,) = crystals(cif(carbon, item, "_chemical_formula_sum C", "_cell_formula_units_Z 8", cell=cell), notes)
        assert len(atoms) == 8
        with pytest.warns(InputWarning, match="only F d -3 m:2 agrees"):
            notes.give()
    assert (
        len(one(cif(carbon, "_space_group_IT_number 227", "_space_group_IT_coordinate_system_code 2", cell=cell)))
        == 8
    )
    assert len(one(cif("O1 O 0.1 0.2 0.3\n", named("P 2"), cell=(5, 6, 7, 90, 90, 100)))) == 2
    assert one(cif("O1 O 0.1 0.2 0.3\n", named("P 2"), cell=(5, 6, 7, 90, 90, 100))).positions[1, 2] > 0


IN_FULL = [
    named("F m -3 m"),
    "_chemical_formula_sum 'Cl Na'",
    "_cell_formula_units_Z 4",
    "_exptl_crystal_density_diffrn 2.16",
]
ROCK = (5.64, 5.64, 5.64, 90, 90, 90)


def test_declared_contents_agree():
    assert len(one(cif(SALT, *IN_FULL, cell=ROCK))) == 8
    multiplicities = "Na1 Na 0 0 0 4\nCl1 Cl 0.5 0.5 0.5 4\n"
    assert len(one(cif(multiplicities, *IN_FULL, cell=ROCK, extra="symmetry_multiplicity"))) == 8
    # D counts as H, and weighs its own
    heavy = cif(
        "O1 O 0 0 0\nD1 D 0 0 0.24\nD2 D 0 0.24 0\n", "_chemical_formula_sum 'D2 O'", "_cell_formula_units_Z 1"
    )
    assert one(heavy).get_chemical_formula() == "H2O"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("_Z 4", "_Z 2"), r"4 atoms of Cl in the cell, and 2 are declared, 2 times Cl Na"),
        (("F m -3 m", "P m -3 m"), r"1 atoms of Cl in the cell, and 4 are declared"),
        (("2.16", "1.1"), r"8 atoms in 179\.4 Å³ have a density of 2\.164 g/cm³, and 1\.1 is declared"),
        (("'Cl Na'", "'Cl Na H2'"), "hydrogens are missing.*add them"),
        (("'Cl Na'", "'Cl Na O'\n_platon_squeeze_details ?"), "solvent was masked.*atoms are missing"),
        (("_length_a 5.64", "_length_a 5.94"), r"the cell \(5\.94, 5\.64, 5\.64, 90, 90, 90\) does not have"),
        (("_length_a 5.64", "_length_b 5.64"), "line 3: _cell_length_b occurs twice"),
        (("_length_a 5.64", "_length_a ?"), r"_cell_length_a is missing; give the cell"),
        (("F m -3 m", "F m m 3"), "'F m m 3' is not a known space group"),
        (("F m -3 m'", "F m -3 m'\n_space_group_IT_number 221"), "is number 225, and number 221 is written"),
        (("F m -3 m'", "F m -3 m'\n_symmetry_equiv_pos_as_xyz x,y,z"), r"number 1\b.*is said to be 'F m -3 m'"),
        (("Cl1 Cl 0.5", "Cl1 Cl ?"), r"site Cl1 \(row 2 of the loop at line 12\) has coordinates \?, 0\.5, 0\.5"),
        (("Cl1 Cl 0.5", "Cl1 Cl 1/2"), "has coordinates 1/2, 0.5, 0.5; give three numbers"),
        (("Cl1 Cl", "Cl1 Wat"), "site Cl1 .* is of type 'Wat', which is not an element"),
        (("Cl1 Cl 0.5 0.5 0.5", "Cl1 Cl 0.01 0 0"), r"site Na1 .* and site Cl1 .* Å apart"),
        (("Cl1 Cl 0.5 0.5 0.5", "Cl1 Cl 0.5 0.5 0.53"), "site Cl1 .* and its own image are .* Å apart.*more digits"),
    ],
)  # fmt: skip
def test_contradictions_are_named(change, message):
    text = cif(SALT, *IN_FULL, cell=ROCK)
    assert change[0] in text
    if "apart" in message:
        text = text.replace("_chemical_formula_sum", "_other").replace("_exptl_crystal_density_diffrn", "_another")
    with pytest.raises(InputError, match=rf"a\.cif#0: data_x: .*{message}"):
        crystals(text.replace(*change, 1))


def test_operations_that_are_no_group():
    for listed, message in (
        ("'x,y,z'\n'-y,x,z'", "2 operations listed are not a group"),
        ("'x,y,z'\n'x+1/7,y,z'", "is not an operation of symmetry"),
        ("'-x,-y,-z'", "are not a group"),
    ):
        with pytest.raises(InputError, match=message):
            crystals(cif(SALT, "loop_\n_space_group_symop_operation_xyz\n" + listed))
    with pytest.raises(InputError, match="magnetic structure"):
        crystals(cif(SALT, "_space_group_symop_magn_operation.xyz x,y,z,+1"))


def test_partial_occupancies_and_alternatives_are_refused():
    for occupancy in ("?", ".", "1", "1.0", "1.00(2)"):
        sites = f"Na1 Na 0 0 0 {occupancy}\nCl1 Cl 0.5 0.5 0.5 1\n"
        assert len(one(cif(sites, named("P 1"), extra="occupancy"))) == 2
    for occupancy in ("0.5", "0.98(1)", "0", "2"):
        with pytest.raises(InputError, match=r"site Na1 .*partly occupied"):
            crystals(cif(f"Na1 Na 0 0 0 {occupancy}\n", extra="occupancy"))
    for groups in (("1", "2"), ("-1", ".")):
        sites = f"O1 O 0 0 0 {groups[0]}\nO2 O 0.5 0.5 0.5 {groups[1]}\n"
        with pytest.raises(InputError, match=r"site O. .*one of several alternatives"):
            crystals(cif(sites, extra="disorder_group"))
    with pytest.raises(InputError, match=r"site Q1 .*dummy atom"):
        crystals(cif("Q1 C 0 0 0 dum\n", extra="calc_flag"))


@pytest.mark.parametrize(
    ("label", "symbol", "element"),
    [("Fe1", "Fe3+", "Fe"), ("x", "O2-", "O"), ("x", "FE", "Fe"), ("Fe3+17b", "?", "Fe"), ("C1A", ".", "C"),
     ("OW1", "?", "O"), ("Cl", "?", "Cl"), ("x", "T", "H"), ("x", "Fe+2", "Fe")],
)  # fmt: skip
def test_elements(label, symbol, element):
    atoms = one(cif(f"{label} {symbol} 0 0 0\n", named("P 1")))
    assert atoms.get_chemical_symbols() == [element]
    assert not atoms.get_initial_charges().any()


@pytest.mark.parametrize("label", ["Wat1", "CO1", "Oh", "*1"])
def test_labels_that_may_be_several_elements(label):
    with pytest.raises(InputError, match="name its element in _atom_site_type_symbol"):
        crystals(cif(f"{label} ? 0 0 0\n", named("P 1")))


def test_blocks_are_structures_each_for_itself(read, refused):
    """Publication blocks hold none; a bad block has its place; names of blocks may repeat; remarks come once."""
    note = "data_global\n_publ_author_name 'M\u00fcller'\n"
    good, bad = cif(SALT, named("P 1")), cif("Na1 Na 0 0 0 0.5\n", named("P 1"), extra="occupancy")
    text = (note + good + bad + cif(SALT)).encode("latin-1")
    with pytest.warns(InputWarning, match=r"no symmetry is given: P 1 is taken \(.*a\.cif#2\)"):
        found = read("a.cif", text, on_bad="skip").items
    assert [isinstance(item, InputError) for item in found] == [False, True, False]
    with pytest.warns(InputWarning):
        refused("a.cif", text, r"a\.cif#1: data_x: site Na1 ")
    refused("a.cif", note, "holds no structures")
    refused("a.cif", good + "loop_\n_x\n_y\n1 2 3\n", r"a\.cif: line 17: Wrong number of values")


def test_cartesian_coordinates_and_newer_names():
    cell = (5.0, 6.0, 7.0, 80, 95, 100)
    fractions = np.array([[0.1, 0.2, 0.3], [0.6, 0.7, 0.8]])
    places = fractions @ Cell.fromcellpar(cell)[:]
    sites = "".join(f"O{k} O {' '.join(map(str, p))}\n" for k, p in enumerate(places.tolist()))
    text = cif(sites, named("P 1"), cell=cell).replace("_fract_", "_Cartn_").replace("_atom_site_", "_atom_site.")
    notes = Notes("a.cif")
    (atoms,) = crystals(text.replace("_cell_", "_cell."), notes)
    np.testing.assert_allclose(atoms.get_scaled_positions(), fractions, atol=1e-9)
    with pytest.warns(InputWarning, match="x along a"):
        notes.give()
