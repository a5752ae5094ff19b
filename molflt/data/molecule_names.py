"""Names and formulas of molecules: what a SMILES is of, and texts that are a SMILES and read as a formula."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from functools import cache

from ase import Atoms
from ase.build import molecule as g2_molecule
from ase.collections import g2
from ase.data import atomic_numbers
from rdkit import Chem, rdBase
from rdkit.Chem.rdMolDescriptors import CalcMolFormula

from molflt.errors import InputError

MOLECULE, SMILES = "molecule:", "smiles:"
"""What stands before a name of ASE's g2 set, and before a SMILES that reads as a formula as well."""
_TERMS = re.compile(r"([A-Z][a-z]?)(\d{0,3})")
_NAMES = {
    "C": "methane", "CC": "ethane", "CCC": "propane", "CCCC": "butane", "CC(C)C": "isobutane",
    "C=C": "ethene", "C=CC": "propene", "C#C": "ethyne", "C#CC": "propyne", "C=C=C": "allene",
    "C=CC=C": "butadiene", "C1CC1": "cyclopropane", "C1CCCCC1": "cyclohexane", "c1ccccc1": "benzene",
    "Cc1ccccc1": "toluene", "C=Cc1ccccc1": "styrene", "c1ccc2ccccc2c1": "naphthalene",
    "CO": "methanol", "CCO": "ethanol", "CCCO": "1-propanol", "CC(C)O": "2-propanol", "OCCO": "ethylene glycol",
    "OCC(O)CO": "glycerol", "Oc1ccccc1": "phenol", "COC": "dimethyl ether", "CCOCC": "diethyl ether",
    "C1CO1": "oxirane", "C1CCOC1": "tetrahydrofuran", "c1ccoc1": "furan", "C=O": "formaldehyde",
    "CC=O": "acetaldehyde", "CC(C)=O": "acetone", "C=C=O": "ketene", "O=CO": "formic acid", "CC(=O)O": "acetic acid",
    "COC=O": "methyl formate", "CCOC(C)=O": "ethyl acetate", "CN": "methylamine", "CCN": "ethylamine",
    "CNC": "dimethylamine", "CN(C)C": "trimethylamine", "NCCN": "ethylenediamine", "Nc1ccccc1": "aniline",
    "NC=O": "formamide", "CC(N)=O": "acetamide", "CN(C)C=O": "dimethylformamide", "NC(N)=O": "urea",
    "NCC(=O)O": "glycine", "NCO": "aminomethanol", "CC#N": "acetonitrile", "C=CC#N": "acrylonitrile",
    "N#CC#N": "cyanogen", "C#N": "hydrogen cyanide", "N=C=O": "isocyanic acid", "[N]=C=O": "isocyanate radical",
    "[C]#N": "cyano radical", "C[N+](=O)[O-]": "nitromethane", "C=[N+]=[N-]": "diazomethane",
    "c1ccncc1": "pyridine", "c1cc[nH]c1": "pyrrole", "CS": "methanethiol", "CSC": "dimethyl sulfide",
    "CSSC": "dimethyl disulfide", "CS(C)=O": "dimethyl sulfoxide", "c1ccsc1": "thiophene", "OCS": "mercaptomethanol",
    "CF": "fluoromethane", "CCl": "chloromethane", "ClCCl": "dichloromethane", "ClC(Cl)Cl": "chloroform",
    "FC(F)(F)F": "tetrafluoromethane", "ClC(Cl)(Cl)Cl": "tetrachloromethane", "O=C(Cl)Cl": "phosgene",
    "[C-]#[O+]": "carbon monoxide", "O=C=O": "carbon dioxide", "O=C=S": "carbonyl sulfide",
    "S=C=S": "carbon disulfide", "[C-]#[S+]": "carbon monosulfide", "[H][H]": "hydrogen", "N#N": "nitrogen",
    "O=O": "oxygen", "[O-][O+]=O": "ozone", "O": "water", "OO": "hydrogen peroxide", "[OH]": "hydroxyl radical",
    "N": "ammonia", "NN": "hydrazine", "N=N": "diazene", "NO": "hydroxylamine", "[N]=O": "nitric oxide",
    "[O]N=O": "nitrogen dioxide", "[N-]=[N+]=O": "nitrous oxide", "N=[N+]=[N-]": "hydrogen azide",
    "O=NO": "nitrous acid", "O=[N+]([O-])O": "nitric acid", "O=NCl": "nitrosyl chloride", "S": "hydrogen sulfide",
    "O=S=O": "sulfur dioxide", "O=S(=O)=O": "sulfur trioxide", "O=S(=O)(O)O": "sulfuric acid",
    "[S]=O": "sulfur monoxide",
    "P": "phosphine", "O=P(O)(O)O": "phosphoric acid", "F": "hydrogen fluoride", "Cl": "hydrogen chloride",
    "Br": "hydrogen bromide", "I": "hydrogen iodide", "FF": "fluorine", "ClCl": "chlorine", "BrBr": "bromine",
    "II": "iodine", "OCl": "hypochlorous acid", "[O]Cl": "chlorine monoxide",
}  # fmt: skip
"""Common molecules and adsorbates by their canonical SMILES."""


_AS_WRITTEN = frozenset(("NCO",))
"""Formulas that are written neither in Hill's order nor as in the g2 set."""


def formula_and_name(mol: Chem.Mol) -> str:
    """The formula of a molecule and, where it is a common one, its name: ``C2H6O, ethanol``."""
    bare = Chem.RemoveHs(mol)
    for atom in bare.GetAtoms():
        atom.SetAtomMapNum(0)
    return ", ".join(filter(None, (CalcMolFormula(mol), _names().get(Chem.MolToSmiles(bare), ""))))


def g2_atoms(text: str) -> tuple[Atoms, str]:
    """The atoms behind ``molecule:NAME``, and their formula and name as in :func:`formula_and_name`.

    Raises:
        InputError: ASE's g2 set has no such molecule.
    """
    name = text.removeprefix(MOLECULE)
    if name not in g2.names:
        close = difflib.get_close_matches(name, g2.names, n=5) or sorted(g2.names, key=len)[:5]
        raise InputError(
            f"'{text:.200}': ASE's g2 set has no molecule of this name; it has {', '.join(close)} and others, "
            "see ase.collections.g2.names"
        )
    atoms = g2_molecule(name)
    known = _by_formula().get(_key(_counts(atoms.get_chemical_formula())), ([], []))
    common = known[1][0][1] if len(known[0]) == len(known[1]) == 1 else ""
    return atoms, ", ".join(filter(None, (atoms.get_chemical_formula(), common)))


def described(text: str) -> str:
    """A molecule as it was given, with what it is: ``ethanol (C2H6O, CCO)``; text that is none as it is."""
    if text.startswith(MOLECULE):
        about = g2_atoms(text)[1]
    else:
        with rdBase.BlockLogs():
            mol = Chem.MolFromSmiles(text)
        about = "" if mol is None else formula_and_name(mol)
    formula, _, name = about.partition(", ")
    return f"{name} ({formula}, {text})" if name else f"{text} ({formula})" if formula else text


def refuse_ambiguous(text: str, mol: Chem.Mol) -> None:
    """Refuse a SMILES that reads as the formula of another small molecule, such as CO.

    Raises:
        InputError: it does.
    """
    counts = _counts(text)
    names, known = _by_formula().get(_key(counts), ([], []))
    own = Counter(atom.GetSymbol() for atom in Chem.AddHs(mol).GetAtoms())
    written = text in g2.names or text in _AS_WRITTEN or text == "".join(sorted(counts, key=lambda e: (e != "C", e)))
    if len(counts) < 2 or set(counts.values()) != {1} or not written or not known or counts == own:
        return
    smiles, other = known[0]
    formula, _, name = formula_and_name(mol).partition(", ")
    ways = " or ".join([*(f"{MOLECULE}{one}" for one in names[:1]), smiles])
    raise InputError(
        f"'{text}' is {f'{name} ({formula})' if name else formula} as a SMILES, and reads as {other} as a formula; "
        f"write {ways} for {other}, and {SMILES}{text} for {name or formula}"
    )


def as_formula(text: str) -> tuple[str, str]:
    """How to write molecules of which a text is the formula: as SMILES, and as ``molecule:NAME``; empty for none."""
    names, known = _by_formula().get(_key(_counts(text)), ([], []))
    return (
        " or ".join(f"{smiles} ({name})" for smiles, name in known),
        " or ".join(f"{MOLECULE}{name}" for name in ([text] if text in g2.names else names)),
    )


def _counts(text: str) -> Counter[str]:
    """Elements of a formula such as CO or CH3OH; empty for other text."""
    terms = _TERMS.findall(text)
    if "".join(element + n for element, n in terms) != text or any(e not in atomic_numbers for e, _ in terms):
        return Counter()
    counts: Counter[str] = Counter()
    for element, n in terms:
        counts[element] += int(n or 1)
    return counts


def _key(counts: Counter[str]) -> frozenset[tuple[str, int]]:
    return frozenset(counts.items())


@cache
def _names() -> dict[str, str]:
    return {Chem.CanonSmiles(smiles): name for smiles, name in _NAMES.items()}


@cache
def _by_formula() -> dict[frozenset[tuple[str, int]], tuple[list[str], list[tuple[str, str]]]]:
    """Names of the g2 set, and SMILES with common names, by the elements and their numbers."""
    found: dict[frozenset[tuple[str, int]], tuple[list[str], list[tuple[str, str]]]] = {}
    for name in sorted(g2.names, key=lambda name: (len(name), name)):
        key = _key(Counter(g2_molecule(name).get_chemical_symbols()))
        found.setdefault(key, ([], []))[0].append(name)
    for smiles, name in _NAMES.items():
        atoms = Chem.AddHs(Chem.MolFromSmiles(smiles)).GetAtoms()
        found.setdefault(_key(Counter(atom.GetSymbol() for atom in atoms)), ([], []))[1].append((smiles, name))
    return found
