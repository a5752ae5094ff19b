"""Names in a file that look as if they mattered, and that nothing reads."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from ase import Atoms
from ase.calculators.calculator import all_properties

from molflt.data.labels import LabelSpec
from molflt.data.reading import KNOWN_VALUES
from molflt.data.records import RECORD_KEYS

_LABEL = re.compile(r"energ|force|virial|(?<![a-z])e(?![a-z])")
_STATE = re.compile(r"charge|lattice|constrain|fixed|frozen|(?<![a-z])(?:cell|mask)(?![a-z])")
_READ = frozenset(
    {*RECORD_KEYS, *KNOWN_VALUES, *all_properties, "initial_charges"} - {"charges", "fixed", "cell", "force"}
)
"""Names that are read, and results that mean what ASE says they do."""
_OURS = "predicted_"
"""What ``predict`` writes."""
_NUMBER = re.compile(r"[\s\[({]*[-+]?\.?\d")


def unread_names(atoms: Atoms, labels: LabelSpec | None) -> Iterator[str]:
    """Names of entries, columns and results that look like a cell, an energy, forces, a charge or a constraint.

    The rule: by its name, in any case of letters, and not a word or a logical value. Where the user names a label,
    other energies and forces are not meant.

    Args:
        atoms: a structure as it was read from a file.
        labels: which label is read.
    """
    named = {name.lower() for name in (labels.label, labels.force_label) if name} if labels is not None else set()
    for name, value in {**atoms.arrays, **getattr(atoms.calc, "results", {}), **atoms.info}.items():
        folded = str(name).lower()
        if folded in _READ or folded in named or folded.startswith(_OURS):
            continue
        if not (_STATE.search(folded) or (not named and _LABEL.search(folded))):
            continue
        if name in atoms.arrays or (not isinstance(value, bool | np.bool_) and _NUMBER.match(str(value))):
            yield str(name)
