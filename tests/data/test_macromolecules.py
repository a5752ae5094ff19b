"""PDB and mmCIF: models, alternate locations, symmetry, elements, and lines that must not be lost."""

import io

import gemmi
import numpy as np
import pytest
from ase import Atoms
from ase.spacegroup import crystal

from molflt.data.ase import to_atoms
from molflt.data.macromolecules import pdb_frames
from molflt.data.text import Notes
from molflt.errors import InputWarning

WATER = [("O", 0.0, 0.0), ("H1", 0.96, 0.0), ("H2", -0.24, 0.93)]


def atom(name, x, y, *, serial=1, alt=" ", occ="  1.00", tail=""):
    """A line of a PDB file; ``tail`` stands from column 77 on, by default the element."""
    start = f"HETATM{serial:5d} {name:>3} {alt}HOH A   1    {x:8.3f}{y:8.3f}{1.0:8.3f}{occ}  0.00"
    return f"{start}          {tail or ' ' + name[0]}\n"


def water(shift=0.0):
    return "".join(atom(name, x + shift, y, serial=k) for k, (name, x, y) in enumerate(WATER, start=1))


def cryst(group, lengths="   10.000   10.000   10.000"):
    return f"CRYST1{lengths}  90.00  90.00  90.00 {group:<11}   1\n"


@pytest.fixture
def atoms_of(read):
    """As ASE's Atoms, the structures of a file."""
    return lambda text, name="a.pdb": [to_atoms(data) for data in read(name, text)]


@pytest.mark.parametrize(
    "text",
    [
        water() + "END\n" + water(0.1) + "END\n",
        "MODEL        1\n" + water() + "ENDMDL\nMODEL        2\n" + water(0.1) + "ENDMDL\nEND\n",
        "MODEL        1\n" + water() + "TER\nENDMDL\nMODEL        1\n" + water(0.1) + "ENDMDL\n",
        water() + "ENDMDL\n" + water(0.1) + "ENDMDL\n",
        cryst("P 1") + water() + "END\n" + cryst("P 1") + water(0.1) + "END\n",
        water().lower() + "end\n" + water(0.1) + "END\n",
    ],
)
def test_models(text, atoms_of):
    first, second = atoms_of(text)
    assert first.get_chemical_symbols() == second.get_chemical_symbols() == ["O", "H", "H"]
    np.testing.assert_allclose(second.positions - first.positions, [[0.1, 0, 0]] * 3, atol=1e-9)
    assert first.pbc.all() == second.pbc.all() == ("CRYST1" in text)


def test_frames_without_end(atoms_of, refused):
    """Frames that overlap are such; what may be two molecules side by side is asked about."""
    with pytest.warns(InputWarning, match="the file has no END"):
        assert [len(atoms) for atoms in atoms_of(3 * water())] == [3, 3, 3]
    refused("a.pdb", water() + water(5.0), r"a\.pdb: line 4: .*begin again; write END")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (water() + "END\n" + water()[:-82], "line 5: the model that begins here has no end"),
        ("MODEL        1\n" + water() + "END\n", "line 5: END, and the MODEL of line 1 has no ENDMDL"),
        ("MODEL        1\n" + water(), "line 2: the model that begins here has no end"),
        ("NUMMDL    3\n" + water() + "END\n", "NUMMDL declares 3 models, and there are 1"),
        (water().replace(" 0.960", " 0.9x0") + "END\n", r"line 2: '0\.9x0' in columns 31-54 is not a coordinate"),
        (water().replace("   0.960", "        ") + "END\n", "line 2: '' in columns 31-54 is not a coordinate"),
        (water().replace("   0.960", "     nan") + "END\n", "line 2: 'nan' in columns 31-54"),
        (water().replace("  0.960 ", "\t0.960") + "END\n", "line 2: an atom needs fixed columns"),
        (" " + water() + "END\n", "line 1: 'HETATM    1   O  HOH A .*' is not a record"),
        (water() + "ATOMS   1 O 1.0 2.0 3.0\nEND\n", "line 4: 'ATOMS   1 O .*' is not a record"),
        (cryst("P 1", "   10.000   10.000   1x.000") + water() + "END\n", "line 1: .*correct CRYST1"),
        (water() + cryst("P 1") + "END\n", "line 4: CRYST1 among the atoms"),
        (cryst("F d d d") + water() + "END\n", ".*may be meant in setting F d d d:1 or F d d d:2"),
        (cryst("Q 1") + water() + "END\n", "'Q 1' is not a known space group"),
        (cryst("P 41", "   10.000   11.000   10.000") + water() + "END\n", ".*does not have the symmetry of P 41"),
        (cryst("P -1") + water(0.3) + water(0.6).replace("HOH", "WAT") + "END\n", r"O of HOH 1 .* apart"),
        (atom("O", 0, 0) + "END\n", r"O of HOH 1 \(line 1\): its residue has no hydrogen"),
        (water().replace("           O", "           X") + "END\n", ".*is of no known element"),
    ],
)  # fmt: skip
def test_nothing_is_lost_or_guessed(text, message, refused):
    refused("a.pdb", text, rf"a\.pdb(#0)?: {message}")


def test_alternate_locations(atoms_of):
    """The highest occupancy, else the first, in molecules and crystals, with a remark."""
    for shares, x in (((0.6, 0.4), 0.96), ((0.4, 0.6), 0.9), ((0.5, 0.5), 0.96)):
        both = zip((0.96, 0.9), "AB", shares, strict=True)
        hydrogen = [atom("H1", at, 0.1, alt=letter, occ=f"{share:6.2f}") for at, letter, share in both]
        lines = [atom("O", 0, 0), *hydrogen, atom("H2", -0.24, 0.93)]
        for head in ("", cryst("P 1")):
            with pytest.warns(InputWarning, match="alternate locations"):
                (atoms,) = atoms_of(head + "".join(lines) + "END\n")
            assert atoms.get_chemical_symbols() == ["O", "H", "H"]
            assert atoms.positions[1, 0] == pytest.approx(x)


@pytest.mark.parametrize("group", ["P 21 21 21", "P 1 21 1", "I 4", "P -1", "R 3 :R"])
def test_symmetry_is_applied(atoms_of, group):
    """Four waters of P 21 21 21, and so on, at ASE's distances; an atom on a special position is one."""
    (atoms,) = atoms_of(cryst(group) + water(2.0) + "END\n")
    positions = np.array([[x + 2.0, y, 1.0] for _, x, y in WATER]) / 10
    number = gemmi.find_spacegroup_by_name(group).number
    setting = 2 if group == "R 3 :R" else 1
    expected = crystal(
        ["O", "H", "H"], positions, spacegroup=number, setting=setting, cellpar=[10, 10, 10, 90, 90, 90]
    )
    assert atoms.get_chemical_formula() == expected.get_chemical_formula()
    ours, theirs = (np.sort(a.get_all_distances(mic=True), axis=None) for a in (atoms, expected))
    np.testing.assert_allclose(ours, theirs, atol=2e-3)
    argon = atom("O", 0, 0).replace("HOH", " AR").replace("           O", "          AR").replace("  O ", " AR ")
    (single,) = atoms_of(cryst("P -1") + argon.replace("   1.000  1.00", "   0.000  0.50") + "END\n")
    assert len(single) == 1


def test_elements_and_charges(atoms_of, refused):
    sodium = "HETATM    1 NA    NA A   1       0.000   0.000   0.000  1.00  0.00          NA1+\n"
    (atoms,) = atoms_of(sodium.replace("1+", "") + "END\n")
    assert atoms.get_chemical_symbols() == ["Na"]
    refused("a.pdb", sodium + "END\n", r"a\.pdb#0: .*charge")
    # without columns 77-78 a name decides, with a remark: calcium, or a C-alpha that stands one column to the left
    lines = {"CA    CA": "Ca", " CA  ALA": "C", "CA   ALA": "C", "CL1  LIG": "Cl", "1HB  ALA": "H"}
    for names, element in lines.items():
        text = f"HETATM    1 {names} A   1       0.000   0.000   0.000  1.00  0.00\n"
        hydrogen = "HETATM    2  H   ALA A   1       2.000   0.000   0.000  1.00  0.00           H\n"
        notes = Notes("a.pdb")
        (atoms,) = pdb_frames(io.StringIO(text + hydrogen + "END\n"), "a.pdb", notes)
        assert isinstance(atoms, Atoms)
        with pytest.warns(InputWarning, match="from the names of atoms") as said:
            notes.give()
        assert atoms.get_chemical_symbols() == [element, "H"]
        assert any("may mean two elements" in str(one.message) for one in said) == (names in ("CA   ALA", "CL1  LIG"))


def test_order_of_atoms_is_that_of_the_file(atoms_of):
    """Also where a residue is written in two parts, which gemmi joins."""
    lines = water().splitlines(keepends=True)
    other = "".join(lines).replace("A   1", "B   2").replace("   1.000", "   5.000")
    with pytest.warns(InputWarning, match="no END"):
        (atoms,) = atoms_of(lines[0] + other + "".join(lines[1:]))
    assert atoms.positions[:, 2].tolist() == [1, 5, 5, 5, 1, 1]


@pytest.mark.parametrize("name", ["a.cif", "a.mmcif"])
def test_mmcif_is_read_as_pdb_is(atoms_of, refused, name):
    """Two models of a crystal with an alternate location; a row that cannot be read is named."""
    text = cryst("P 21 21 21") + "MODEL        1\n" + water(2.0) + "ENDMDL\nMODEL        2\n"
    text += water(2.1).replace(" H1  HOH", " H1 AHOH") + atom("H1", 3.0, 0.1, alt="B", occ="  0.30") + "ENDMDL\nEND\n"
    document = gemmi.read_pdb_string(text).make_mmcif_document()
    with pytest.warns(InputWarning, match="alternate locations"):
        first, second = atoms_of(document.as_string(), name)
    with pytest.warns(InputWarning):
        expected = atoms_of(text)
    for atoms, other in zip((first, second), expected, strict=True):
        assert len(atoms) == 12
        np.testing.assert_allclose(atoms.positions, other.positions, atol=1e-6)
    damaged = document.as_string().replace(" 2.96 ", " x ")
    refused(name, damaged, r"row 2 of the loop at line \d+ has coordinates x, ")
