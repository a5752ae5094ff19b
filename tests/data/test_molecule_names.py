"""Formulas and SMILES are told apart and named, so that the molecule that was meant is computed."""

from contextlib import suppress

import pytest
from ase.build import molecule
from ase.collections import g2
from ase.formula import Formula
from rdkit import Chem

from molflt.data.open import resolve_inputs
from molflt.data.rdkit import from_text, read_smiles_file
from molflt.data.reading import ReadOptions
from molflt.data.tables import described, formula_and_name
from molflt.errors import InputError


def test_every_bare_formula_of_the_g2_set_is_that_molecule_or_refused():
    """An atom's symbol is the SMILES of its hydride, and NCCN is ethylenediamine to everybody who writes SMILES."""
    others = []
    for name in g2.names:
        with suppress(InputError):
            data = from_text(name, ReadOptions(allow_charged=True, conformers=1))
            if sorted(data.atomic_numbers.tolist()) != sorted(molecule(name).numbers.tolist()):
                others.append(name)
    assert sorted(others) == ["B", "C", "Cl", "F", "N", "NCCN", "O", "P", "S"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CO", r"'CO' is methanol \(CH4O\) as a SMILES, .* write molecule:CO or \[C-\]#\[O\+\] for carbon monoxide"),
        ("NO", r"hydroxylamine \(H3NO\) .* reads as nitric oxide .* smiles:NO for hydroxylamine"),
        ("CN", "methylamine .* cyano radical"),
        ("COS", r"is CH4OS as a SMILES, and reads as carbonyl sulfide .* molecule:OCS or O=C=S"),
        ("NCO", "aminomethanol .* isocyanate radical"),
        ("CO2", r"its SMILES is O=C=O \(carbon dioxide\); or write molecule:CO2"),
        ("H2O", r"its SMILES is O \(water\); or write molecule:H2O"),
        ("NH3", "or write molecule:NH3"),
        ("C2H6O", r"CCO \(ethanol\) or COC \(dimethyl ether\)"),
        ("molecule:CH3CH2O2H", "has no molecule of this name; it has .*CH3CH2OH"),
        ("molecule:O2", "open shell"),
    ],
)
def test_formulas_get_both_readings(text, message):
    with pytest.raises(InputError, match=message):
        resolve_inputs([text])


@pytest.mark.parametrize("text", ["CCO", "OC", "CF", "CCl", "NCCN", "OO", "FF", "O", "C", "smiles:CO", "molecule:CO"])
def test_the_molecule_that_is_meant_is_taken(text):
    data = resolve_inputs([text], options=ReadOptions(conformers=1))[0]
    assert data.num_nodes == {"smiles:CO": 6, "molecule:CO": 2}.get(text, data.num_nodes)
    assert data.name == text.removeprefix("smiles:")
    assert Formula(data.about.split(",")[0]) == Formula(Formula.from_list(_symbols(data)).format("hill"))


def _symbols(data):
    return [Chem.GetPeriodicTable().GetElementSymbol(z) for z in data.atomic_numbers.tolist()]


def test_in_files_a_smiles_is_a_smiles(tmp_path):
    (tmp_path / "a.csv").write_text("smiles,name\nCO,x\n", encoding="utf-8")
    (found,) = read_smiles_file(tmp_path / "a.csv")
    assert (found.about, found.num_nodes) == ("CH4O, methanol", 6)
    (tmp_path / "b.smi").write_text("H2O\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"b\.smi#0: .*its SMILES is O \(water\)"):
        read_smiles_file(tmp_path / "b.smi")


def test_names_do_not_depend_on_how_it_is_written():
    for text in ("CCO", "OCC", "[CH3][CH2][OH]", "[CH3:1]CO"):
        assert formula_and_name(Chem.AddHs(Chem.MolFromSmiles(text))) == "C2H6O, ethanol"
    assert described("CCO") == "ethanol (C2H6O, CCO)"
    assert described("CCCCCCO") == "CCCCCCO (C6H14O)"
    assert described("molecule:CO") == "carbon monoxide (CO, molecule:CO)"
    assert described("a.csv#0") == "a.csv#0"
