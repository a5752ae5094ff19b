"""Files of VASP, DFTB+, XCrySDen, Gaussian and Quantum ESPRESSO: the same structures or an error, however damaged."""

import io
import warnings

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms
from ase.io.trajectory import Trajectory
from ase.io.xsf import write_xsf
from ase.units import Bohr

from molflt.data.ase import results_at_hand, to_atoms
from molflt.data.formats import read_ase, read_frames
from molflt.data.reading import ReadOptions
from molflt.errors import InputError, InputWarning
from tests.data.vasp_files import outcar, vasprun

pytest.importorskip("pymatgen")
from pymatgen.io.vasp import Poscar, Vasprun


def _crystal(seed=0):
    atoms = bulk("NaCl", "rocksalt", a=5.6, cubic=True)
    atoms = atoms[np.argsort(atoms.numbers, kind="stable")]
    atoms.rattle(0.1, seed=seed)
    return atoms


def _molecule():
    atoms = molecule("CH3CH2OH")
    atoms.center(vacuum=3.0)
    atoms.pbc = False
    return atoms


def _steps(n=3, force=0.01):
    frames = []
    for k in range(n):
        atoms = fcc111("Pt", (1, 1, 3), vacuum=6.0, periodic=True) + Atoms("CO", [[0, 0, 12.5], [0.2, 0, 13.65]])
        atoms.positions[3:] += 0.05 * k
        forces = np.random.default_rng(k).normal(scale=force, size=(5, 3))
        atoms.calc = SinglePointCalculator(atoms, energy=-10.0 - k, forces=forces)
        frames.append(atoms)
    return frames


def _written(form, atoms, folder, **options):
    ase.io.write(folder / "written", atoms, format=form, **options)
    return (folder / "written").read_text(encoding="utf-8")


def _files(folder):
    """Texts by the names of files, with their structures: those that scripts.hardening.damage does not write."""
    crystal, steps, selective = _crystal(), _steps(), _crystal()
    selective.set_constraint(FixAtoms([2]))
    animated = [_crystal(k) for k in range(3)]
    for atoms in animated:
        atoms.calc = SinglePointCalculator(atoms, forces=np.random.default_rng(1).normal(size=(8, 3)))
    with_grid = io.StringIO()
    write_xsf(with_grid, [crystal], data=np.zeros((3, 3, 3)))
    of_pw = {"pseudopotentials": {"Na": "Na.UPF", "Cl": "Cl.UPF"}, "input_data": {"system": {"ecutwfc": 30}}}
    velocities = Poscar.from_str(_written("vasp", crystal, folder)).structure
    return {
        "CONTCAR": (str(Poscar(velocities, velocities=np.zeros((8, 3)).tolist())), [crystal]),
        "OUTCAR": (outcar(steps), steps),
        "vasprun.xml": (vasprun(steps), steps),
        "f.gen": (_written("gen", crystal, folder, fractional=True), [crystal]),
        "a.xsf": (_written("xsf", animated, folder), animated),
        "g.xsf": (with_grid.getvalue(), [crystal]),
        "c.pwi": (_written("espresso-in", selective, folder, **of_pw), [selective]),
    }


def _same(read, expected):
    """The same structures, up to the lattice and the digits of the formats, with what was computed."""
    if len(read) != len(expected):
        return False
    for one, other in zip(read, expected, strict=True):
        if one.get_chemical_symbols() != other.get_chemical_symbols() or (one.pbc != other.pbc).any():
            return False
        apart = one.positions - other.positions
        if other.pbc.any():
            if np.abs(one.cell - other.cell).max() > 1e-5:
                return False
            scaled = np.linalg.solve(np.asarray(other.cell).T, apart.T).T
            apart = (scaled - scaled.round()) @ np.asarray(other.cell)
        if np.abs(apart).max() > 2e-5:
            return False
        for key, value in results_at_hand(other).items():
            if key not in ("energy", "forces") or np.abs(results_at_hand(one)[key] - value).max() > 1e-5:
                return False
    return True


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return _files(tmp_path_factory.mktemp("files"))


@pytest.fixture
def frames(tmp_path):
    """``frames(name, text)``: as ASE's Atoms, what a file of this text holds."""

    def frames(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return read_frames(tmp_path / name)

    return frames


NAMES = ["CONTCAR", "OUTCAR", "vasprun.xml", "f.gen", "a.xsf", "g.xsf", "c.pwi"]
DAMAGES = {
    "whole": lambda lines, k: lines,
    "a line doubled": lambda lines, k: lines[: k + 1] + lines[k:],
    "a line lost": lambda lines, k: lines[:k] + lines[k + 1 :],
    "a blank line": lambda lines, k: [*lines[:k], "", *lines[k:]],
    "cut at a line's end": lambda lines, k: lines[:k],
    "two neighbours exchanged": lambda lines, k: [*lines[:k], *lines[k : k + 2][::-1], *lines[k + 2 :]],
    "the file twice": lambda lines, k: lines + lines,
    "a block doubled": lambda lines, k: lines[: k + 9] + lines[k:],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", NAMES)
def test_damaged_files(name, damage, files, tmp_path):
    """At up to twelve places: the same, or an error, or a warning of what is left out; lines are named."""
    text, expected = files[name]
    lines = text.rstrip("\n").split("\n")
    path = tmp_path / name
    for k in range(0, len(lines), max(1, len(lines) // 12)) if damage != "whole" else [0]:
        path.write_text("\n".join(DAMAGES[damage](lines, k)) + "\n", encoding="utf-8")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", InputWarning)
            refused = ""
            try:
                read = _labelled(path)
            except InputError as error:
                refused = str(error)
        if refused:
            places = ("line ", "#", "cut short", "is empty", "ends before", "has no card", "has no ibrav")
            assert damage != "whole"
            assert str(path) in refused
            assert any(place in refused for place in places), refused
            continue
        cut = any("was cut short" in text or "skipped" in text for text in (str(warning.message) for warning in said))
        # Two atoms, or two steps, that change places are read as they stand.
        order = damage == "two neighbours exchanged"
        assert _same(read, expected) or (cut and len(read) <= len(expected)) or order, (k, lines[k])
        if order:
            assert [len(atoms) for atoms in read] == [len(atoms) for atoms in expected]


def _labelled(path):
    """As ``Atoms``, the structures of a file with what was computed."""
    return [to_atoms(data) for data in read_ase(path, ReadOptions(allow_charged=True, tags="oc20"))]


def test_pymatgen_agrees(files, frames, tmp_path):
    steps = frames("vasprun.xml", files["vasprun.xml"][0])
    run = Vasprun(tmp_path / "vasprun.xml", parse_dos=False, parse_eigen=False, parse_potcar_file=False)
    assert (run.nionic_steps, run.converged) == (len(steps), True)
    # A volume in place of a scale, of a left-handed cell too.
    left = "x\n-100.0\n3 0 0\n0 0 4\n0 5 0\nNa Cl\n1 1\nDirect\n0 0 0\n0.5 0.5 0.3\n"
    (atoms,) = frames("POSCAR", left)
    structure = Poscar.from_str(left).structure
    np.testing.assert_allclose(atoms.cell, structure.lattice.matrix, atol=1e-9)
    np.testing.assert_allclose(atoms.positions, structure.cart_coords, atol=1e-9)


HEAD = "{comment}\n1.0\n4 0 0\n0 4 0\n0 0 4\n{species}1 1\n{mode}\n0 0 0{first}\n2 2 2{second}\n{rest}"


def _poscar(**parts):
    defaults = {"comment": "x", "species": "Na Cl\n", "mode": "Cartesian", "first": "", "second": "", "rest": ""}
    return HEAD.format(**defaults | parts)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"species": "Na Cl H\n"}, "line 7: 2 numbers of atoms for 3 elements"),
        ({"species": "Na Xx\n"}, "line 6: expected symbols of elements, found 'Xx'"),
        ({"species": ""}, "line 6: no line of symbols before the numbers of atoms"),
        ({"comment": "NaCl slab", "species": ""}, "line 6: no line of symbols before the numbers of atoms"),
        ({"mode": "0 0 0"}, "line 8: expected 'Direct' or 'Cartesian'"),
        ({"mode": "Selective dynamics\nDirect", "first": " T T X"}, "line 10: expected three flags"),
        ({"mode": "Selective dynamics\nDirect", "first": " T T"}, "line 10: expected three flags"),
        ({"first": " Cl"}, "line 9: an atom called Cl, where the header has Na"),
        ({"rest": "3 3 3\n"}, "line 11: expected nothing behind 2 atoms, found '3 3 3'"),
        ({"rest": "\n0 0 0\n"}, "line 13: expected the velocity .* the file ends"),
        ({"rest": "\n0 0 0\n0 0 0\n0 0 0\n"}, "line 14: expected a blank line"),
        (
            {"rest": "\n0 0 0\n0 0 0\n\n1\n0.5\n0 0 0\n" + 5 * "0 0 0\n"},
            "line 23: expected a coordinate .* file ends",
        ),
    ],
)
def test_lines_of_poscar(parts, message, refused):
    refused("POSCAR", _poscar(**parts), rf"POSCAR: {message}")


def test_rarer_parts_of_poscar(frames):
    def read(**parts):
        (atoms,) = frames("POSCAR", _poscar(**parts))
        return atoms

    atoms = read(rest="\n1 0 0\n0 0 2\n\n1\n0.5\n0 0 0\n" + 6 * "0 0 0\n")
    np.testing.assert_allclose(atoms.get_velocities() * ase.units.fs, [[1, 0, 0], [0, 0, 2]])
    assert read(species="Na_pv/6a2f546d Cl\n").get_chemical_symbols() == ["Na", "Cl"]
    atoms = read(mode="Selective\ncartesian", first=" .FALSE. F f", second=" T t .T.")
    assert atoms.constraints[0].get_indices().tolist() == [0]
    for parts, remark in (
        ({"comment": "Na1 Cl1", "species": ""}, "no line of symbols; taken for Na Cl"),
        ({"comment": "Cl Na"}, "names Cl Na as comment and Na Cl as symbols"),
        ({"species": "Na D\n"}, "D is read as hydrogen"),
        ({"first": " T T F"}, "without a line 'Selective dynamics'"),
    ):
        with pytest.warns(InputWarning, match=f"POSCAR: .*{remark}"):
            atoms = read(**parts)
        assert atoms.numbers.tolist() == [11, 1 if "D" in parts.get("species", "") else 17]


@pytest.mark.parametrize(("name", "write"), [("OUTCAR", outcar), ("vasprun.xml", vasprun)])
def test_steps_that_are_no_labels(name, write, read, refused):
    """Electronic steps up to NELM, and a file that ends between two steps or within one."""

    def energies(text, **options):
        return [float(data.energy) for data in read(name, text, tags="oc20", **options)]

    steps, key = _steps(), "converged" if name == "OUTCAR" else "electrons"
    text, unconverged = write(steps), write(steps, **{key: [True, False, True] if name == "OUTCAR" else [9, 60, 59]})
    with pytest.warns(InputWarning, match=r"1 of 3 structures skipped(?s:.*)#1: electrons .* after 60 .*NELM=60"):
        assert energies(unconverged) == [-10.0, -12.0]
    assert energies(unconverged, accept_unconverged=True) == [-10.0, -11.0, -12.0]
    marks = [k for k in range(len(text)) if text.startswith("<calculation>", k)]
    third = marks[2] if marks else text.index("Iteration      3(")
    for end in (third, third + 200):
        with pytest.warns(InputWarning, match="was cut short; the steps that are complete are read"):
            assert energies(text[:end]) == [-10.0, -11.0]
    none = write(steps, **{key: [60 * (key == "electrons")] * 3})
    refused(name, none, f"{name}: 3 of 3 structures skipped", tags="oc20")
    refused(name, text + text, rf"{name}: line \d+: ", tags="oc20")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (" POTCAR:    PAW_PBE Pt 01Jan2000\n", "", r"line \d+: lines POTCAR: do not name every element twice"),
        ("NIONS =      5", "NIONS =      6", "NIONS is 6, and the elements are of 5 atoms"),
        ("Iteration      2(   1)", "Iteration      3(   1)", r"line \d+: step 2 was expected"),
    ],
)
def test_outcars_of_other_elements_and_of_other_steps(old, new, message, refused):
    refused("OUTCAR", outcar(_steps()).replace(old, new, 1), message, tags="oc20")


def test_a_cube_is_a_molecule_in_bohr_or_in_angstrom(read, refused, frames, tmp_path):
    mol = _molecule()
    lines = _written("cube", mol, tmp_path, data=np.zeros((3, 3, 3))).split("\n")
    for k in range(2, 6 + len(mol)):
        first, *rest = lines[k].split()
        charge, lengths = (rest[:1], rest[1:]) if k > 5 else ([], rest)
        sign = "-" if 2 < k < 6 else ""
        lines[k] = " ".join([sign + first, *charge, *(f"{float(x) * Bohr:.6f}" for x in lengths)])
    with pytest.warns(InputWarning, match="does not record periodicity: read as an isolated molecule"):
        (data,) = read("m.cube", "\n".join(lines))
    np.testing.assert_allclose(data.positions, mol.positions, atol=1e-5)
    assert not data.pbc.any()
    # Two orbitals: a negative number of atoms, then their numbers.
    orbitals = ["-" + lines[2].strip(), *lines[3 : 6 + len(mol)], "2 5 6", *2 * lines[6 + len(mol) :]]
    with pytest.warns(InputWarning):
        assert _same(frames("m.cube", "\n".join([*lines[:2], *orbitals])), [mol])
    lines[3] = lines[3].replace("-", "")
    refused("m.cube", "\n".join(lines), r"m\.cube: line 4: numbers of voxels are all positive")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ibrav            = 0", "ibrav = 2", "ibrav=2; only lattice vectors are read"),
        ("ibrav", "tot_charge = 1\n ibrav", r"#0: .*'charge'.* is 1"),
        ("ibrav", "nat = 8\n ibrav", r"line \d+: NAT a second time"),
        ("K_POINTS", "ATOMIC_POSITIONS angstrom\nNa 0 0 0\nK_POINTS", r"line \d+: ATOMIC_POSITIONS a second time"),
        ("nat              = 8", "nat = 7", r"line \d+: ATOMIC_POSITIONS has 8 lines, and should have 7"),
    ],
)
def test_inputs_of_pw(old, new, message, files, refused):
    assert old in files["c.pwi"][0]
    refused("c.pwi", files["c.pwi"][0].replace(old, new, 1), f"c.pwi.*{message}")


def test_passed_over_in_inputs_of_pw(files, frames):
    text, expected = files["c.pwi"]
    with pytest.warns(InputWarning, match="tot_magnetization=3 is ignored"):
        found = frames("c.pwi", text.replace("ibrav", 'outdir = "./a/b"\n tot_magnetization = 3\n ibrav', 1))
    assert _same(found, expected)


def test_moments_and_isotopes_of_pw(frames):
    system = "ibrav=0, nat=3, ntyp=3, starting_magnetization(1)=0.5, starting_magnetization(2) = -0.5"
    species = "ATOMIC_SPECIES\nFe1 55.8 Fe.UPF\nFe2 55.8 Fe.UPF\nD 2.0 H.UPF\n"
    cell = "CELL_PARAMETERS angstrom\n4 0 0\n0 4 0\n0 0 4\n"
    positions = "atomic_positions {angstrom}\nFe2 0 0 0 0 0 0\nFe1 2 2 2 ! comment\nD 0 0 1/2*3\n"
    with pytest.warns(InputWarning, match="D is read as hydrogen"):
        (atoms,) = frames("f.pwi", f"&SYSTEM\n {system}\n/\n{species}{cell}{positions}K_POINTS gamma\n")
    assert atoms.get_chemical_symbols() == ["Fe", "Fe", "H"]
    assert atoms.get_initial_magnetic_moments().tolist() == [-0.5, 0.5, 0.0]
    np.testing.assert_allclose(atoms.positions, [[0, 0, 0], [2, 2, 2], [0, 0, 1.5]])
    assert atoms.constraints[0].get_indices().tolist() == [0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.gen", "2 H\nC\n1 1 0 0 0\n2 1 0 0 1\n", r"line 1: .*helices, H, are not read"),
        ("a.gen", "2 C\nC\n1 1 0 0 0\n2 2 0 0 1\n", "line 4: expected the number of an atom, that of its species"),
        ("a.xsf", "ANIMSTEPS 2\nATOMS 1\nC 0 0 0\n", "line 3: 2 structures should end here, and 1 do"),
        ("a.xsf", "ANIMSTEPS 2\nATOMS 2\nC 0 0 0\nATOMS 1\nC 0 0 0\n", "line 2: step 2 where step 1 should be"),
        ("a.xsf", "ATOMS\nC 0 0 0 1 1 1\nO 0 0 1\n", "line 2: some atoms of this block have forces"),
    ],
)
def test_lines_of_gen_and_xsf(name, text, message, refused):
    refused(name, text, f"{name}: {message}")


def test_remarks_on_gen_and_xsf(frames):
    with pytest.warns(InputWarning, match="numbers in the names of species|read as hydrogen"):
        (atoms,) = frames("a.gen", "# a comment\n2 c\nFe1 D\n1 1 0 0 0\n2 2 0 0 1.6\n")
    assert (atoms.get_chemical_symbols(), atoms.get_tags().tolist()) == (["Fe", "H"], [0, 0])
    xsf = "# total energy = -1.5 eV\nSLAB\nPRIMVEC\n4 0 0\n0 4 0\n0 0 9\nPRIMCOORD\n1 1\ncu 0 0 0\n"
    with pytest.warns(InputWarning, match="a comment names an energy, which is not read"):
        (atoms,) = frames("a.xsf", xsf)
    assert (atoms.get_chemical_symbols(), atoms.pbc.tolist()) == (["Cu"], [True, True, False])


@pytest.mark.parametrize("n", [1, 2, 42, 43, 44])
@pytest.mark.filterwarnings("error::molflt.errors.InputWarning")
def test_trajectories_that_are_being_written(n, tmp_path):
    path = tmp_path / "a.traj"
    ase.io.write(path, [_crystal(k) for k in range(n)])
    whole = path.read_bytes()
    assert len(read_ase(path)) == n
    with Trajectory(path, "a") as trajectory:
        trajectory.write(_crystal(n))
    # The header is written last.
    path.write_bytes(whole + path.read_bytes()[len(whole) : -10])
    with pytest.warns(InputWarning, match="ends in the middle of a frame, which is left out"):
        assert len(read_ase(path)) == n


def test_rows_of_json(refused, tmp_path):
    path = tmp_path / "a.json"
    with ase.db.connect(path) as database:
        for k in range(3):
            database.write(_crystal(k), y_relaxed=-1.0 * k)
    text = path.read_text(encoding="utf-8")
    assert [float(data.y_relaxed) for data in read_ase(path, ReadOptions(tags="oc20"))] == [0.0, -1.0, -2.0]
    for old, new, message in (
        ('"ids": [1, 2, 3]', '"ids": [1, 3]', "holds 3 rows, and ASE reads 2"),
        ('\n"2": {', '\n"1": {', "two entries of one record are named '1'"),
    ):
        assert old in text
        refused("a.json", text.replace(old, new), rf"a\.json.*{message}")
