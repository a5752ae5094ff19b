"""Molecules in the files that chemists have: tables, InChI, mol2 and PDB ligands, also compressed."""

import gzip

import numpy as np
import pytest
from rdkit import Chem, rdBase
from rdkit.Chem import rdDistGeom

from molflt.data.open import open_dataset, resolve_inputs
from molflt.errors import InputError, InputWarning

INCHI = "InChI=1S/C2H6O/c1-2-3/h3H,2H2,1H3"
WATER = """@<TRIPOS>MOLECULE
water
3 2 1 0 0
SMALL
NO_CHARGES

@<TRIPOS>ATOM
1 O 0.0 0.0 0.12 O.3 1 HOH 0
2 H1 0.0 0.76 -0.48 H 1 HOH 0
3 H2 0.0 -0.76 -0.48 H 1 HOH 0
@<TRIPOS>BOND
1 1 2 1
2 1 3 1
"""


def _phenol():
    mol = Chem.AddHs(Chem.MolFromSmiles("Oc1ccccc1"))
    rdDistGeom.EmbedMolecule(mol, randomSeed=1)
    return mol


FILES = {
    "a.csv": ("ID,SMILES\nx,CCO\n", 9),
    "semicolons.csv": ("ID;Smiles;note\nx;CCO;a,b\n", 9),
    "tabs.csv": ("ID\tsmiles\nx\tCCO\n", 9),
    "a.tsv": (f"id\tInChI\nx\t{INCHI}\n", 9),
    "a.inchi": (f"{INCHI} x\n", 9),
    "a.smi": ("CCO x\n", 9),
    "a.mol2": (WATER, 3),
    "a.sdf": (Chem.MolToMolBlock(_phenol()) + "$$$$\n", 13),
    "a.pdb": (Chem.MolToPDBBlock(_phenol()), 13),
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_plain_and_compressed(name, read, tmp_path):
    text, n_atoms = FILES[name]
    plain, packed = read(name, text), read(f"{name}.gz", gzip.compress(text.encode()))
    assert plain.n_atoms.tolist() == packed.n_atoms.tolist() == [n_atoms]
    assert np.array_equal(plain[0].positions, packed[0].positions)
    # Whole folders of them as well.
    assert len(open_dataset(tmp_path)) == 2


def test_records_keep_their_names(read, tmp_path):
    found, path = read("a.csv", "smiles,Name,Exp\nCCO,ethanol,1\nO,,\n"), tmp_path / "a.csv"
    assert [data.name for data in (found[0], found[1])] == [f"{path}#0 (ethanol)", f"{path}#1 (O)"]
    assert found[0].info == {"smiles": "CCO", "Name": "ethanol", "Exp": "1"}
    assert [d.name for d in read("a.mol2", 2 * WATER)] == [f"{tmp_path}/a.mol2#{k} (water)" for k in (0, 1)]


def test_pdb_without_hydrogens_with_a_charge_and_with_a_cell_of_no_crystal(read, refused):
    text = Chem.MolToPDBBlock(_phenol())
    heavy = "\n".join(line for line in text.splitlines() if line[76:78].strip() != "H")
    refused("a.pdb", heavy, r"a\.pdb.*not one hydrogen")
    refused("a.pdb", text.replace("           O  ", "           O1-"), r"a\.pdb#0: .*charge")
    for length, periodic in ((" 1", False), ("20", True)):
        cell = f"CRYST1{3 * f'   {length}.000'}  90.00  90.00  90.00 P 1\n"
        assert read("a.pdb", cell + text)[0].pbc.all() == periodic


def test_all_bad_rows_are_named_up_to_ten_and_counted(refused, tmp_path):
    path = tmp_path / "a.csv"
    refused(
        "a.csv", "smiles\nC(\nO\nqq\n", rf"^{path}: 2 of 3 structures cannot be used\n *{path}#0: .*\n *{path}#2: .*$"
    )
    refused("a.csv", "smiles\n" + 12 * "C(\n", r"^.*(\n.*){10}\n  and 2 more$")
    frames = "1\nProperties=species:S:1:pos:R:3 charge=1\nH 0 0 0\n"
    refused("a.extxyz", 2 * frames, r"(?s)2 of 2 structures.*extxyz#0.*extxyz#1")
    with pytest.raises(InputError, match=r"(?s)2 of 3 inputs.*'C\('.*'qq'"):
        resolve_inputs(["C(", "O", "qq"])


def _sdf(n=3):
    """Molecules in a row, each with two fields."""
    phenol = _phenol()
    phenol.SetProp("_Name", "phenol")
    return "".join(
        f"{Chem.MolToMolBlock(phenol)}> <energy>\n{-k}.5\n\n> <note>\nfirst\nsecond\n\n$$$$\n" for k in range(n)
    )


RECORD = _sdf(1).removesuffix("$$$$\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RECORD + "> <energy>\n1\n\n$$$$\n", r"line 39: a second field 'energy'"),
        (RECORD.replace("second\n\n", "second\n> <x>\n1\n\n") + "$$$$\n", "line 38: no blank line before this field"),
        (RECORD + "> DT12\n1\n\n$$$$\n", "line 39: a field without a name in <>"),
        (RECORD + "lost\n$$$$\n", r"line 39: expected a field"),
        (f"{RECORD}$$$$\n{RECORD}", r"a\.sdf#1: line 78: ends without \$\$\$\$: cut short"),
        (f"{RECORD}$$$$\n\n$$$$\n{RECORD}$$$$\n", r"a\.sdf#1: line 40: an empty record"),
        (f"{RECORD}{RECORD}$$$$\n", "line 39: expected a field"),
        (RECORD.replace(" 13 13  0", " 12 13  0") + "$$$$\n", "line 30: more lines than the 12 atoms and 13 bonds"),
    ],
)
def test_errors_in_sdf_that_rdkit_passes_over(text, message, refused):
    refused("a.sdf", text, message)


def test_a_mol_file_needs_no_end(read):
    assert read("a.mol", Chem.MolToMolBlock(_phenol())).n_atoms.tolist() == [13]
    assert read("a.sdf", Chem.MolToV3KMolBlock(_phenol()) + "$$$$\n").n_atoms.tolist() == [13]


def test_atom_types_of_mol2(read, refused):
    """GAFF's, as antechamber writes them, are elements; D is hydrogen; others are refused in a sentence."""
    gaff = WATER.replace("O.3", "oh").replace("0.48 H ", "0.48 ho ")
    heavy = WATER.replace("0.48 H 1 HOH", "0.48 D 1 HOH")
    for text, remark in ((gaff, "atom types of GAFF are read as their elements"), (heavy, "D is read as hydrogen")):
        with pytest.warns(InputWarning, match=remark):
            assert read("a.mol2", text)[0].atomic_numbers.tolist() == [8, 1, 1]
    kinds = {"c3": 6, "ca": 6, "cl": 17, "br": 35, "n4": 7, "na": 7, "nb": 7, "pb": 15, "s6": 16, "os": 8, "f": 9}
    for kind, number in (kinds | {"n+": 7, "hs": 1, "i": 53}).items():
        lines = f"@<TRIPOS>MOLECULE\nx\n1 0\nSMALL\nNO_CHARGES\n\n@<TRIPOS>ATOM\n1 X 0 0 0 {kind}\n"
        with pytest.warns(InputWarning), rdBase.BlockLogs():
            assert read("a.mol2", lines, allow_charged=True)[0].atomic_numbers.tolist() == [number]
    for old, new, message in (
        ("O.3", "OW", r"line 8: 'OW' is not an atom type of Sybyl or GAFF; give Sybyl's types .*obabel"),
        ("O.3", "LP", r"line 8: 'LP' is not an atom type"),
        ("3 2 1 0 0", "2 2 1 0 0", "line 3: announces 2 atoms, and there are 3"),
        ("3 2 1 0 0", "3 1 1 0 0", "line 3: announces 1 bonds, and there are 2"),
        ("3 2 1 0 0", "", "line 1: the number of atoms is not two lines below"),
        ("BOND", "ATOM", "line 11: a second section ATOM"),
        ("HOH 0\n", "HOH -1\n", r"partial charges add up to -1\.00 e, and its bonds and atom types to \+0 e"),
    ):
        refused("a.mol2", WATER.replace(old, new, 1), message)


def test_messages_of_rdkit_have_no_stack(tmp_path):
    """Of an element that RDKit does not know it writes forty lines of C++."""
    (tmp_path / "a.sdf").write_text(RECORD.replace(" O   0", " Qq  0") + "$$$$\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.sdf#0.*: not a readable molecule block, from line 1 on") as error:
        open_dataset(tmp_path / "a.sdf")
    assert not any(word in str(error.value) for word in ("Stacktrace", "Violation", "****", ".h", "0x"))
