"""Files as VASP writes them, in short: as much as its readers look for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from ase import Atoms

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=False,
    trim_blocks=True,
    keep_trailing_newline=True,
)
SETTINGS: dict[str, Any] = {"NSW": 100, "IBRION": 2, "EDIFF": 1e-5, "EDIFFG": -0.02, "NELM": 60}


def _rows(*values: Any, mark: str = "") -> str:
    numbers = (" ".join(f"{x:.8f}" for x in row) for row in np.hstack(values))
    return "".join(f"{mark}{row}\n" if mark else f"<v> {row} </v>\n" for row in numbers)


def _file(template: str, frames: Sequence[Atoms], settings: dict[str, Any], **given: Any) -> str:
    symbols = frames[0].get_chemical_symbols()
    kinds = [(symbol, len([*atoms])) for symbol, atoms in groupby(symbols)]
    given |= {"frames": frames, "settings": SETTINGS | settings, "symbols": symbols, "kinds": kinds, "rows": _rows}
    return TEMPLATES.get_template(template).render(types=[kind for kind, _ in kinds], **given)


def vasprun(frames: Sequence[Atoms], electrons: Sequence[int] = (), end: bool = True, **settings: Any) -> str:
    """A vasprun.xml of steps with energies and forces; ``electrons`` are the electronic steps of each."""
    return _file("vasprun.xml.j2", frames, settings, electrons=electrons, end=end)


def outcar(
    frames: Sequence[Atoms], converged: Sequence[bool] = (), end: bool = True, reached: bool = True, **settings: Any
) -> str:
    """An OUTCAR of the same; ``converged`` says of which steps the electrons are."""
    return _file("OUTCAR.j2", frames, settings, converged=converged, end=end, reached=reached)
