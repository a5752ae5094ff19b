"""Files of random structures in every text format that molflt reads."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import ase.io
import numpy as np
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms
from pymatgen.core import Lattice, Structure
from pymatgen.io.cif import CifWriter
from pymatgen.io.vasp import Poscar
from rdkit import Chem
from rdkit.Chem import rdDistGeom

_MOLECULES = ("H2O", "NH3", "CH4", "CH3OH", "CH3CH2OH", "H2CO", "HCN", "C2H4", "CH3Cl", "SiH4", "PH3", "CH3SH")
_SMILES = ("O", "N", "CO", "C=O", "C#N", "CCl", "CS", "CF")
_ROW = r"\s*[A-Z][a-z]?\d*\s+(?:\S+\s+)?-?\d+\.\d+\s+-?\d"
"""A line with an element and coordinates."""


@dataclass(frozen=True)
class File:
    """A file, in the parts that damages move about.

    Attributes:
        name: with the suffix by which its format is known.
        blocks: text of each frame.
        expected: of each structure, what is to be read, see :func:`summary`; a block holds as many as another.
        header: before the first frame.
        footer: after the last.
        counted: whether the header says how many frames there are.
        row: what a line of one atom looks like; None: there is no such line.
        keys: words of the format, as a regular expression; empty: it has none.
        comment: how a comment begins.
        end: a word that ends something.
        spared: damages that make another valid file of it.
    """

    name: str
    blocks: Sequence[str]
    expected: Sequence[dict[str, Any]]
    header: str = ""
    footer: str = ""
    counted: bool = False
    row: str | None = _ROW
    keys: str = ""
    comment: str = "#"
    end: str = "END"
    spared: frozenset[str] = field(default_factory=frozenset)

    def text(self) -> str:
        """The undamaged text."""
        return self.header + "".join(self.blocks) + self.footer

    def raw(self) -> bytes:
        """Its bytes."""
        return self.text().encode()


def summary(atoms: Atoms, **labels: Any) -> dict[str, Any]:
    """Properties of a structure that do not turn with its cell, and its labels."""
    found: dict[str, Any] = {"pbc": np.asarray(atoms.pbc), "composition": np.sort(atoms.numbers)}
    found["distances"] = np.sort(atoms.get_all_distances(mic=bool(atoms.pbc.any())), axis=None)
    return found | labels


def _isolated(random: Random) -> Atoms:
    atoms = molecule(random.choice(_MOLECULES))
    atoms.rotate(random.uniform(0, 360), (random.random(), random.random(), 1.0))
    return _rattled(atoms, random)


def _crystal(random: Random) -> Atoms:
    atoms = random.choice(_crystals()).copy()
    return _rattled(atoms, random) if random.random() < 0.5 else atoms


@cache
def _crystals() -> tuple[Atoms, ...]:
    return (
        bulk("Cu", cubic=True),
        bulk("Mg"),
        bulk("Fe"),
        bulk("NaCl", "rocksalt", a=5.64),
        bulk("ZnO", "wurtzite", a=3.25, c=5.21),
        bulk("Si", "diamond", a=5.43, cubic=True),
        bulk("CsCl", "cesiumchloride", a=4.12) * (2, 1, 1),
    )


def _slab(random: Random) -> Atoms:
    atoms = fcc111(random.choice(("Cu", "Pt")), (2, 2, 2), vacuum=6.0, periodic=True)
    add_adsorbate(atoms, random.choice(("O", "N")), 1.6, "ontop")
    atoms.set_tags([{0: 2, 1: 1}.get(tag, 0) for tag in atoms.get_tags()])
    atoms.set_constraint(FixAtoms(mask=atoms.get_tags() == 0))
    atoms.info.clear()
    return _rattled(atoms, random)


def _rattled(atoms: Atoms, random: Random) -> Atoms:
    shift = np.array([[random.gauss(0, 0.02) for _ in range(3)] for _ in atoms])
    atoms.set_positions(atoms.positions + shift, apply_constraint=False)
    return atoms


def _many(random: Random, *kinds: Callable[[Random], Atoms]) -> list[Atoms]:
    return [random.choice(kinds)(random) for _ in range(random.choice((1, 1, 2, 3, 4)))]


def _written(atoms: Atoms | list[Atoms], form: str, **options: Any) -> str:
    """Text that ASE writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        ase.io.write(path, atoms, format=form, **options)
        return path.read_text(encoding="utf-8")


def _labelled(atoms: Atoms, random: Random) -> dict[str, Any]:
    energy = round(random.uniform(-50, 0), 6)
    forces = np.array([[round(random.gauss(0, 1), 6) for _ in range(3)] for _ in atoms])
    labels: dict[str, Any] = {"energy": energy, "forces": forces, "tags": atoms.get_tags()}
    # As ASE writes them, forces on fixed atoms are as they were computed.
    atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
    if random.random() < 0.5:
        atoms.info["config_type"] = labels["info.config_type"] = random.choice(("bulk", "gas", "a b"))
    held = np.zeros(len(atoms), dtype=bool)
    for constraint in atoms.constraints:
        held[constraint.index] = True
    return labels | {"fixed": held}


def _extxyz(random: Random) -> File:
    frames = _many(random, _isolated, _crystal, _slab)
    expected = [summary(atoms, **_labelled(atoms, random)) for atoms in frames]
    words = "Lattice|Properties|pbc|energy|species|pos|forces|tags|move_mask"
    return File(
        random.choice(("a.extxyz", "a.xyz")),
        [_written(a, "extxyz") for a in frames],
        expected,
        keys=rf"\b({words})(?=[=:])",
    )


def _xyz(random: Random) -> File:
    """Plain and extended frames in any order."""
    frames = _many(random, _isolated, _crystal)
    blocks, expected = [], []
    for atoms in frames:
        if atoms.pbc.any() or random.random() < 0.3:
            expected.append(summary(atoms, energy=-1.5))
            atoms.calc = SinglePointCalculator(atoms, energy=-1.5)
            blocks.append(_written(atoms, "extxyz"))
        else:
            expected.append(summary(atoms))
            blocks.append(_written(atoms, "xyz", comment=random.choice(("", "made by hand", "step 3"))))
    return File("a.xyz", blocks, expected, keys=r"\b(Lattice|Properties|pbc|energy|species|pos)(?=[=:])")


def _cif(random: Random) -> File:
    frames = _many(random, _crystal)
    blocks = [_written(atoms, "cif").replace("data_image0", f"data_image{k}") for k, atoms in enumerate(frames)]
    row = r"\s*[A-Z][a-z]?\s+[A-Z][a-z]?\d*\s+\d"
    spared = frozenset(("a frame twice", "all frames twice"))
    return File("a.cif", blocks, [summary(a) for a in frames], row=row, keys=r"^\s*(_\w+|loop_|data_)", spared=spared)


@cache
def _symmetric() -> tuple[Structure, ...]:
    return (
        Structure.from_spacegroup("Fd-3m", Lattice.cubic(5.43), ["Si"], [[0, 0, 0]]),
        Structure.from_spacegroup(
            "P4_2/mnm", Lattice.tetragonal(4.59, 2.96), ["Ti", "O"], [[0, 0, 0], [0.305, 0.305, 0]]
        ),
        Structure.from_spacegroup("P6_3/mmc", Lattice.hexagonal(3.21, 5.21), ["Mg"], [[1 / 3, 2 / 3, 0.25]]),
        Structure.from_spacegroup("R-3m", Lattice.hexagonal(4.55, 11.86), ["Bi"], [[0, 0, 0.234]]),
        Structure.from_spacegroup("Pnma", Lattice.orthorhombic(10, 4, 6), ["S"], [[0.1, 0.25, 0.3]]),
    )


@cache
def _symmetric_cifs() -> tuple[str, ...]:
    return tuple(str(CifWriter(structure, symprec=0.01)) for structure in _symmetric())


def _of_pymatgen(structure: Structure) -> Atoms:
    return Atoms([s.specie.symbol for s in structure], structure.cart_coords, cell=structure.lattice.matrix, pbc=True)


def _symmetric_cif(random: Random) -> File:
    picked = random.sample(range(len(_symmetric())), random.choice((1, 1, 2)))
    row = r"\s*[A-Z][a-z]?\s+[A-Z][a-z]?\d*\s+\d"
    expected = [summary(_of_pymatgen(_symmetric()[k])) for k in picked]
    spared = frozenset(("a frame twice", "all frames twice"))
    blocks = [_symmetric_cifs()[k] + "\n" for k in picked]
    return File("a.cif", blocks, expected, row=row, keys=r"^\s*(_\w+|loop_|data_)", spared=spared)


_PDB_WORDS = r"^(ATOM  |HETATM|MODEL |ENDMDL|CRYST1|CONECT|END\b|TER\b)"
_PDB_ROW = r"(ATOM  |HETATM)"
_PDB_SPARED = frozenset(("a row missing",))
"""PDB does not say how many atoms there are."""


def _pdb(random: Random) -> File:
    if random.random() < 0.5:
        atoms = bulk("NaCl", "rocksalt", a=5.64, cubic=True)
        frames = [_rattled(atoms.copy(), random) for _ in range(random.choice((1, 2)))]
    else:
        first = _isolated(random)
        frames = [_rattled(first.copy(), random) for _ in range(random.choice((1, 2, 3)))]
    text = _written(frames, "proteindatabank")
    header, *models = text.split("MODEL ")
    blocks = ["MODEL " + model for model in models]
    expected, spared = [summary(a) for a in frames], _PDB_SPARED
    return File("a.pdb", blocks, expected, header, row=_PDB_ROW, keys=_PDB_WORDS, comment="REMARK", spared=spared)


@cache
def _embedded() -> tuple[Chem.Mol, ...]:
    found = []
    for smiles in (*_SMILES, "CCO", "CC(=O)O", "c1ccoc1"):
        mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
        rdDistGeom.EmbedMolecule(mol, randomSeed=1)
        mol.GetConformer().SetPositions(mol.GetConformer().GetPositions().round(4))
        found.append(mol)
    return tuple(found)


def _atoms_of(mol: Chem.Mol) -> Atoms:
    return Atoms([a.GetSymbol() for a in mol.GetAtoms()], mol.GetConformer().GetPositions())


def _rdkit_pdb(random: Random) -> File:
    """Trajectory with END behind each frame, as RDKit and Open Babel write it."""
    mols = [random.choice(_embedded())] * random.choice((1, 2, 3))
    blocks = [Chem.MolToPDBBlock(mol) for mol in mols]
    expected = [summary(_atoms_of(mol)) for mol in mols]
    return File("a.pdb", blocks, expected, row=_PDB_ROW, keys=_PDB_WORDS, comment="REMARK", spared=_PDB_SPARED)


def _poscar(random: Random) -> File:
    atoms = random.choice((_crystal, _slab))(random)
    atoms = atoms[np.argsort(atoms.numbers, kind="stable")]
    text = _written(atoms, "vasp", direct=random.random() < 0.5)
    name, row = random.choice(("POSCAR", "CONTCAR", "a.vasp")), r"(\s+-?\d+\.\d+){3}\s*(T|F|$)"
    spared = frozenset(("a frame missing",))
    return File(
        name,
        [text],
        [summary(atoms)],
        row=row,
        keys=r"^(Direct|Cartesian|Selective dynamics)",
        comment="!",
        spared=spared,
    )


def _pymatgen_poscar(random: Random) -> File:
    structure = random.choice(_symmetric())
    text = Poscar(structure).get_str()
    row = r"(\s+-?\d+\.\d+){3} [A-Z]"
    return File("POSCAR", [text], [summary(_of_pymatgen(structure))], row=row, keys=r"^direct", comment="!")


def _gen(random: Random) -> File:
    atoms = random.choice((_isolated, _crystal))(random)
    return File("a.gen", [_written(atoms, "gen")], [summary(atoms)], row=r"\s*\d+\s+\d+\s+-?\d")


def _xsf(random: Random) -> File:
    first = _crystal(random)
    frames = [_rattled(first.copy(), random) for _ in range(random.choice((1, 1, 2, 3)))]
    header, *blocks = _written(frames, "xsf").split("PRIMCOORD")
    spared = frozenset(("frames in reverse",)) if len(frames) > 1 else frozenset()
    return File(
        "a.xsf",
        ["PRIMCOORD" + block for block in blocks],
        [summary(a) for a in frames],
        header,
        counted=len(frames) > 1,
        row=r"\s*\d+(\s+-?\d+\.\d+){3}",
        keys=r"^(ANIMSTEPS|CRYSTAL|PRIMVEC|PRIMCOORD)",
        spared=spared,
    )


def _cube(random: Random) -> File:
    atoms = _isolated(random)
    atoms.center(vacuum=2.0)
    text = _written(atoms, "cube", data=np.full((2, 2, 2), 0.25))
    return File("a.cube", [text], [summary(atoms)], row=r"\s*\d+(\s+-?\d+\.\d+){4}")


def _pwi(random: Random) -> File:
    atoms = _crystal(random)
    files = {symbol: f"{symbol}.upf" for symbol in set(atoms.get_chemical_symbols())}
    text = _written(atoms, "espresso-in", pseudopotentials=files)
    keys = r"^\s*(&\w+|nat|ntyp|ibrav|ATOMIC_SPECIES|ATOMIC_POSITIONS|CELL_PARAMETERS|K_POINTS)\b"
    return File("a.pwi", [text], [summary(atoms)], keys=keys, comment="!")


def _sdf(random: Random) -> File:
    blocks, expected = [], []
    for _ in range(random.choice((1, 2, 3))):
        mol = Chem.Mol(random.choice(_embedded()))
        energy = round(random.uniform(-50, 0), 4)
        mol.SetProp("_Name", "a molecule")
        mol.SetProp("energy", str(energy))
        stream = io.StringIO()
        with Chem.SDWriter(stream) as writer:
            writer.SetForceV3000(random.random() < 0.3)
            writer.write(mol)
        blocks.append(stream.getvalue())
        expected.append(summary(_atoms_of(mol), energy=energy))
    row = r"(M  V30 \d+ [A-Z]|\s+-?\d+\.\d{4}\s+-?\d+\.\d{4}\s+-?\d+\.\d{4} [A-Z])"
    # A record that is only its end is an empty molecule.
    return File("a.sdf", blocks, expected, row=row, keys=r"(?<=> {2}<)energy(?=>)", end="$$$$")


def _mol(random: Random) -> File:
    mol = random.choice(_embedded())
    row = r"\s+-?\d+\.\d{4}\s+-?\d+\.\d{4}\s+-?\d+\.\d{4} [A-Z]"
    return File("a.mol", [Chem.MolToMolBlock(mol)], [summary(_atoms_of(mol))], row=row, end="M  END")


_BONDS = {
    Chem.BondType.SINGLE: "1",
    Chem.BondType.DOUBLE: "2",
    Chem.BondType.TRIPLE: "3",
    Chem.BondType.AROMATIC: "ar",
}


def _mol2(random: Random) -> File:
    blocks, expected = [], []
    for _ in range(random.choice((1, 2, 3))):
        # Sybyl types that are elements.
        mol = random.choice(
            [m for m in _embedded() if all(a.GetSymbol() in ("H", "F", "Cl", "C") for a in m.GetAtoms())]
        )
        lines = [
            "@<TRIPOS>MOLECULE",
            "a molecule",
            f"{mol.GetNumAtoms()} {mol.GetNumBonds()} 0 0 0",
            "SMALL",
            "NO_CHARGES",
            "",
        ]
        lines.append("@<TRIPOS>ATOM")
        for k, (atom, place) in enumerate(zip(mol.GetAtoms(), mol.GetConformer().GetPositions(), strict=True), 1):
            symbol = atom.GetSymbol()
            kind = "C.3" if symbol == "C" else symbol
            lines.append(f"{k:5d} {symbol}{k} {place[0]:.4f} {place[1]:.4f} {place[2]:.4f} {kind} 1 MOL 0.0")
        lines.append("@<TRIPOS>BOND")
        for k, bond in enumerate(mol.GetBonds(), 1):
            lines.append(
                f"{k:5d} {bond.GetBeginAtomIdx() + 1} {bond.GetEndAtomIdx() + 1} {_BONDS[bond.GetBondType()]}"
            )
        blocks.append("\n".join(lines) + "\n")
        expected.append(summary(_atoms_of(mol)))
    return File("a.mol2", blocks, expected, row=r"\s*\d+ [A-Z][a-z]?\d+ -?\d", keys=r"^@<TRIPOS>\w+")


def _json(random: Random) -> File:
    atoms = random.choice((_isolated, _crystal, _slab))(random)
    labels = _labelled(atoms, random)
    labels.pop("info.config_type", None)
    return File("a.json", [_written(atoms, "json")], [summary(atoms, **labels)], row=None, comment="//")


def _table(random: Random) -> File:
    comma = random.choice(",;\t")
    rows = [
        (random.choice(_SMILES), f"mol {k}", str(round(random.uniform(-9, 0), 3)))
        for k in range(random.randrange(1, 5))
    ]
    blocks = [comma.join(row) + "\n" for row in rows]
    expected = [{"energy": float(energy), "info.name": name, "info.smiles": smiles} for smiles, name, energy in rows]
    name = "a.tsv" if comma == "\t" else "a.csv"
    header = comma.join(("smiles", "name", "energy")) + "\n"
    return File(name, blocks, expected, header, row=None, keys=r"\A.*(?=\n)", spared=frozenset(("columns doubled",)))


def _smi(random: Random) -> File:
    rows = [(random.choice(_SMILES), f"mol {k}") for k in range(random.randrange(1, 5))]
    expected = [{"info.smiles": smiles, "info.name": name} for smiles, name in rows]
    return File("a.smi", [" ".join(row) + "\n" for row in rows], expected, row=None)


WRITERS: dict[str, Callable[[Random], File]] = {
    "extxyz": _extxyz,
    "xyz": _xyz,
    "cif": _cif,
    "symmetric cif": _symmetric_cif,
    "pdb": _pdb,
    "pdb of rdkit": _rdkit_pdb,
    "poscar": _poscar,
    "poscar of pymatgen": _pymatgen_poscar,
    "gen": _gen,
    "xsf": _xsf,
    "cube": _cube,
    "pwi": _pwi,
    "sdf": _sdf,
    "mol": _mol,
    "mol2": _mol2,
    "json": _json,
    "table": _table,
    "smi": _smi,
}
