"""Molecules with positions from SDF, MOL and mol2 files."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rdkit import Chem
from torch_geometric.data import Data

from molflt.data.compression import bare_suffix, content, read_text
from molflt.data.datasets import ListDataset
from molflt.data.labels import LabelSpec
from molflt.data.rdkit_io import because, captured, from_mol, named
from molflt.data.reading import DEFAULT, Reading
from molflt.errors import InputError, OnBad, noting

_MOL2 = re.compile(r"^@<TRIPOS>MOLECULE", re.MULTILINE)


def read_sdf(
    path: str | os.PathLike[str],
    labels: LabelSpec | None = None,
    on_bad: OnBad = "stop",
    how: Reading = DEFAULT,
) -> ListDataset:
    """Read every molecule of an SDF, MOL or mol2 file, with the positions it has, named ``PATH#INDEX (TITLE)``.

    Raises:
        InputError: no such file, no molecules, or a molecule that cannot be read.
    """
    file = Path(path)
    structures: list[Data] = []
    bad: dict[int, InputError] = {}
    with captured() as said:
        if bare_suffix(file) == ".mol2":
            mols = mol2_blocks(file)
        else:
            mols = Chem.ForwardSDMolSupplier(io.BytesIO(content(file)), sanitize=False, removeHs=False)
        for index, mol in enumerate(mols):
            name = f"{file}#{index}"
            info = {} if mol is None else _properties(mol)
            with noting(bad, index, named(name, info.get("name", "")), info):
                if mol is None:
                    raise InputError(f"{name}: not a readable molecule block{because(said())}")
                how.refuse_stated(name, info, "property {!r}")
                structure = from_mol(mol, name, labels, how)
                structure.name, structure.info = named(name, info.get("name", "")), info
                structures.append(structure)
    if not structures and not bad:
        raise InputError(f"{file}: holds no molecules")
    return ListDataset.read(structures, bad, on_bad, str(file))


def _properties(mol: Chem.Mol) -> dict[str, Any]:
    """The title and the properties of a molecule of an SDF file; those that are no text are passed over."""
    found: dict[str, Any] = {}
    # from_mol says what is wrong with properties.
    with suppress(UnicodeDecodeError, RuntimeError):
        if mol.HasProp("_Name") and (title := mol.GetProp("_Name").strip()):
            found["name"] = title
        found |= mol.GetPropsAsDict(includePrivate=False, includeComputed=False)
    return {key: value for key, value in found.items() if isinstance(value, str | int | float)}


def mol2_blocks(file: Path) -> Iterator[Chem.Mol | None]:
    """Every molecule of a mol2 file; None where RDKit cannot read it.

    Raises:
        InputError: not text.
    """
    text = read_text(file)
    starts = [found.start() for found in _MOL2.finditer(text)]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        block = text[start:end]
        # Of bonds that RDKit finds no structure for, positions and elements are still right.
        yield Chem.MolFromMol2Block(block, removeHs=False) or Chem.MolFromMol2Block(
            block, sanitize=False, removeHs=False
        )
