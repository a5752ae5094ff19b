"""xyz and extended xyz: frames as ASE reads them where it can, and nothing dropped where it cannot."""

import gzip
import io
import warnings
from contextlib import suppress

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms, FixCartesian
from ase.units import Hartree

from molflt.data.labels import LabelSpec
from molflt.data.open import open_dataset
from molflt.data.text import Notes, element
from molflt.data.xyz import xyz_frames
from molflt.errors import InputError, InputWarning

WATER = "3\nwater\nO 0 0 0\nH 0.96 0 0\nH -0.24 0.93 0\n"
COPPER = '2\nLattice="3.6 0 0 0 3.6 0 0 0 3.6" Properties=species:S:1:pos:R:3 energy=-1\nCu 0 0 0\nCu 1.8 1.8 0\n'
NEP = """2
lattice="3.6 0 0 0 3.6 0 0 0 3.6" energy=-7.1 properties=species:S:1:pos:R:3:force:R:3
Cu 0 0 0 0.1 0 0
Cu 1.8 1.8 0 -0.1 0 0
"""
QM9 = """3
gdb 7\t799.5\t437.9\t282.9\t1.85\t6.3\t-0.29\t0.07\t0.36\t19.0\t0.021\t-76.4\t-76.3\t-76.2\t-76.5\t6.0
O\t-0.03\t 0.97\t 0.007\t-0.58
H\t 0.06\t 0.02\t 1.5*^-3\t 0.29
H\t 0.87\t 1.30\t 0.0007\t 0.29
1671\t3803\t3907
O\tO
InChI=1S/H2O/h1H2\tInChI=1S/H2O/h1H2
"""


def frames(text):
    found = []
    for frame in xyz_frames(io.StringIO(text), "a.xyz", Notes("a.xyz")):
        if isinstance(frame, InputError):
            raise frame
        found.append(frame)
    return found


@pytest.fixture
def remarks(read):
    """Warnings that come with the reading of a text."""

    def remarks(text, **options):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            read("a.xyz", text, **options)
        return [str(one.message) for one in found if one.category is InputWarning]

    return remarks


def assert_same(ours, theirs):
    """Equal, and of one type."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_same(ours[key], theirs[key])
    elif isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    else:
        assert ours == theirs


def random_atoms(random):
    """With about half of all that extended xyz can hold."""
    n = int(random.integers(1, 9))
    atoms = Atoms(random.choice(["H", "C", "O", "Cl", "Cu"], n), positions=random.normal(size=(n, 3)))

    def maybe():
        return bool(random.random() < 0.5)

    if maybe():
        atoms.set_cell(random.normal(size=(3, 3)) + 5 * np.eye(3))
        atoms.pbc = random.random(3) < 0.5
    arrays = {
        "tags": random.integers(0, 3, n), "initial_charges": random.normal(size=n),
        "initial_magmoms": random.normal(size=n), "momenta": random.normal(size=(n, 3)),
        "flag": random.random(n) < 0.5, "two_flags": random.random((n, 2)) < 0.5,
        "residue": np.array([f"R{k}" for k in range(n)]), "Mixed_Case": random.integers(0, 9, (n, 2)),
        "positions_relaxed": random.normal(size=(n, 3)),
    }  # fmt: skip
    infos = {
        "number": -3, "real": 1.5e-7, "flag": True, "flags": np.array([True, False]),
        "text": "two words = \"three\" 'four' [five] {six}", "word": "C=C", "no_value": None, "key with spaces": 1,
        "vector": random.normal(size=4), "matrix": random.normal(size=(2, 3)), "tree": {"a": [1, "b"], "c": None},
        "list": [1, 2, 3], "names": ["a", "b"], "virial": random.normal(size=(3, 3)), "sid": 12, "uid": "0012",
        "REF_energy": -1.25,
    }  # fmt: skip
    results = {
        "energy": float(random.normal()), "forces": random.normal(size=(n, 3)), "stress": random.normal(size=6),
        "charges": random.normal(size=n), "magmoms": random.normal(size=n), "dipole": random.normal(size=3),
        "free_energy": -2.0,
    }  # fmt: skip
    for name, array in arrays.items():
        if maybe():
            atoms.set_array(name, array)
    atoms.info.update({key: value for key, value in infos.items() if maybe()})
    if results := {key: value for key, value in results.items() if maybe()}:
        atoms.calc = SinglePointCalculator(atoms, **results)
    if maybe():
        atoms.set_constraint(FixAtoms([0]) if maybe() else [FixCartesian(0, [True, False, True])])
    return atoms


def test_it_is_what_ase_reads(tmp_path):
    random = np.random.default_rng(0)
    images = [random_atoms(random) for _ in range(300)]
    path = tmp_path / "a.xyz"
    ase.io.write(path, images, format="extxyz")
    ours = frames(path.read_text(encoding="utf-8"))
    theirs = ase.io.read(path, ":", format="extxyz")
    # Lines VEC in place of Lattice, as ADF has them. ASE makes a key of the comment.
    ase.io.write(path, images, format="extxyz", vec_cell=True)
    for reference in ase.io.read(path, ":", format="extxyz"):
        reference.info.pop("comment", None)
        theirs.append(reference)
    ours += frames(path.read_text(encoding="utf-8"))
    assert len(ours) == 600
    for mine, reference in zip(ours, theirs, strict=True):
        assert_same(mine.arrays, reference.arrays)
        assert_same(mine.cell.array, reference.cell.array)
        assert_same(mine.pbc, reference.pbc)
        assert_same(mine.info, reference.info)
        assert_same(getattr(mine.calc, "results", {}), getattr(reference.calc, "results", {}))
        assert [one.todict() for one in mine.constraints] == [one.todict() for one in reference.constraints]


@pytest.mark.parametrize("suffix", ["xyz", "extxyz"])
def test_each_comment_decides_for_its_frame(suffix, read):
    # A mark of the byte order is inside where files were put together.
    for text in (WATER + COPPER, COPPER + WATER, WATER + "\ufeff" + COPPER):
        found = {len(data.positions): data for data in read(f"a.{suffix}", text)}
        assert {n: data.pbc.all().item() for n, data in found.items()} == {3: False, 2: True}
        assert ("energy" in found[3], float(found[2].energy)) == (False, -1.0)


def test_keys_in_any_case(read):
    """GPUMD and NEP ignore it, and call forces ``force``, which a user must name."""
    for text in (NEP, NEP.replace("lattice", "LATTICE").replace("energy", "Energy").replace("force", "Forces")):
        assert ("forces" in read("nep.xyz", text)[0]) == (text != NEP)
        (data,) = read("nep.xyz", text, labels=LabelSpec(force_label="force" if text == NEP else "FORCES"))
        assert data.pbc.all()
        assert data.cell[0].diagonal().tolist() == [3.6] * 3
        assert float(data.energy) == -7.1
        assert data.forces.tolist() == [[0.1, 0, 0], [-0.1, 0, 0]]
    # A name that the user gives is found in other letters, too.
    (data,) = read("a.xyz", COPPER.replace("energy", "DFT_Energy"), labels=LabelSpec(label="dft_energy"))
    assert float(data.energy) == -1.0


def test_symbols():
    words = {"H": 1, "D": 1, "t": 1, "X": 0, "17": 17, "CL": 17, "cl": 17, "br": 35, "c": 6, "C1": 6, "H_12": 1}
    assert {word: element(word) for word in words | {"Fe-2": 0, "CL3": 0}} == words | {"Fe-2": 26, "CL3": 17}
    for word in ("CO", "ca", "HG", "CA1", "Q", "OW", "1190", "-1", "x", "C1A", "2H", "Fe2+", ""):
        with pytest.raises(ValueError, match="write"):
            element(word)
    (heavy,) = frames(WATER.replace("H ", "D "))
    assert heavy.numbers.tolist() == [8, 1, 1]
    mixed = WATER.replace("O 0", "8 0").replace("\nH 0", "\n1 0").replace("H -", "OW -")
    with pytest.raises(InputError, match=r"^a\.xyz#1, line 10: 'OW' is not an element"):
        frames(WATER + mixed)


def test_raw_qm9(read):
    text = 2 * QM9 + "".join(QM9.splitlines(True)[:5]) + "\n" + QM9
    (found, *others) = frames(text)
    assert [str(atoms.symbols) for atoms in (found, *others)] == ["OH2"] * 4
    assert found.positions[1].tolist() == [0.06, 0.02, 0.0015]
    np.testing.assert_array_equal(found.arrays["mulliken"], [-0.58, 0.29, 0.29])
    expected = {"A": 799.5, "mu": 1.85, "homo": -0.29, "zpve": 0.021, "U0": -76.4, "U": -76.3, "H": -76.2, "G": -76.5}
    assert {key: found.info[key] for key in expected} == expected
    assert (found.info["Cv"], found.info["smiles"]) == (6.0, "O")
    with pytest.warns(InputWarning, match="raw QM9.*U0.* Hartree"):
        first = read("a.xyz", text, labels=LabelSpec(label="U0", unit="Hartree"))[0]
    assert float(first.energy) == pytest.approx(-76.4 * Hartree)
    with pytest.raises(InputError, match="line 6: expected three lines of QM9"):
        frames(QM9.rpartition("InChI=1S/H2O/h1H2\t")[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("O 0 0 0\n", "#0, line 1: 'O 0 0 0' stands where the number of atoms"),
        (WATER + "H 0 0 0\n", "#1, line 6: 'H 0 0 0' stands where .* announces too few atoms"),
        (WATER.replace("3\n", "3 water\n"), "line 1: '3 water' stands where"),
        (
            WATER + "\n\n" + WATER.rpartition("H")[0],
            "#1, line 8: the frame announces 3 atoms, .* ends after 2 of them",
        ),
        (WATER + "3\n", "#1, line 6: .* after 0 of them"),
        (WATER.replace("H 0.96", "\nH 0.96"), "#0, line 4: expected SYMBOL X Y Z, found 0"),
        (WATER.replace("0.93 0", "0.93"), "line 5: expected SYMBOL X Y Z, found 3: 'H -0.24 0.93'"),
        (WATER.replace("0.93", "0,93"), "line 5: column 'positions' has '-0.24 0,93 0', expected numbers"),
        (COPPER.replace("1.8 0", "1.8 0 1"), "line 4: expected the 4 columns of 'Properties', found 5"),
        (COPPER.replace("1.8 0", "1.8"), "line 4: expected the 4 columns of 'Properties', found 3"),
        (COPPER.replace("0 0 3.6", "0 0"), "line 2: Lattice is .*, expected nine numbers"),
        (COPPER.replace("0 0 3.6", "0 0 nan"), "line 2: Lattice is .*, expected nine numbers"),
        (COPPER.replace('"3.6', "3.6"), 'line 2: nothing closes the "'),
        (COPPER.replace('" ', " "), 'line 2: nothing closes the "'),
        (COPPER.replace("energy", "energy=-2 Energy"), "line 2: 'energy' and 'Energy' are two values of one name"),
        (COPPER.replace("energy", "x=-2 x"), "line 2: 'x' and 'x' are two values of one name"),
        (COPPER.replace("energy", ""), "line 2: no name stands before '=-1'"),
        (COPPER.replace("energy", "a = b = c"), "line 2: it is not clear which value 'a' has"),
        (COPPER.replace("energy", "pbc energy"), "line 2: 'pbc' has no value"),
        (COPPER.replace("energy", "pbc=XYZ energy"), "line 2: pbc is 'XYZ'; write"),
        (COPPER.replace("energy", 'pbc="T T" energy'), "line 2: pbc is"),
        (COPPER.replace("energy", "x='_JSON [1,' energy"), "line 2: the value of 'x' is"),
        (COPPER.replace("pos:R:3", "pos:R:3:Pos:R:3"), "line 2: 'Properties' names 'Pos', which is there already"),
        (COPPER.replace("pos:R:3", "pos:R"), "line 2: 'Properties' has 'pos:R:'"),
        (COPPER.replace("pos:R:3", "pos:Q:3"), "line 2: 'Properties' has 'pos:Q:3'"),
        (COPPER.replace("pos:R:3", "pos:R:0"), "line 2: 'Properties' has 'pos:R:0'"),
        (COPPER.replace("pos:R:3", "pos:R:2:x:R:1"), "line 2: 'Properties' has pos:R:2; expected R:3 or I:3"),
        (COPPER.replace("pos:R:3", "vel:R:3"), "line 2: 'Properties' names no species or no positions"),
        (NEP.replace("force:R:3", "energy:R:1:x:R:2"), "line 2: 'energy' is a key and a column"),
        (NEP.replace("force:R:3", "Z:I:1:x:R:2").replace(" 0.1", " 29").replace("-0.1", "47"), "line 4: symbol and"),
        (NEP.replace("force:R:3", "move_mask:L:3"), "line 3: column 'move_mask' has '0.1 0 0', expected T or F"),
        (NEP.replace("force:R:3", "move_mask:S:3"), "line 2: 'Properties' has move_mask:S:3"),
        (COPPER + "VEC1 1 0 0\n", "line 2: Lattice or pbc stands beside lines VEC"),
        (WATER + "VEC1 1 0 0\nVEC3 0 1 0\n", "line 7: expected VEC1 X Y Z"),
        (WATER + "VEC1 1 0\n", "line 6: expected VEC1 X Y Z"),
    ],
)
def test_errors_name_their_line(text, message):
    with pytest.raises(InputError, match=message):
        frames(text)


def test_a_frame_that_cannot_be_read_has_its_place(read, refused):
    wrong = WATER.replace("O ", "Q ")
    text = WATER + wrong + COPPER + COPPER.replace("3.6 0 0 0", "3.6 0 0")
    refused("a.xyz", text, r"(?s)2 of 4 structures .*#1, line 8: 'Q'.*#3, line 16: Lattice is")
    found = read("a.xyz", text, on_bad="skip").items
    assert [isinstance(item, InputError) for item in found] == [False, True, False, True]
    # Where it may have lost a line to the next frame, or the next one begins in its middle, no frame can be trusted.
    short, long = WATER.replace("H 0.96 0 0\n", ""), wrong.replace("H -", "H 0 0 0\nH -")
    for damaged, line in ((short, 10), (long, 8)):
        text = WATER + damaged + "2\n1\nO 0 0 0\nH 0 0 1\n"
        refused("a.xyz", text, rf"^\S*a\.xyz#1, line {line}", on_bad="skip")


def test_nothing_is_swallowed_by_what_is_empty_or_free():
    def info(comment):
        (atoms,) = frames(WATER.replace("water", comment))
        return {**atoms.info, **getattr(atoms.calc, "results", {})}

    # ASE writes an empty text so, and reads it as {'name': 'energy=-1'}
    assert info("name= energy=-1") == {"name": "", "energy": -1}
    assert info(" i = 0, time = 0.5, E = -17.1") == {"i": 0, "time": 0.5, "E": -17.1}
    assert info("final energy E=-1") == {"final": True, "E": -1}
    assert info("energy=-1 energy") == {"energy": -1}
    assert info("CC(=O)O") == {"comment": "CC(=O)O"}
    assert info("-5.07 \u2028 x") == {"comment": "-5.07 \u2028 x"}
    assert info(r"a='it\'s' b={1 2}") == {"a": "it's", "b": pytest.approx([1, 2])}


def test_remarks(remarks, tmp_path):
    assert remarks(WATER + COPPER) == []
    (one,) = remarks(2 * WATER.replace("0.93 0", "0.93 0 0.4"))
    assert one.startswith(f"{tmp_path}/a.xyz: columns behind X, Y and Z are not read")
    mace = NEP.replace("energy", "config_type=bulk REF_energy").replace("force:", "REF_forces:")
    unread = ("dft_energy", "charges", "totalCharge", "cell", "virial", "move_mask")
    for text, remark in (
        (WATER.replace("O ", "O1 "), "labels of atoms"),
        (WATER.replace("water", "energy: -5.07 gnorm: 0.1"), "the comment is free text"),
        (WATER.replace("water", "Lattice 3 0 0 0 3 0 0 0 3"), "the comment is free text"),
        (4 * mace, "not read: REF_forces, REF_energy. molflt reads"),
        *((COPPER.replace("energy", f'{name}="1 0 0" energy'), f"not read: {name}.") for name in unread),
    ):
        (one,) = remarks(text)
        assert remark in one
    assert remarks(mace, labels=LabelSpec(label="REF_energy")) == []
    assert remarks(COPPER.replace("energy", "free_energy=1 cell_type=fcc fixed=T force_field=x energy")) == []


def test_lists_that_are_no_arrays(read, refused):
    """Ragged, or such that an array of them would be a million times as large, as every text takes the longest's."""
    for value in ("[[1], [2, 3]]", f'["{"a" * 10_000}"{", 0" * 10_000}]', "[" * 300 + "]" * 300):
        (data,) = read("a.xyz", COPPER.replace("energy", f"x='_JSON {value}' energy"))
        assert data.info.keys() <= {"energy"}
    refused("a.xyz", COPPER.replace("energy", f"x='_JSON {'[' * 100_000}' energy"), "line 2: the value of 'x' is")


@pytest.mark.parametrize("count", ["1000", "100000000", "9" * 30])
@pytest.mark.parametrize("name", ["a.extxyz", "a.xyz.gz"])
def test_columns_are_counted_before_memory_is_taken(count, name, refused):
    frame = "1\nProperties=species:S:1:pos:R:3\nH 0 0 0\n"
    for before, n_atoms, spec in (
        ("", 1, f"Properties=species:S:1:pos:R:3:x:R:{count}"),
        ("", 0, f"e=1 pROPERTIES = 'species:S:1:pos:R:3:x:I:{count}'"),
        (frame, 1, f"Properties=species:S:1:pos:R:3:x:S:{count}"),
    ):
        text = f"{before}{n_atoms}\n{spec}\n{'H 0 0 0' * n_atoms}\n".encode()
        content = gzip.compress(text) if name.endswith("gz") else text
        refused(name, content, "'Properties' names 1,000 columns or more")


@pytest.mark.parametrize("count", ["20000000", "9" * 30])
@pytest.mark.parametrize("before", ["", COPPER])
def test_atoms_are_counted_before_they_are_read(count, before, refused):
    text = f"{before}{count}\nProperties=species:S:1:pos:R:3\nH 0 0 0\n"
    refused("a.extxyz", text, r"a\.extxyz#\d, line \d: the frame announces .* the file ends after 1 of them")


def test_a_comment_may_be_a_number_and_a_frame_have_vectors():
    read = frames("3\n20000000 energy=1.0\nO 0 0 0\nH 0 0 1\nH 0 1 0\nvec1 5 0 0\n\n1\n7\nH 0 0 0\n")
    assert [(len(atoms), atoms.pbc.tolist()) for atoms in read] == [(3, [True, False, False]), (1, [False] * 3)]


def test_long_comments_take_no_longer_than_they_are():
    """Patterns that try a text in many ways would not end."""
    for piece in ("a", "a ", '"', '"a" ', "\\", "= ", "a= ", "[", "{a", "a=b ", "cell ", "'a'"):
        comment = piece * (200_000 // len(piece))
        for text in (comment, f"{comment} x=1"):
            with suppress(InputError):
                frames(f"1\n{text}\nH 0 0 0\n")


@pytest.mark.parametrize("start", ["", "\ufeff", "\n \n"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_standard_input(start, end, monkeypatch):
    def piped(text):
        raw = io.BytesIO((start + text).replace("\n", end).encode())
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(raw, encoding="utf-8"))
        return open_dataset("-")

    assert [(data.name, len(data.positions)) for data in piped(WATER + COPPER)] == [("-#0", 3), ("-#1", 2)]
    with pytest.warns(InputWarning, match=r"^standard input: columns .* \(standard input #1\)$"):
        piped(WATER + WATER.replace("0.93 0", "0.93 0 1"))
    line = 7 + 2 * (start == "\n \n")
    with pytest.raises(InputError, match=rf"^standard input #1, line {line + 2}: 'Q' is not an element"):
        piped(WATER + "\n" + WATER.replace("O ", "Q "))
