"""Molecules from SMILES and SDF."""

import io
import re

import numpy as np
import pytest
import torch
from rdkit import Chem, rdBase
from rdkit.Chem import rdDepictor, rdDistGeom
from scipy.spatial.distance import pdist

from molflt.data.labels import LabelSpec
from molflt.data.molfiles import read_sdf
from molflt.data.rdkit import from_any_mol, from_mol, from_smiles, read_smiles_file
from molflt.data.reading import ReadOptions
from molflt.errors import InputError, InputWarning


def _embedded(smiles):
    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    rdDistGeom.EmbedMolecule(mol, randomSeed=1)
    conformer = mol.GetConformer()
    positions = conformer.GetPositions()
    # several molecules would be put into each other
    for k, atoms in enumerate(Chem.GetMolFrags(mol)):
        positions[list(atoms), 0] += 20 * k
    for k, position in enumerate(positions.tolist()):
        conformer.SetAtomPosition(k, position)
    return mol


def test_the_seed_fixes_the_conformer():
    smiles = "CC(C)Cc1ccc(cc1)C(C)C(=O)O"
    first, again, other = from_smiles(smiles), from_smiles(smiles), from_smiles(smiles, seed=7)
    assert torch.equal(first.positions, again.positions)
    assert not torch.allclose(first.positions, other.positions)


@pytest.mark.parametrize(
    "smiles",
    ["[H][H]", "[Fe]", "OB(O)c1ccccc1", "C12C3C4C1C5C2C3C45", "C" * 40,
     "[NH3+]CC(=O)[O-]", "C[N+](=O)[O-]", "[Na+].[Cl-]", "[C-]#[O+]"],
)  # fmt: skip
def test_unusual_molecules(smiles):
    """Also those whose charges add up to nothing."""
    data = from_smiles(smiles, options=ReadOptions(conformers=2))
    assert data.num_nodes == Chem.AddHs(Chem.MolFromSmiles(smiles)).GetNumAtoms()
    assert torch.isfinite(data.positions).all()
    if data.num_nodes > 1:
        assert torch.pdist(data.positions).min() > 0.7
    if smiles == "C" * 40:
        assert data.remark == "122 atoms: 1 conformer instead of 2"


@pytest.mark.parametrize("smiles", ["[Na+].[Cl-]", "CCO.O", "O.O.O.O"])
def test_parts_are_apart(smiles):
    data = from_smiles(smiles)
    parts = Chem.GetMolFrags(Chem.AddHs(Chem.MolFromSmiles(smiles)))
    distances = torch.cdist(data.positions, data.positions)
    between = [float(distances[list(a)][:, list(b)].min()) for a in parts for b in parts if a != b]
    assert min(between) >= 3.0 - 1e-9
    assert max(between) < 20


@pytest.mark.parametrize(
    ("smiles", "reason"),
    [
        ("C1CC(", "position"),
        ("C(C)(C)(C)(C)C", "valence"),
        ("not a molecule", "SMILES"),
        ("", "empty"),
        ("CC\udc80", "not a valid SMILES"),
        ("*CC", "atomic_numbers"),
        ("C" * 1000, r"atoms are too many .* give one"),
    ],
)
def test_bad_smiles_say_why_and_rdkit_is_silent(smiles, reason, capfd):
    if reason in ("position", "valence") and not hasattr(rdBase, "CaptureErrorLog"):
        # Before 2026 RDKit keeps its reasons to itself.
        reason = "not a valid SMILES"
    with pytest.raises(InputError, match=reason):
        from_smiles(smiles, name="line 3")
    assert capfd.readouterr().err == ""
    # negative control: RDKit does speak
    Chem.MolFromSmiles("C1CC(")
    assert capfd.readouterr().err != ""


@pytest.mark.parametrize(
    ("mol", "message"),
    [
        (Chem.MolFromSmiles("CCO"), "no positions"),
        (Chem.Mol(), "no atoms"),
        (Chem.RemoveHs(_embedded("CCO")), "6 hydrogen"),
    ],
)
def test_incomplete_molecules_are_refused(mol, message):
    with pytest.raises(InputError, match=message):
        from_mol(mol, "x")
    if mol.GetNumConformers() == 0 and mol.GetNumAtoms():
        # but a graph is enough to build a geometry
        assert from_any_mol(mol, "x").num_nodes == 9
    else:
        with pytest.raises(InputError, match=message):
            from_any_mol(mol, "x")


def _sdf(*mols):
    """Their text, with what RDKit knows of them."""
    stream = io.StringIO()
    with Chem.SDWriter(stream) as writer:
        for mol in mols:
            writer.write(mol)
    return stream.getvalue()


def test_bad_sdf(refused, capfd):
    ethanol, low, flat = _embedded("CCO"), _embedded("O"), Chem.MolFromSmiles("C=O")
    low.SetProp("energy", "low")
    rdDepictor.Compute2DCoords(flat)
    latin = _sdf(_embedded("O")).replace("$$$$", "> <who>\nM\xfcller\n\n$$$$").encode("latin-1")
    for content, message in (
        (_sdf(ethanol, low), r"a\.sdf#1: 'energy' is 'low'"),
        (_sdf(ethanol).replace("  9  8  0", "  9 88  0"), r"a\.sdf#0: line 22: 9 atoms and 88 bonds are announced"),
        ("", "no molecules"),
        (_sdf(flat), "flat drawing"),
        (latin, r"a\.sdf#0: a property is not text in UTF-8"),
    ):
        refused("a.sdf", content, message)
    assert capfd.readouterr().err == ""


def test_csv(read, refused):
    first, second = read("a.csv", 'name,SMILES,energy\n"a, b",CCO,-1.5\nwater,O,\n')
    assert (first.num_nodes, float(first.energy)) == (9, -1.5)
    assert "energy" not in second
    for content, message in (
        ("name,mol\na,C\n", "no column 'smiles'"),
        ("smiles,energy\nC,low\n", r"a\.csv#0: 'energy'"),
        ("smiles\n", "no molecules"),
        (b"smiles\n\xff\xfe\n", "not a readable text"),
    ):
        refused("a.csv", content, message)


def test_rdkit_finds_no_geometry(monkeypatch):
    def fail(*_):
        raise RuntimeError(
            "\n\n****\nInvariant Violation\nidx\n\tFailed Expression: 7 < 2\n---\nStacktrace:\n 0# Invar"
        )

    for embed, message in (
        (lambda *_: -1, "RDKit found no conformer, tried by ETKDGv3, random .*; give a geometry"),
        (fail, r"RDKit could not build a geometry \(idx\)$"),
    ):
        monkeypatch.setattr(rdDistGeom, "EmbedMolecule", embed)
        with pytest.raises(InputError, match=f"ethanol: {message}"):
            from_smiles("CCO", "ethanol")


@pytest.mark.parametrize("read", [read_sdf, read_smiles_file])
def test_a_file_that_is_not_there(read, tmp_path):
    with pytest.raises(InputError, match=r"none\.sdf: no such file"):
        read(tmp_path / "none.sdf")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('smiles,x\nCO,1\n"CCO,1\nCC,2\n', "from line 3 on"),
        ('smiles,x\n"CCO,1\nCC",2\nC,1\n', "#0: the SMILES from line 2 on spans several lines"),
        ("smiles,energy\nC,1\nCO,1,5\n", "#1: line 3 has more cells than the 2 columns"),
        # Rows that a quotation mark swallows: between cells of one column, and of two.
        ('smiles,x,y\nC,"a,1\nCC,b,2\nCCC,c",3\n', "#0: the cell 'x' holds lines 2 to 4"),
        ('smiles,x,y\nC,"a,1\nCC,b,2"\n', "#0: the cell 'x' holds lines 2 to 3"),
        ("smiles,energy,energy\nC,-4,-5\n", "two columns are named 'energy', columns 2 and 3; rename one"),
        ("SMILES,x, smiles \nC,-4,CC\n", "two columns are named 'smiles' (and 'SMILES': case does not count)"),
        ("smiles;Energy;energy\nC;-4;-5\n", "two columns are named 'energy' (and 'Energy': case does not count)"),
    ],
)
def test_cells_out_of_place(text, message, refused):
    refused("a.csv", text, rf"a\.csv.*{re.escape(message)}")


def test_a_row_shorter_than_its_header_has_empty_cells(read):
    with pytest.warns(InputWarning, match="missing at the end of rows are taken as empty: line 2$"):
        found = read("a.csv", "smiles,Energy\nC\nO,-1.5\nN,\n")
    assert [data.get("energy") is None for data in found] == [True, False, True]


def test_every_line_of_a_table_is_a_row_or_part_of_one(read):
    """Whatever ends the lines; blank ones, text of several lines and columns that differ by more than case."""
    rows = ["# by hand", "", "smiles,e,E,note", "C,1,2,", "  ", 'CC,3,4,"of two, or', 'three lines"', "\ufeffO,5,6,x"]
    for end in ("\n", "\r\n", "\r"):
        with pytest.warns(InputWarning, match="begin with # are ignored: 1$"):
            found = read("a.csv", f"\ufeff{end.join(rows)}", conformers=1, labels=LabelSpec(label="E"))
        assert [float(data.energy) for data in found] == [2, 4, 6]
        assert found[1].info["note"] == "of two, or\nthree lines"


@pytest.mark.parametrize("header", ["", "smiles name\n", "SMILES\tID\n", "# of mine\nsmiles\n"])
def test_a_list_with_a_header_and_comments(header, read):
    with pytest.warns(InputWarning, match=f"begin with # are ignored: {1 + header.count('#')}$"):
        assert read("a.smi", f"{header}C methane\x85gas\n# CC\nO\n").n_atoms.tolist() == [5, 3]


def test_names_that_rdkit_keeps_for_itself(read):
    """Text in place of RDKit's own notes: no column in CSV, a molecule that cannot be used in SDF."""
    assert float(read("a.csv", "smiles,__computedProps,energy\nC,x,2.5\n")[0].energy) == 2.5
    block = Chem.MolToMolBlock(_embedded("C"))
    text = f"{block}> <__computedProps>\nx\n\n$$$$\n{block}$$$$\n"
    assert "a.sdf#0: a property has a name" in str(read("a.sdf", text, on_bad="skip").items[0])


ALANINE = "C[C@H](N)C(=O)O"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("CCCO", "OCCC"),
        (ALANINE, "C[C@@H](N)C(=O)O"),
        (ALANINE, "[H]OC(=O)[C@H](C)N"),
        ("CC[C@H](O)[C@@H](F)C", "[2H]CC[C@@H](O)[C@@H](C)F"),
        ("O=N(=O)CF", "[CH2:3](F)[N+](=O)[O-]"),
        ("CCO.OO", "OO.OCC"),
    ],
)
def test_one_molecule_has_one_set_of_conformers(first, second):
    """However it is written, whatever its isotopes, and of its mirror image: the same distances."""
    shapes = []
    for smiles in (first, second):
        data = from_smiles(smiles)
        # The atoms stay in the order in which they were given, and every one keeps its place in the graph.
        mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
        assert data.atomic_numbers.tolist() == [atom.GetAtomicNum() for atom in mol.GetAtoms()]
        for bond in mol.GetBonds():
            assert float((data.positions[bond.GetBeginAtomIdx()] - data.positions[bond.GetEndAtomIdx()]).norm()) < 1.6
        conformer = Chem.Conformer(mol.GetNumAtoms())
        conformer.SetPositions(data.positions.numpy())
        mol.AddConformer(conformer)
        seen = Chem.Mol(mol)
        Chem.AssignStereochemistryFrom3D(seen)
        assert Chem.FindMolChiralCenters(seen) == Chem.FindMolChiralCenters(mol)
        shapes.append([np.sort(pdist(each)) for each in data.get("conformers", data.positions[None])])
    np.testing.assert_allclose(shapes[0], shapes[1], rtol=0, atol=1e-9)


def test_all_conformers_of_a_molecule_are_kept():
    mol = Chem.AddHs(Chem.MolFromSmiles("CCCC"))
    rdDistGeom.EmbedMultipleConfs(mol, 3, randomSeed=1)
    data = from_any_mol(mol, "butane")
    expected = np.array([conformer.GetPositions() for conformer in mol.GetConformers()])
    np.testing.assert_array_equal(data.conformers.numpy(), expected)
    np.testing.assert_array_equal(data.positions.numpy(), expected[0])
    assert "conformers" not in from_smiles("CCCC", options=ReadOptions(conformers=1))


def test_a_long_chain_takes_the_short_way():
    data = from_smiles("C" * 84 + "[C@H](F)Cl")
    assert "one rough geometry" in data.remark
    assert 0.9 < float(torch.pdist(data.positions).min()) < 1.2
    with pytest.raises(InputError, match="give one or more"):
        ReadOptions(conformers=0)


@pytest.mark.parametrize("smiles", ["C[NH3+]", "C[O-]", "[CH3]", "[O][O]", "C[N+](C)(C)C.O", "CC[CH2]"])
def test_ions_and_radicals_are_refused(smiles, read, refused):
    mol = _embedded(smiles)
    with pytest.raises(InputError, match=r"^x: has .*(charge|unpaired).*--allow-charged"):
        from_smiles(smiles, "x")
    with pytest.raises(InputError, match="--allow-charged"):
        from_any_mol(Chem.MolFromSmiles(smiles), "x")
    refused("a.sdf", _sdf(mol), r"a\.sdf#0: has ")
    found = read("a.smi", f"C\n{smiles}\n", on_bad="skip").items
    assert [isinstance(item, InputError) for item in found] == [False, True]
    assert from_smiles(smiles, options=ReadOptions(allow_charged=True, conformers=1)).num_nodes == mol.GetNumAtoms()
    assert len(read("a.sdf", _sdf(mol), allow_charged=True)) == 1


def test_states_that_columns_and_properties_state(read, refused):
    found = read("a.csv", "smiles,Charge,multiplicity\nC,0,1\nC,,\nC,1,1\nC,0,3\nC,plus,\n", on_bad="skip").items
    assert [isinstance(item, InputError) for item in found] == [False, False, True, True, True]
    assert "column 'Charge' is '1' (neutral and closed-shell: 0)" in str(found[2])
    mol = _embedded("C")
    mol.SetProp("charge", "-1")
    refused("a.sdf", _sdf(mol), r"property 'charge' is -1 .*--allow-charged")
    assert len(read("a.sdf", _sdf(mol), allow_charged=True)) == 1
