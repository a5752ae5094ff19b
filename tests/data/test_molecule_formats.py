"""Molecules in the files that chemists have: tables, InChI, mol2 and PDB ligands, also compressed."""

import gzip

import numpy as np
import pytest
from rdkit import Chem, rdBase
from rdkit.Chem import rdDistGeom

from molflt.data.open import open_dataset, resolve_inputs
from molflt.data.reading import ReadOptions
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
def test_every_format_plain_and_compressed(name, tmp_path):
    text, n_atoms = FILES[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    plain, packed = (open_dataset(tmp_path / path) for path in (name, f"{name}.gz"))
    assert plain.n_atoms.tolist() == packed.n_atoms.tolist() == [n_atoms]
    assert np.array_equal(plain[0].positions, packed[0].positions)
    # Whole folders of them as well.
    assert len(open_dataset(tmp_path)) == 2


def test_records_keep_their_names(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("smiles,Name,Exp\nCCO,ethanol,1\nO,,\n", encoding="utf-8")
    found = open_dataset(path)
    assert [data.name for data in (found[0], found[1])] == [f"{path}#0 (ethanol)", f"{path}#1 (O)"]
    assert found[0].info == {"smiles": "CCO", "Name": "ethanol", "Exp": "1"}
    (tmp_path / "a.mol2").write_text(2 * WATER, encoding="utf-8")
    assert [d.name for d in open_dataset(tmp_path / "a.mol2")] == [f"{tmp_path}/a.mol2#{k} (water)" for k in (0, 1)]


def test_pdb_without_hydrogens_with_a_charge_and_with_a_cell_of_no_crystal(tmp_path):
    path, text = tmp_path / "a.pdb", Chem.MolToPDBBlock(_phenol())
    path.write_text("\n".join(line for line in text.splitlines() if line[76:78].strip() != "H"), encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.pdb.*not one hydrogen"):
        open_dataset(path)
    path.write_text(text.replace("           O  ", "           O1-"), encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.pdb#0: .*charge"):
        open_dataset(path)
    path.write_text("CRYST1    1.000    1.000    1.000  90.00  90.00  90.00 P 1\n" + text, encoding="utf-8")
    assert not open_dataset(path)[0].pbc.any()
    path.write_text("CRYST1   20.000   20.000   20.000  90.00  90.00  90.00 P 1\n" + text, encoding="utf-8")
    assert open_dataset(path)[0].pbc.all()


def test_all_bad_rows_are_named_up_to_ten_and_counted(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("smiles\nC(\nO\nqq\n", encoding="utf-8")
    with pytest.raises(InputError) as error:
        open_dataset(path)
    first, *reasons = str(error.value).splitlines()
    assert first == f"{path}: 2 of 3 structures cannot be used"
    assert [reason.split(": ")[0].strip() for reason in reasons] == [f"{path}#0", f"{path}#2"]
    path.write_text("smiles\n" + 12 * "C(\n", encoding="utf-8")
    with pytest.raises(InputError) as error:
        open_dataset(path)
    assert (len(str(error.value).splitlines()), str(error.value).splitlines()[-1]) == (12, "  and 2 more")
    frames = "1\nProperties=species:S:1:pos:R:3 charge=1\nH 0 0 0\n"
    (tmp_path / "a.extxyz").write_text(2 * frames, encoding="utf-8")
    with pytest.raises(InputError, match=r"(?s)2 of 2 structures.*extxyz#0.*extxyz#1"):
        open_dataset(tmp_path / "a.extxyz")
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
def test_what_rdkit_passes_over_in_sdf(text, message, tmp_path):
    (tmp_path / "a.sdf").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        open_dataset(tmp_path / "a.sdf")


def test_a_mol_file_needs_no_end(tmp_path):
    (tmp_path / "a.mol").write_text(Chem.MolToMolBlock(_phenol()), encoding="utf-8")
    assert open_dataset(tmp_path / "a.mol").n_atoms.tolist() == [13]
    big = Chem.MolToV3KMolBlock(_phenol())
    (tmp_path / "a.sdf").write_text(big + "$$$$\n", encoding="utf-8")
    assert open_dataset(tmp_path / "a.sdf").n_atoms.tolist() == [13]


def test_atom_types_of_mol2(tmp_path):
    """GAFF's, as antechamber writes them, are elements; D is hydrogen; others are refused in a sentence."""
    path = tmp_path / "g.mol2"
    gaff = WATER.replace("O.3", "oh").replace("0.48 H ", "0.48 ho ")
    path.write_text(gaff, encoding="utf-8")
    with pytest.warns(InputWarning, match="atom types of GAFF are read as their elements"):
        assert open_dataset(path)[0].atomic_numbers.tolist() == [8, 1, 1]
    kinds = {"c3": 6, "ca": 6, "cl": 17, "br": 35, "n4": 7, "na": 7, "nb": 7, "pb": 15, "s6": 16, "os": 8, "f": 9}
    for kind, number in (kinds | {"n+": 7, "hs": 1, "i": 53}).items():
        lines = f"@<TRIPOS>MOLECULE\nx\n1 0\nSMALL\nNO_CHARGES\n\n@<TRIPOS>ATOM\n1 X 0 0 0 {kind}\n"
        path.write_text(lines, encoding="utf-8")
        with pytest.warns(InputWarning), rdBase.BlockLogs():
            assert open_dataset(path, options=ReadOptions(allow_charged=True))[0].atomic_numbers.tolist() == [number]
    path.write_text(WATER.replace("0.48 H 1 HOH", "0.48 D 1 HOH"), encoding="utf-8")
    with pytest.warns(InputWarning, match="D is read as hydrogen"):
        assert open_dataset(path)[0].atomic_numbers.tolist() == [8, 1, 1]
    for old, new, message in (
        ("O.3", "OW", r"line 8: 'OW' is no atom type of Sybyl or GAFF; give Sybyl's types .*obabel"),
        ("O.3", "LP", r"line 8: 'LP' is no atom type"),
        ("3 2 1 0 0", "2 2 1 0 0", "line 3: announces 2 atoms, and there are 3"),
        ("3 2 1 0 0", "3 1 1 0 0", "line 3: announces 1 bonds, and there are 2"),
        ("3 2 1 0 0", "", "line 1: the number of atoms does not stand two lines below"),
        ("BOND", "ATOM", "line 11: a second section ATOM"),
        ("HOH 0\n", "HOH -1\n", r"partial charges add up to -1\.00 e, and its bonds and atom types to \+0 e"),
    ):
        path.write_text(WATER.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(InputError, match=message):
            open_dataset(path)


def test_messages_of_rdkit_have_no_stack(tmp_path):
    """Of an element that RDKit does not know it writes forty lines of C++."""
    (tmp_path / "a.sdf").write_text(RECORD.replace(" O   0", " Qq  0") + "$$$$\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.sdf#0.*: not a readable molecule block, from line 1 on") as error:
        open_dataset(tmp_path / "a.sdf")
    assert not any(word in str(error.value) for word in ("Stacktrace", "Violation", "****", ".h", "0x"))
