"""Files as VASP writes them, in short: what its readers look for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from ase import Atoms

SETTINGS: dict[str, Any] = {"NSW": 100, "IBRION": 2, "EDIFF": 1e-5, "EDIFFG": -0.02, "NELM": 60}


def _rows(values: Any, mark: str) -> str:
    numbers = (" ".join(f"{x:.8f}" for x in row) for row in np.asarray(values))
    return "\n".join(f"<v> {row} </v>" if mark else f"  {row}" for row in numbers) + "\n"


def vasprun(frames: Sequence[Atoms], electrons: Sequence[int] = (), end: bool = True, **settings: Any) -> str:
    """A vasprun.xml of steps with energies and forces; ``electrons`` are the electronic steps of each."""

    def structure(atoms: Atoms, name: str = "") -> str:
        reciprocal = np.linalg.inv(atoms.cell).T
        return (
            f'<structure{name}>\n<crystal>\n<varray name="basis" >\n{_rows(atoms.cell, "v")}</varray>\n'
            f'<i name="volume">{atoms.cell.volume:.8f}</i>\n<varray name="rec_basis" >\n{_rows(reciprocal, "v")}'
            f'</varray>\n</crystal>\n<varray name="positions" >\n{_rows(atoms.get_scaled_positions(), "v")}'
            "</varray>\n</structure>\n"
        )

    settings = SETTINGS | settings
    kinds = {"NSW": "int", "IBRION": "int", "NELM": "int"}
    parameters = "\n".join(
        f'<i type="{kinds[key]}" name="{key}">{value:6d}</i>'
        if key in kinds
        else f'<i name="{key}">{value:16.8f}</i>'
        for key, value in settings.items()
        if value is not None
    )
    symbols = frames[0].get_chemical_symbols()
    types = [symbol for symbol, _ in groupby(symbols)]
    atoms_set = "\n".join(f"<rc><c>{s:2s}</c><c>{types.index(s) + 1:4d}</c></rc>" for s in symbols)
    types_set = "\n".join(
        f"<rc><c>{symbols.count(s)}</c><c>{s:2s}</c><c>1.0</c><c>1.0</c><c>PAW_PBE {s} 01Jan2000</c></rc>"
        for s in types
    )
    fields = (
        '<dimension dim="1">ion</dimension>\n<field type="string">element</field>\n<field type="int">atomtype</field>'
    )
    type_fields = '<dimension dim="1">type</dimension>\n' + "\n".join(
        f"<field{kind}>{name}</field>"
        for kind, name in (
            (' type="int"', "atomspertype"),
            (' type="string"', "element"),
            ("", "mass"),
            ("", "valence"),
            (' type="string"', "pseudopotential"),
        )
    )
    text = (
        '<?xml version="1.0" encoding="ISO-8859-1"?>\n<modeling>\n<generator>\n'
        '<i name="program" type="string">vasp </i>\n<i name="version" type="string">5.4.4  </i>\n</generator>\n'
        f"<incar>\n{parameters}\n</incar>\n"
        '<kpoints>\n<generation param="Gamma">\n<v type="int" name="divisions">1 1 1 </v>\n</generation>\n'
        '<varray name="kpointlist" >\n<v> 0 0 0 </v>\n</varray>\n<varray name="weights" >\n<v> 1.0 </v>\n</varray>\n'
        f'</kpoints>\n<parameters>\n<separator name="ionic" >\n{parameters}\n</separator>\n</parameters>\n'
        f"<atominfo>\n<atoms>{len(symbols):8d} </atoms>\n<types>{len(types):8d} </types>\n"
        f'<array name="atoms" >\n{fields}\n<set>\n{atoms_set}\n</set>\n</array>\n'
        f'<array name="atomtypes" >\n{type_fields}\n<set>\n{types_set}\n</set>\n</array>\n</atominfo>\n'
    )
    text += structure(frames[0], ' name="initialpos" ')
    for k, atoms in enumerate(frames):
        energy = atoms.get_potential_energy()
        energies = "".join(
            f'<i name="{name}">{energy - 0.3 * (name != "e_0_energy"):16.8f} </i>\n'
            for name in ("e_fr_energy", "e_wo_entrp", "e_0_energy")
        )
        step = f"<scstep>\n<energy>\n{energies}</energy>\n</scstep>\n"
        text += f"<calculation>\n{step * (electrons[k] if electrons else 9)}{structure(atoms)}"
        forces = _rows(atoms.get_forces(apply_constraint=False), "v")
        text += f'<varray name="forces" >\n{forces}</varray>\n<energy>\n{energies}</energy>\n</calculation>\n'
    text += structure(frames[-1], ' name="finalpos" ')
    return text + ("</modeling>\n" if end else "")


def outcar(
    frames: Sequence[Atoms], converged: Sequence[bool] = (), end: bool = True, reached: bool = True, **settings: Any
) -> str:
    """An OUTCAR of the same; ``converged`` says of which steps the electrons are."""
    settings = SETTINGS | settings
    symbols = frames[0].get_chemical_symbols()
    kinds = [(symbol, len([*atoms])) for symbol, atoms in groupby(symbols)]
    text = " vasp.5.4.4\n executed on             LinuxIFC date 2026.01.01  12:00:00\n"
    text += 2 * "".join(f" POTCAR:    PAW_PBE {symbol} 01Jan2000\n" for symbol, _ in kinds)
    text += f"   number of dos      NEDOS =    301   number of ions     NIONS = {len(symbols):6d}\n"
    text += "   ions per type =           " + " ".join(str(n) for _, n in kinds) + "\n"
    text += "   ISPIN  =      1    spin polarized calculation?\n"
    text += f"   NELM   = {settings['NELM']:6d};   NELMIN=  2; NELMDL= -5     # of ELM steps\n"
    text += f"   EDIFF  = {settings['EDIFF']:.1E}   stopping-criterion for ELM\n"
    text += f"   EDIFFG = {settings['EDIFFG']:.1E}   stopping-criterion for IOM\n"
    text += f"   NSW    = {settings['NSW']:6d}    number of steps for IOM\n"
    text += f"   IBRION = {settings['IBRION']:6d}    ionic relax: 0-MD 1-quasi-New 2-CG\n\n"
    for k, atoms in enumerate(frames):
        is_converged = not converged or converged[k]
        for n in (1, 2) if is_converged else (1, settings["NELM"]):
            text += f"--------------------------------------- Iteration {k + 1:6d}({n:4d})  {39 * '-'}\n\n"
        if is_converged:
            text += "------------------------ aborting loop because EDIFF is reached ----------------------------\n\n"
        text += "      direct lattice vectors                 reciprocal lattice vectors\n"
        text += _rows(np.hstack([np.asarray(atoms.cell), np.linalg.inv(atoms.cell).T]), "") + "\n"
        text += " POSITION                                       TOTAL-FORCE (eV/Angst)\n"
        forces = atoms.get_forces(apply_constraint=False)
        ruler = f" {83 * '-'}\n"
        text += ruler + _rows(np.hstack([atoms.positions, forces]), "") + ruler
        text += "    total drift:                                0.000000      0.000000      0.000000\n\n\n"
        energy = atoms.get_potential_energy()
        text += (
            "  FREE ENERGIE OF THE ION-ELECTRON SYSTEM (eV)\n  ---------------------------------------------------\n"
        )
        text += f"  free  energy   TOTEN  = {energy - 0.3:18.8f} eV\n\n"
        text += f"  energy  without entropy= {energy - 0.3:16.8f}  energy(sigma->0) = {energy:16.8f}\n\n\n"
    if reached:
        text += " reached required accuracy - stopping structural energy minimisation\n\n"
    return text + (" General timing and accounting informations for this job:\n ====\n" if end else "")
