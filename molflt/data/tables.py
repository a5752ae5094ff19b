"""Lists and tables of SMILES or InChI, and formulas and names of molecules."""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from pathlib import Path

from ase import Atoms
from ase.build import molecule as g2_molecule
from ase.collections import g2
from ase.data import atomic_numbers
from rdkit import Chem, rdBase
from rdkit.Chem.rdMolDescriptors import CalcMolFormula

from molflt.data.formats import TABLES
from molflt.data.reading import KNOWN_VALUES
from molflt.data.record import ENERGIES
from molflt.data.text import bare_suffix, read_text, remark
from molflt.errors import InputError, in_line

_MOLECULES = ("smiles", "inchi")
_SEPARATORS = ",;\t"
_NAMED_BY = ("name", "title", "id", "compound")
"""Columns, in any case, that name a record; the first of them that is filled counts."""


@dataclass(frozen=True)
class Row:
    """Molecule in a file.

    Attributes:
        molecule: SMILES or InChI.
        columns: every cell by the name of its column.
        labels: filled cells, among which labels are looked for.
        problem: the error of the row, if any.
    """

    molecule: str
    columns: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def own_name(self) -> str:
        """Name of the molecule in its file, or else its SMILES or InChI."""
        found = {column.lower(): text for column, text in self.columns.items() if text}
        return next((found[name] for name in _NAMED_BY if name in found), self.molecule)


def read_rows(file: Path) -> list[Row]:
    """Read a list of SMILES or InChI, perhaps with titles, or a table with a column of them.

    Cells are separated by commas, semicolons or tabs, whichever fits the first line.

    Raises:
        InputError: the file cannot be read, no such column, two columns of one name, or no rows.
    """
    text = read_text(file)
    rows = list((_table_rows if bare_suffix(file) in TABLES else _list_rows)(file, text))
    if not rows:
        raise InputError(f"{file}: holds no molecules")
    return rows


def _list_rows(file: Path, text: str) -> Iterator[Row]:
    lines = [words for line in text.split("\n") if (words := line.split(maxsplit=1))]
    kept = [words for words in lines if not words[0].startswith("#")]
    if comments := len(lines) - len(kept):
        remark(str(file), f"lines that begin with # are ignored: {comments:,}")
    # A header; it is not a valid SMILES.
    for words in kept[1:] if kept and kept[0][0].lower() in _MOLECULES else kept:
        title = {"name": words[1].strip()} if len(words) > 1 else {}
        yield Row(words[0], {"smiles": words[0], **title})


def _table_rows(file: Path, text: str) -> Iterator[Row]:
    columns, rows = read_table(file, text, _MOLECULES)
    key = next((columns[name] for name in _MOLECULES if name in columns), None)
    if key is None:
        found = ", ".join(columns) or "none"
        raise InputError(f"{file}: no column 'smiles' (or 'inchi'); found: {found}")
    for line, cells, problem in rows:
        # Names of labels match in any case.
        labels = cells | {name: cells[columns[name]] for name in ENERGIES if name in columns}
        # RDKit reserves names with an underscore.
        labels = {name: text for name, text in labels.items() if text and not name.startswith("_")}
        molecule = cells[key]
        if "\n" in molecule:
            problem = f"the SMILES from line {line} on spans several lines; is a quotation mark not closed?"
        yield Row(molecule, cells, labels, problem)


def read_table(
    file: Path, text: str, wanted: Collection[str]
) -> tuple[dict[str, str], list[tuple[int, dict[str, str], str]]]:
    """Read a table with a header; blank lines and comments (#) before the header are ignored.

    Args:
        file: for messages.
        text: of it; lines end in ``\\n``.
        wanted: names, in any case, one of which must be a column.

    Returns:
        The names of columns by their lower-case form; and for each row the number of its first line, its cells by
        column, and its error, if any.

    Raises:
        InputError: duplicate columns, or unbalanced quotation marks.
    """
    lines, rows, short = text.split("\n"), [], list[str]()
    above = next((k for k, line in enumerate(lines) if not _is_comment(line, wanted)), 0)
    if comments := sum(1 for line in lines[:above] if line.strip()):
        remark(str(file), f"lines that begin with # are ignored: {comments:,}")
    text, begin = "\n".join(lines[above:]), above + 1
    separator = delimiter(text, wanted)
    reader = csv.reader(io.StringIO(text), strict=True, delimiter=separator)
    try:
        header = [cell.strip() for cell in next(reader, [])]
        _refuse_doubles(file, header, {*wanted, *_NAMED_BY, *ENERGIES, *KNOWN_VALUES})
        begin = above + reader.line_num + 1
        for cells in reader:
            if len(cells) > 1 or any(map(str.strip, cells)):
                problem = _wrong_with(cells, header, separator, begin, above + reader.line_num)
                if any(header[len(cells) :]):
                    short.append(str(begin))
                filled = zip_longest(header, cells[: len(header)], fillvalue="")
                rows.append((begin, {name: cell.strip() for name, cell in filled if name}, problem))
            begin = above + reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{file}: cannot be read from line {begin} on ({error}); is a quotation mark there not closed?"
        ) from error
    if short:
        remark(str(file), f"cells that are missing at the end of rows are taken as empty: line {in_line(short)}")
    return {name.lower(): name for name in header if name}, rows


def delimiter(text: str, columns: Collection[str]) -> str:
    """Find the separator that splits the first line so that a cell is one of these columns."""
    return max(_SEPARATORS, key=lambda separator: _sense(text.split("\n", 1)[0], separator, columns))


def _sense(header: str, separator: str, columns: Collection[str]) -> tuple[bool, int]:
    cells = [cell.strip(' "').lower() for cell in header.split(separator)]
    return any(name in cells for name in columns), len(cells)


def _is_comment(line: str, columns: Collection[str]) -> bool:
    """True if a line is not a header: blank, or after # without one of these columns."""
    if not line.lstrip().startswith("#"):
        return not line.strip()
    return not any(_sense(line, separator, columns)[0] for separator in _SEPARATORS)


def _refuse_doubles(file: Path, header: list[str], in_any_case: Collection[str]) -> None:
    seen: dict[str, int] = {}
    for place, name in enumerate(header):
        key = name.lower() if name.lower() in in_any_case else name
        if name and (first := seen.setdefault(key, place)) != place:
            other = "" if header[first] == name else f" (and '{header[first]}': case does not count)"
            raise InputError(
                f"{file}: two columns are named '{name}'{other}, columns {first + 1} and {place + 1}; rename one"
            )


def _wrong_with(cells: list[str], header: list[str], separator: str, line: int, last: int) -> str:
    n_columns = len(header)
    if any(cell.strip() for cell in cells[n_columns:]):
        return (
            f"line {line} has more cells than the {n_columns} columns of the header; put text with commas in quotes"
        )
    for place, cell in enumerate(cells):
        # The rest of a row, complete rows, and the beginning of one.
        parts = [part for part in cell.split("\n") if part]
        if len(parts) > 1:
            first, *between, end = (part.count(separator) for part in parts)
            whole = {*between, first + place, end + len(cells) - 1 - place}
            if whole == {n_columns - 1}:
                return f"the cell '{header[place]}' holds lines {line} to {last}; is a quotation mark not closed?"
    return ""


MOLECULE, SMILES = "molecule:", "smiles:"
"""Prefixes of a name in ASE's g2 set, and of a SMILES that reads as a formula as well."""
_TERMS = re.compile(r"([A-Z][a-z]?)(\d{0,3})")
_NAMES = Path(__file__).with_name("molecule_names.tsv")
"""Common molecules and adsorbates by their canonical SMILES."""


_AS_WRITTEN = frozenset(("NCO",))
"""Formulas written neither in Hill's order nor as in the g2 set."""


def formula_and_name(mol: Chem.Mol) -> str:
    """Formula of a molecule, with its name if it is common: ``C2H6O, ethanol``."""
    how = Chem.RemoveHsParameters()
    # Of hydrogen alone RDKit warns. A block of its log would hold for other threads as well.
    how.showWarnings = False  # type: ignore[assignment]
    bare = Chem.RemoveHs(mol, how)
    for atom in bare.GetAtoms():
        atom.SetAtomMapNum(0)
    return ", ".join(filter(None, (CalcMolFormula(mol), _names().get(Chem.MolToSmiles(bare), ""))))


def g2_atoms(text: str) -> tuple[Atoms, str]:
    """Atoms of ``molecule:NAME``, with formula and name as in :func:`formula_and_name`.

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
    """Describe a molecule: ``ethanol (C2H6O, CCO)``; other text is unchanged."""
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
        InputError: the SMILES is ambiguous.
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
    """SMILES, and ``molecule:NAME``, of molecules with this formula; empty without any."""
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
    lines = (line.split("\t") for line in _NAMES.read_text("utf-8").splitlines()[1:])
    return {Chem.CanonSmiles(smiles): name for smiles, name in lines}


@cache
def _by_formula() -> dict[frozenset[tuple[str, int]], tuple[list[str], list[tuple[str, str]]]]:
    """Names of the g2 set, and SMILES with common names, by composition."""
    found: dict[frozenset[tuple[str, int]], tuple[list[str], list[tuple[str, str]]]] = {}
    for name in sorted(g2.names, key=lambda name: (len(name), name)):
        key = _key(Counter(g2_molecule(name).get_chemical_symbols()))
        found.setdefault(key, ([], []))[0].append(name)
    for smiles, name in _names().items():
        atoms = Chem.AddHs(Chem.MolFromSmiles(smiles)).GetAtoms()
        found.setdefault(_key(Counter(atom.GetSymbol() for atom in atoms)), ([], []))[1].append((smiles, name))
    return found
