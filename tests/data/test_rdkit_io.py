"""Molecules from SMILES and SDF."""

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


@pytest.mark.parametrize("smiles", ["[H][H]", "[Fe]", "OB(O)c1ccccc1", "C12C3C4C1C5C2C3C45", "[C-]#[O+]", "C" * 40])
def test_unusual_molecules(smiles):
    data = from_smiles(smiles, options=ReadOptions(conformers=2))
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


def _write_sdf(path, mols):
    with Chem.SDWriter(str(path)) as writer:
        for mol in mols:
            writer.write(mol)


def test_bad_sdf(tmp_path, capfd):
    path = tmp_path / "a.sdf"
    mols = [_embedded("CCO"), _embedded("O")]
    mols[1].SetProp("energy", "low")
    _write_sdf(path, mols)
    with pytest.raises(InputError, match=r"a\.sdf#1: 'energy' is 'low'"):
        read_sdf(path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("  9  8  0", "  9 88  0"), encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.sdf#0: line 22: 9 atoms and 88 bonds are announced"):
        read_sdf(path)
    path.write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="no molecules"):
        read_sdf(path)
    flat = Chem.MolFromSmiles("C=O")
    rdDepictor.Compute2DCoords(flat)
    _write_sdf(path, [flat])
    with pytest.raises(InputError, match="flat drawing"):
        read_sdf(path)
    assert capfd.readouterr().err == ""


def test_csv(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('name,SMILES,energy\n"a, b",CCO,-1.5\nwater,O,\n', encoding="utf-8")
    first, second = read_smiles_file(path)
    assert (first.num_nodes, float(first.energy)) == (9, -1.5)
    assert "energy" not in second
    path.write_text("name,mol\na,C\n", encoding="utf-8")
    with pytest.raises(InputError, match="no column 'smiles'"):
        read_smiles_file(path)
    path.write_text("smiles,energy\nC,low\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.csv#0: 'energy'"):
        read_smiles_file(path)
    path.write_text("smiles\n", encoding="utf-8")
    with pytest.raises(InputError, match="no molecules"):
        read_smiles_file(path)
    path.write_bytes(b"smiles\n\xff\xfe\n")
    with pytest.raises(InputError, match="not a readable text"):
        read_smiles_file(path)


def test_a_property_in_another_encoding_is_refused_by_name(tmp_path):
    path = tmp_path / "latin.sdf"
    block = Chem.MolToMolBlock(_embedded("O"))
    path.write_bytes(block.encode() + b"> <who>\nM\xfcller\n\n$$$$\n")
    with pytest.raises(InputError, match=r"latin\.sdf#0: a property is no text in UTF-8"):
        read_sdf(path)


def test_rdkit_finds_no_geometry(monkeypatch):
    def fail(*_):
        raise RuntimeError(
            "\n\n****\nInvariant Violation\nidx\n\tFailed Expression: 7 < 2\n---\nStacktrace:\n 0# Invar::toString()"
        )

    monkeypatch.setattr(rdDistGeom, "EmbedMolecule", lambda *_: -1)
    with pytest.raises(
        InputError, match=r"ethanol: RDKit found no conformer, tried by ETKDGv3, random .*; give a geometry"
    ):
        from_smiles("CCO", "ethanol")
    monkeypatch.setattr(rdDistGeom, "EmbedMolecule", fail)
    with pytest.raises(InputError, match=r"ethanol: RDKit could not build a geometry \(idx\)$"):
        from_smiles("CCO", "ethanol")


@pytest.mark.parametrize("read", [read_sdf, read_smiles_file])
def test_a_file_that_is_not_there(read, tmp_path):
    with pytest.raises(InputError, match=r"none\.sdf: no such file"):
        read(tmp_path / "none.sdf")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('smiles,x\nCO,1\n"CCO,1\nCC,2\n', "from line 3 on"),
        ('smiles,x\n"CCO,1\nCC",2\nC,1\n', "#0: the SMILES goes on over several lines from line 2 on"),
        ("smiles,energy\nC,1\nCO,1,5\n", "#1: line 3 has more cells than the 2 columns"),
        # Rows that a quotation mark swallows: between cells of one column, and of two.
        ('smiles,x,y\nC,"a,1\nCC,b,2\nCCC,c",3\n', "#0: the cell 'x' holds lines 2 to 4"),
        ('smiles,x,y\nC,"a,1\nCC,b,2"\n', "#0: the cell 'x' holds lines 2 to 3"),
        ("smiles,energy,energy\nC,-4,-5\n", "two columns are named 'energy', columns 2 and 3; rename one"),
        ("SMILES,x, smiles \nC,-4,CC\n", "two columns are named 'smiles' (and 'SMILES': case does not count)"),
        ("smiles;Energy;energy\nC;-4;-5\n", "two columns are named 'energy' (and 'Energy': case does not count)"),
    ],
)
def test_cells_out_of_place(text, message, tmp_path):
    file = tmp_path / "a.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_smiles_file(file)
    assert str(caught.value).startswith(str(file))
    assert message in str(caught.value)


def test_a_row_shorter_than_its_header_has_empty_cells(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("smiles,Energy\nC\nO,-1.5\nN,\n", encoding="utf-8")
    with pytest.warns(InputWarning, match="missing at the end of rows are taken as empty: line 2$"):
        assert [data.get("energy") is None for data in read_smiles_file(file)] == [True, False, True]


def test_every_line_of_a_table_is_a_row_or_part_of_one(tmp_path):
    """Whatever ends the lines; blank ones, text of several lines and columns that differ by more than case."""
    file = tmp_path / "a.csv"
    rows = ["# by hand", "", "smiles,e,E,note", "C,1,2,", "  ", 'CC,3,4,"of two, or', 'three lines"', "O,5,6,x"]
    for end in ("\n", "\r\n", "\r"):
        file.write_bytes(b"\xef\xbb\xbf" + end.join(rows).replace("O,5", "\ufeffO,5").encode())
        with pytest.warns(InputWarning, match="begin with # are passed over: 1$"):
            found = list(read_smiles_file(file, ReadOptions(conformers=1, labels=LabelSpec(label="E"))))
        assert [float(data.energy) for data in found] == [2, 4, 6]
        assert found[1].info["note"] == "of two, or\nthree lines"


@pytest.mark.parametrize("header", ["", "smiles name\n", "SMILES\tID\n", "# of mine\nsmiles\n"])
def test_a_list_with_a_header_and_comments(header, tmp_path):
    (tmp_path / "a.smi").write_text(f"{header}C methane\x85gas\n# CC\nO\n", encoding="utf-8")
    with pytest.warns(InputWarning, match=f"begin with # are passed over: {1 + header.count('#')}$"):
        assert read_smiles_file(tmp_path / "a.smi").n_atoms.tolist() == [5, 3]


def test_names_that_rdkit_keeps_for_itself(tmp_path):
    """Text in place of RDKit's own notes: no column in CSV, a molecule that cannot be used in SDF."""
    table, molecules = tmp_path / "a.csv", tmp_path / "a.sdf"
    table.write_text("smiles,__computedProps,energy\nC,x,2.5\n", encoding="utf-8")
    assert float(read_smiles_file(table)[0].energy) == 2.5
    block = Chem.MolToMolBlock(_embedded("C"))
    molecules.write_text(f"{block}> <__computedProps>\nx\n\n$$$$\n{block}$$$$\n", encoding="utf-8")
    spoilt, _ = read_sdf(molecules, ReadOptions(on_bad="skip")).items
    assert "a.sdf#0: a property has a name" in str(spoilt)


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
def test_ions_and_radicals_are_refused(smiles, tmp_path):
    with pytest.raises(InputError, match=r"^x: has .*(charge|unpaired).*--allow-charged"):
        from_smiles(smiles, "x")
    with pytest.raises(InputError, match="--allow-charged"):
        from_any_mol(Chem.MolFromSmiles(smiles), "x")
    mol = _embedded(smiles)
    _write_sdf(tmp_path / "a.sdf", [mol])
    with pytest.raises(InputError, match=r"a\.sdf#0: has "):
        read_sdf(tmp_path / "a.sdf")
    (tmp_path / "a.smi").write_text(f"C\n{smiles}\n", encoding="utf-8")
    found = read_smiles_file(tmp_path / "a.smi", ReadOptions(on_bad="skip")).items
    assert [isinstance(item, InputError) for item in found] == [False, True]
    allowed = ReadOptions(allow_charged=True, conformers=1)
    assert from_smiles(smiles, options=allowed).num_nodes == mol.GetNumAtoms()
    assert len(read_sdf(tmp_path / "a.sdf", options=allowed)) == 1


def test_states_that_columns_and_properties_state(tmp_path):
    table = "smiles,Charge,multiplicity\nC,0,1\nC,,\nC,1,1\nC,0,3\nC,plus,\n"
    (tmp_path / "a.csv").write_text(table, encoding="utf-8")
    found = read_smiles_file(tmp_path / "a.csv", ReadOptions(on_bad="skip")).items
    assert [isinstance(item, InputError) for item in found] == [False, False, True, True, True]
    assert "column 'Charge' is '1' (neutral and closed-shell: 0)" in str(found[2])
    mol = _embedded("C")
    mol.SetProp("charge", "-1")
    _write_sdf(tmp_path / "a.sdf", [mol])
    with pytest.raises(InputError, match=r"property 'charge' is -1 .*--allow-charged"):
        read_sdf(tmp_path / "a.sdf")
    assert len(read_sdf(tmp_path / "a.sdf", options=ReadOptions(allow_charged=True))) == 1


@pytest.mark.parametrize("smiles", ["[NH3+]CC(=O)[O-]", "C[N+](=O)[O-]", "[Na+].[Cl-]", "[C-]#[O+]"])
def test_charges_that_add_up_to_nothing_are_fine(smiles):
    assert from_smiles(smiles).num_nodes == Chem.AddHs(Chem.MolFromSmiles(smiles)).GetNumAtoms()
