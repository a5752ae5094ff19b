"""Adsorption data as it usually comes: VASP runs, pairs, Catalysis-Hub, aselmdb; and what is wrong in it."""

import json
import os
import pickle
import re
import sqlite3
import zlib
from pathlib import Path

import ase.db
import ase.io
import lmdb
import numpy as np
import pytest
from ase import Atoms
from ase.build import add_adsorbate, fcc111, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms, FixCartesian

from molflt.data import runs as calculations
from molflt.data.ase import from_atoms, to_atoms
from molflt.data.labels import LabelSpec
from molflt.data.oc20.lmdb import LmdbDataset
from molflt.data.open import open_dataset, resolve_inputs
from molflt.data.prepare import prepare
from molflt.data.reading import ReadOptions
from molflt.data.record import to_data
from molflt.errors import InputError, InputWarning
from molflt.files import resolve_path
from tests.data.pickles import Call
from tests.data.test_prepared import all_same
from tests.data.vasp_files import outcar, vasprun

RELAXED, PAIRS = LabelSpec(target="y_relaxed"), ReadOptions(pairs=True)
TAGS = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]


def _slab(height=1.8):
    atoms = fcc111("Pt", (2, 2, 2), vacuum=7.0, periodic=True)
    add_adsorbate(atoms, Atoms("CO", [[0, 0, 0], [0, 0, 1.15]]), height, "ontop")
    atoms.set_constraint(FixAtoms(indices=range(4)))
    atoms.set_tags(0)
    return atoms


def _relaxed(atoms, energy=None):
    """Atoms that may move have moved a little; one has left the cell through a side."""
    relaxed = atoms.copy()
    relaxed.constraints = None
    relaxed.positions[8:] += [0.1, -0.2, 0.05]
    relaxed.positions[5] += np.asarray(atoms.cell)[0]
    if energy is not None:
        relaxed.calc = SinglePointCalculator(relaxed, energy=energy)
    return relaxed


def _layers(path, **options):
    """As a user reads what has no tags."""
    return open_dataset(path, ReadOptions(tags="layers", **options))


def _check(data, atoms):
    """Initial positions, the nearest image of the relaxed ones, and tags from the heights."""
    np.testing.assert_allclose(data.positions, atoms.positions, atol=1e-6)
    moved = np.zeros((10, 3))
    moved[8:] = [0.1, -0.2, 0.05]
    np.testing.assert_allclose(data.positions_relaxed - data.positions, moved, atol=1e-6)
    assert data.tags.tolist() == TAGS


@pytest.fixture
def table(tmp_path):
    """Reads two runs of VASP with this table of energies."""
    for name, atoms in (("Pt/top", _slab()), ("Pt/far", _slab(2.5))):
        (tmp_path / name).mkdir(parents=True)
        ase.io.write(tmp_path / name / "POSCAR", atoms, format="vasp", direct=True)
        ase.io.write(tmp_path / name / "CONTCAR", _relaxed(atoms), format="vasp", direct=True)

    def read(text, **options):
        (tmp_path / "energies.csv").write_text(text, encoding="utf-8")
        return _layers(tmp_path, **options)

    return read


def test_vasp_runs_with_a_table(table, tmp_path):
    labels = LabelSpec(target="y_relaxed", label="E_ads")
    far, top = table("Folder;E_ads;site\nPt/top;-1.5;top\npt/far/;-0.5;far\n", labels=labels)
    _check(top, _slab())
    _check(far, _slab(2.5))
    assert [float(top.y_relaxed), float(far.y_relaxed)] == [-1.5, -0.5]
    assert (top.info["site"], top.name) == ("top", f"{tmp_path}/Pt/top")
    assert top.fixed.tolist() == [True] * 4 + [False] * 6
    # Without tags nothing tells the adsorbate from the surface.
    with pytest.raises(InputError, match=r"(?s)2 of 2 calculations.*Pt/far: .*--tags layers.*Pt/top"):
        open_dataset(tmp_path)
    with pytest.warns(InputWarning, match=r"energies\.csv: rows of no calculation that is in the folder: pt/gone"):
        assert len(table("name,E_ads\nPt/top,-1.5\nPt/far,-0.5\nPt/gone,-1\n")) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,E_ads,e_ads,Energy,energy\nPt/top,-1.5,0,0,0\n", r"'energy' \(and 'Energy'.*columns 4 and 5"),
        ("name,E_ads\nPt/top,-1.5\n", r"Pt/far: .*energies\.csv has no row named 'Pt/far'"),
        ("name,E_ads\nPt/top,-1.5\nPt/top,-1\n", "two rows are named 'pt/top'"),
        ("y_relaxed\n-1.0\n-2.0\n", r"energies\.csv: no column says which calculation a row is of"),
    ],
)
def test_tables_that_do_not_fit(text, message, table):
    with pytest.raises(InputError, match=message):
        table(text)


def _run(folder, name, force=0.019, **settings):
    """A run of VASP in two steps that ends with this force on an atom that may move, and a large one on another."""
    frames = [_slab(), _relaxed(_slab())]
    for frame, energy in zip(frames, (-10.0, -12.0), strict=True):
        forces = np.zeros((10, 3))
        forces[0, 2], forces[9, 2] = 5.0, force
        frame.calc = SinglePointCalculator(frame, energy=energy, forces=forces)
    folder.mkdir()
    ase.io.write(folder / "POSCAR", frames[0], format="vasp")
    (folder / name).write_text((outcar if name == "OUTCAR" else vasprun)(frames, **settings), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", ["OUTCAR", "vasprun.xml"])
def test_a_run_gives_the_relaxed_geometry_and_both_energies(name, tmp_path):
    _run(tmp_path / "run", name)
    (data,) = _layers(tmp_path)
    _check(data, _slab())
    assert (float(data.y_init), float(data.y_relaxed)) == (-10.0, -12.0)
    # A structure that does not move has one energy.
    if name == "OUTCAR":
        (static,) = _layers(_run(tmp_path / "static", name, NSW=0, IBRION=-1))
        assert (float(static.energy), "y_relaxed" in static) == (-12.0, False)


REASONS = [
    ("", "vasprun.xml", {}),
    ("", "OUTCAR", {"EDIFFG": -0.02}),
    ("", "vasprun.xml", {"force": 9.0, "EDIFFG": 2.1}),
    ("a force of 0.6 eV/Å is left", "vasprun.xml", {"force": 0.6}),
    ("after all NSW=2 steps: a force of 0.021 eV/Å", "vasprun.xml", {"force": 0.021, "NSW": 2}),
    ("a force of 0.6 eV/Å is left", "OUTCAR", {"force": 0.6, "reached": False}),
    ("the energy changed by 2 eV in the last step", "vasprun.xml", {"EDIFFG": 1.9}),
    ("the run was cut short", "vasprun.xml", {"end": False}),
    ("the run was cut short", "OUTCAR", {"end": False}),
    ("last step: electrons are not converged after 60", "vasprun.xml", {"electrons": [9, 60]}),
    ("first step: electrons are not converged after 30", "OUTCAR", {"converged": [False, True], "NELM": 30}),
    ("no relaxation (IBRION=0)", "vasprun.xml", {"IBRION": 0}),
    ("CONTCAR is empty", "OUTCAR", {}),
    ("ends before the first step is complete", "vasprun.xml", {}),
]
"""Reasons why a run is no label; its first energy is of the initial structure, its last of the relaxed one."""


def test_runs_that_are_cut_or_not_converged_are_no_labels(tmp_path):
    folders = [_run(tmp_path / f"run{k}", file, **settings) for k, (_, file, settings) in enumerate(REASONS)]
    (folders[-2] / "CONTCAR").touch()
    cut = folders[-1] / "vasprun.xml"
    cut.write_text(cut.read_text(encoding="utf-8").partition("</calculation>")[0], encoding="utf-8")
    with pytest.warns(InputWarning, match=r"11 of 14 calculations skipped(?s:.*)and 1 more") as warned:
        assert [data.name for data in _layers(tmp_path)] == list(map(str, folders[:3]))
    text = "".join(str(warning.message) for warning in warned)
    assert sum(bool(re.search(rf"{folder.name}[:/]", text)) for folder in folders[3:]) == 10
    for folder, (reason, *_) in zip(folders[3:], REASONS[3:], strict=True):
        with pytest.raises(InputError, match=rf"(?s)1 of 1 calculations skipped.*{re.escape(reason)}"):
            _layers(folder)
        if "first step is complete" not in reason:
            assert float(_layers(folder, accept_unconverged=True)[0].y_relaxed) == -12.0


def test_the_initial_structure_is_that_of_the_run(tmp_path):
    moved = _slab()
    moved.positions[9, 2] += 0.2
    ase.io.write(_run(tmp_path / "run", "OUTCAR") / "POSCAR", moved, format="vasp")
    with pytest.raises(InputError, match=r"POSCAR is not the structure that the run begins with.* 0\.2 Å away"):
        _layers(tmp_path)


@pytest.mark.parametrize("name", ["a.extxyz", "a.db", "a.json", "a.traj"])
def test_frames_with_a_flag_that_they_are_not_converged(name, tmp_path):
    frames = [_relaxed(_slab(), -1.0) for _ in range(3)]
    frames[1].info["converged"] = False
    if name in ("a.db", "a.json"):
        with ase.db.connect(tmp_path / name) as database:
            for frame in frames:
                database.write(frame, converged=frame.info.get("converged", True))
    else:
        ase.io.write(tmp_path / name, frames)
    with pytest.warns(InputWarning, match=rf"1 of 3 structures skipped[^#]*{name}#1: converged is (False|0)"):
        assert [data.name for data in _layers(tmp_path / name)] == [f"{tmp_path / name}#{k}" for k in (0, 2)]
    assert len(_layers(tmp_path / name, accept_unconverged=True)) == 3


@pytest.mark.parametrize("layout", ["two folders", "two files", "one folder"])
def test_pairs(layout, tmp_path):
    slabs = [_slab(), _slab(2.0)]
    ends = {"initial": slabs, "relaxed": [_relaxed(atoms, -k - 1.0) for k, atoms in enumerate(slabs)]}
    for end, frames in ends.items():
        if layout == "two folders":
            (tmp_path / end).mkdir()
            for k, atoms in enumerate(frames):
                ase.io.write(tmp_path / end / f"{k}.extxyz", atoms)
        elif layout == "two files":
            ase.io.write(tmp_path / f"{end}.traj", frames)
        else:
            for k, atoms in enumerate(frames):
                ase.io.write(tmp_path / f"{k}_{end}.traj", atoms)
    for asked in ({"labels": RELAXED}, {"pairs": True}):
        found = list(_layers(tmp_path, **asked))
        for data, atoms in zip(found, slabs, strict=True):
            _check(data, atoms)
        assert [float(data.y_relaxed) for data in found] == [-1.0, -2.0]
    given = sorted(map(str, tmp_path.iterdir()), reverse=True)
    for inputs in (given, [str(tmp_path / "*")]):
        both = resolve_inputs(inputs, ReadOptions(tags="layers", labels=RELAXED))
        assert sorted(float(data.y_relaxed) for data in both) == [-2.0, -1.0]
        # Nobody said that they belong together.
        with pytest.warns(InputWarning, match=r"initial\S* and \S*relaxed.* are read as two .*--pairs"):
            assert len(resolve_inputs(inputs, ReadOptions(tags="layers"))) == 4
    if layout == "two folders":
        with pytest.raises(InputError, match=r"no structure file .*--pairs"):
            _layers(tmp_path)
        (tmp_path / "relaxed" / "1.extxyz").rename(tmp_path / "relaxed" / "2.extxyz")
        with pytest.raises(InputError, match="2 names are in one of them only: 1, 2"):
            _layers(tmp_path, labels=RELAXED)
        ase.io.write(tmp_path / "relaxed" / "2.xyz", slabs[0])
        with pytest.raises(InputError, match=r"2\.extxyz: there is another file of this name"):
            _layers(tmp_path, labels=RELAXED)
    else:
        with pytest.warns(InputWarning, match="are read as two structures; give --pairs"):
            assert len(_layers(tmp_path)) == 4
        ase.io.write(tmp_path / given[0].replace(".traj", ".cif"), slabs[0])
        with pytest.raises(InputError, match="which of them are a pair"):
            _layers(tmp_path, labels=RELAXED)


def test_pairs_among_other_files(tmp_path):
    """Other files are read as well, and a geometry without its counterpart is refused."""
    for name in ("a_init", "a_final"):
        ase.io.write(tmp_path / f"{name}.xyz", molecule("CH3OH"))
    ase.io.write(tmp_path / "water.xyz", molecule("H2O"))
    inputs = [str(tmp_path / name) for name in ("water.xyz", "a_final.xyz", "a_init.xyz")]
    for found in (open_dataset(tmp_path, options=PAIRS), resolve_inputs(["CCO", *inputs], options=PAIRS)):
        assert ["positions_relaxed" in data for data in found] == [True] + [False] * (len(found) - 1)
        assert str(found[0].name) == str(tmp_path / "a")
    assert len(found) == 3
    for nothing in ([inputs[0]], ["CCO", *inputs[:2]]):
        with pytest.raises(InputError, match="no two are named alike"):
            resolve_inputs(nothing, options=PAIRS)
    ase.io.write(tmp_path / "b_final.xyz", molecule("H2O"))
    with pytest.raises(InputError, match=r"b_final\.xyz: has no initial counterpart"):
        open_dataset(tmp_path, options=PAIRS)


def test_two_values_of_a_label_at_the_ends_of_a_pair(tmp_path):
    for end, energy in (("initial", -1.0), ("relaxed", -2.0)):
        ase.io.write(tmp_path / f"{end}.extxyz", molecule("H2O", info={"E": energy}))
    paired, single = (ReadOptions(labels=LabelSpec(target=name, label="E")) for name in ("y_relaxed", "energy"))
    with pytest.raises(InputError, match=r"two values are stored under 'E', -1\.0 in .*initial.* and -2\.0 in "):
        open_dataset(tmp_path, paired)
    with pytest.warns(InputWarning, match="two structures"):
        assert [float(data.energy) for data in open_dataset(tmp_path, single)] == [-1, -2]
    (tmp_path / "t.csv").write_text(f"name,E\n{tmp_path.name},-3\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"-3\.0 in the table and -1\.0 in "):
        open_dataset(tmp_path, paired)


def test_catalysis_hub(tmp_path):
    """The tables that CatHub adds to ASE's: energies are of reactions, and structures take part in them."""
    path = tmp_path / "hub.db"
    slab, bare = _slab(), fcc111("Pt", (2, 2, 2), vacuum=7.0)
    with ase.db.connect(path) as database:
        for atoms, pairs in ((slab, {"species": "CO", "state": "star"}), (bare, {"species": "", "state": "star"})):
            database.write(atoms, epot=-20.0, facet="fcc111", **pairs)
        ids = [row.unique_id for row in database.select()]
    assert [data.info["state"] for data in _layers(path)] == ["star", "star"]
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE reaction (id integer, reactants text, products text, reaction_energy real, "
            "surface_composition text, facet text, sites text, dft_functional text)"
        )
        connection.execute(
            "CREATE TABLE reaction_system (name text, energy_correction real, ase_id text, id integer)"
        )
        sides = (json.dumps({"star": 1, "COgas": 1}), json.dumps({"COstar": 1}))
        connection.execute("INSERT INTO reaction VALUES (1,?,?,-1.7,'Pt','111','{}','RPBE')", sides)
        for name, ase_id in (("COstar", ids[0]), ("star", ids[1])):
            connection.execute("INSERT INTO reaction_system VALUES (?,0,?,1)", (name, ase_id))
    connection.close()
    (data,) = _layers(path, labels=LabelSpec(target="y_relaxed", label="reaction_energy"))
    assert (float(data.y_relaxed), data.adsorbate, data.info["facet"]) == (-1.7, "CO", "111")
    assert data.tags.tolist() == TAGS


def _aselmdb(path, rows):
    with (
        lmdb.open(os.fsencode(path), subdir=False, map_size=1 << 24) as environment,
        environment.begin(write=True) as t,
    ):
        for key, row in rows.items():
            t.put(str(key).encode(), row if isinstance(row, bytes) else zlib.compress(json.dumps(row).encode()))
        for key, value in (("nextid", max(rows) + 1), ("deleted_ids", [2]), ("metadata", {"a": 1})):
            t.put(key.encode(), zlib.compress(json.dumps(value).encode()))
    return path


def _row(atoms, **more):
    return {
        "numbers": atoms.numbers.tolist(), "positions": atoms.positions.tolist(),
        "cell": np.asarray(atoms.cell).tolist(), "pbc": atoms.pbc.tolist(), "tags": TAGS,
        "constraints": [{"name": "FixAtoms", "kwargs": {"indices": [0, 1, 2, 3]}}], "unique_id": "0", **more,
    }  # fmt: skip


def test_aselmdb(tmp_path):
    atoms = _slab()
    forces = {"__ndarray__": [[10, 3], "float64", np.arange(30.0).tolist()]}
    more = {
        "masses": np.arange(1.0, 11.0).tolist(),
        "momenta": [[0.5] * 3] * 10,
        "stress": [0.1] * 6,
        "free_energy": -9.5,
    }
    held = [FixAtoms([2, 1]).todict(), FixCartesian([0], (True, False, False)).todict()]
    data = {"sid": 7, "y_relaxed": -1.5, "pos_relaxed": _relaxed(atoms).positions.tolist()}
    rows = {
        1: _row(atoms, energy=-9.0, forces=forces, data=data),
        3: _row(atoms, key_value_pairs={"site": "top"}, constraints=held, **more),
    }
    path = _aselmdb(tmp_path / "a.aselmdb", rows)
    found = open_dataset(path)
    assert found.n_atoms.tolist() == [10, 10]
    all_same(found, prepare([str(path)], tmp_path / "prepared", n_processes=1))
    first, second = found
    _check(first, atoms)
    assert (float(first.energy), float(first.y_relaxed), int(first.sid)) == (-9.0, -1.5, 7)
    assert first.forces.flatten().tolist() == np.arange(30.0).tolist()
    assert first.fixed.tolist() == [True] * 4 + [False] * 6
    assert (second.info["site"], second.name) == ("top", f"{path}#3")
    kept = to_atoms(second)
    assert [str(constraint) for constraint in kept.constraints] == [
        "FixAtoms(indices=[1, 2])",
        "FixCartesian(indices=[0], [True, False, False])",
    ]
    assert kept.get_masses().tolist() == more["masses"]
    assert kept.get_momenta().tolist() == more["momenta"]
    assert kept.calc.results.keys() == {"stress", "free_energy"}
    assert len(open_dataset(tmp_path)) == 2


@pytest.mark.parametrize(
    "row",
    [
        zlib.compress(b" " * (70 << 20) + b"{}"),
        zlib.compress(b"[" * 100_000),
        zlib.compress(pickle.dumps(Call(os.mkdir, ("exploded",)))),
        pickle.dumps(Call(os.mkdir, ("exploded",))),
        {"numbers": []},
        {"numbers": [1], "positions": [[0, 0]]},
        {"numbers": [1], "positions": [[0, 0, 0]], "tags": [0.5]},
        {"numbers": {"__ase_objtype__": "cell"}},
        {"numbers": [1], "positions": [[0, 0, 0]], "constraints": [{"name": "system", "kwargs": {}}]},
        {"numbers": [1], "positions": [[0, 0, 0]], "constraints": [{"name": "FixAtoms", "kwargs": {"indices": [1]}}]},
        {"numbers": [1], "positions": [[0, 0, 0]], "momenta": [[0, 0]]},
        {"numbers": [1], "positions": {"__ndarray__": [[2, 3], "float64", [1.0]]}},
    ],
)
def test_damaged_rows_of_aselmdb(row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dataset = open_dataset(_aselmdb(tmp_path / "a.aselmdb", {1: row}))
    with pytest.raises(InputError, match=r"a\.aselmdb#1: "):
        dataset[0]
    assert not Path("exploded").exists()


def test_files_of_many_frames_are_read_once(tmp_path, monkeypatch):
    for end in ("initial", "relaxed"):
        ase.io.write(tmp_path / f"{end}.traj", [_relaxed(_slab(), -1.0 * k) for k in range(12)])
    read, asked = calculations.read_frames, []
    monkeypatch.setattr(calculations, "read_frames", lambda file: asked.append(file) or read(file))
    found = _layers(tmp_path, labels=RELAXED)
    assert [float(data.y_relaxed) for data in found] == [-1.0 * k for k in range(12)]
    # To count them, and to read them.
    assert len(asked) == 4


def test_relaxations_that_cannot_be(tmp_path):
    atoms = _slab()
    ase.io.write(tmp_path / "initial.traj", atoms)
    relaxed, order = _relaxed(atoms), [*np.roll(range(8), 3), 8, 9]
    for end, message in (
        (relaxed[::-1], "elements in another order"),
        (relaxed[:-1], r"differ in their atoms \(10 and 9\)"),
        (relaxed[order], "are in another order"),
        (fcc111("Pt", (2, 2, 2), vacuum=9.0, periodic=True) + Atoms("CO"), "cells .* differ by 4.00 Å"),
    ):
        ase.io.write(tmp_path / "relaxed.traj", end)
        with pytest.raises(InputError, match=message):
            _layers(tmp_path, labels=RELAXED)
    away = Atoms("C5", np.arange(15.0).reshape(5, 3))
    record = {"pos": away.positions, "pos_relaxed": away.positions + 50.0, "atomic_numbers": away.numbers}
    with pytest.raises(InputError, match=r"r: atoms move by 86\.6 Å on average"):
        to_data(record, "r")


def test_tags_of_real_slabs_are_found_again():
    """In the FG set, whose authors knew what is adsorbed."""
    val = LmdbDataset(resolve_path("bundled:fg/val.lmdb"))
    for i in range(0, len(val), 20):
        data = val[i]
        atoms, found = to_atoms(data), data.tags.tolist()
        atoms.set_tags(0)
        atoms.set_constraint(FixAtoms(mask=data.fixed.numpy()))
        assert from_atoms(atoms, "x", ReadOptions(tags="layers")).tags.tolist() == found


def test_slabs_without_tags():
    def tags(atoms, how="layers"):
        return from_atoms(atoms, "x", ReadOptions(tags=how)).tags.tolist()

    atoms = _slab()
    atoms.info["y_relaxed"] = -1.0
    with pytest.raises(InputError, match=r"x: has a relaxation but no tags.*--tags layers"):
        from_atoms(atoms, "x")
    assert tags(atoms, "oc20") == [0] * 10
    assert tags(atoms) == TAGS
    # Of what is free, as in OC20; without that, the highest layer.
    atoms.set_constraint(FixAtoms(indices=[0, 1]))
    assert tags(atoms) == [0, 0, 1, 1, *TAGS[4:]]
    atoms.set_constraint(None)
    assert tags(atoms) == TAGS
    # through the side of the cell that is called its bottom, and turned upside down with it
    shifted = atoms.copy()
    shifted.positions += 0.55 * np.asarray(atoms.cell)[2]
    shifted.wrap()
    assert tags(shifted) == TAGS
    dense = fcc111("Pt", (2, 2, 3), vacuum=0.9, periodic=True)
    dense.set_tags(0)
    atoms.set_cell([[3, 0, 0], [3, 0, 0], [0, 0, 20]])
    away = Atoms("CO", [[0, 0, 0], [0, 0, 1.1]])
    for other, message in ((away, "has no surface"), (dense, "no vacuum"), (atoms, "x: .*dependent")):
        with pytest.raises(InputError, match=message):
            tags(other)
