"""Structures from and to ASE."""

from __future__ import annotations

import gzip
import pickle
import sqlite3
from pathlib import Path
from typing import Any

import ase.db
import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms

from molflt import vocabulary
from molflt.data.ase_io import ase_format, from_atoms, read_ase, to_atoms
from molflt.errors import InputError


def _slab() -> Atoms:
    slab = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    add_adsorbate(slab, "O", 1.2, "fcc")
    # how the slab was built, which no file format can hold
    slab.info.clear()
    return slab


def _oc20_slab() -> Atoms:
    slab = _slab()
    slab.set_tags([2 if tag == 0 else 1 if tag == 1 else 0 for tag in slab.get_tags()])
    return slab


def test_a_slab_under_the_vocabulary() -> None:
    slab = _oc20_slab()
    slab.set_constraint(FixAtoms(mask=slab.get_tags() == 0))
    slab.calc = SinglePointCalculator(slab, energy=-3.5)
    slab.info.update(y_relaxed=-0.25, sid=7, adsorbate="O")
    data = from_atoms(slab, "slab")
    np.testing.assert_array_equal(data.positions.numpy(), slab.positions)
    assert data.pbc.tolist() == [[True, True, False]]
    assert data.tags.tolist() == slab.get_tags().tolist()
    assert data.fixed.tolist() == [True] * 8 + [False] * 5
    assert (float(data.energy), float(data.y_relaxed), int(data.sid)) == (-3.5, -0.25, 7)
    assert (data.name, data.adsorbate, data.num_nodes) == ("slab", "O", 13)


def test_round_trip() -> None:
    slab = _oc20_slab()
    slab.set_constraint(FixAtoms([0, 3]))
    slab.set_array("positions_relaxed", slab.positions + 0.1)
    slab.info.update(energy=-1.5, y_init=0.5, sid=3)
    data = from_atoms(slab, "slab")
    back = from_atoms(to_atoms(data), "slab")
    assert set(back.keys()) == set(data.keys())
    for field in vocabulary.FIELDS:
        if field in data:
            torch.testing.assert_close(back[field], data[field], rtol=0, atol=1e-12)


def test_a_molecule_has_no_cell() -> None:
    data = from_atoms(molecule("H2O"), "water")
    assert not data.pbc.any()
    assert not data.cell.any()
    assert not data.tags.any()
    assert "energy" not in data


def test_nothing_is_computed() -> None:
    atoms = bulk("Cu")
    atoms.calc = EMT()
    assert "energy" not in from_atoms(atoms, "x")
    energy = atoms.get_potential_energy()
    assert float(from_atoms(atoms, "x").energy) == energy
    # an energy of other positions is not this structure's
    atoms.positions += [[0.1, 0, 0]]
    atoms.set_cell(atoms.cell * 1.1)
    assert "energy" not in from_atoms(atoms, "x")


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("with_adsorbate", [True, False])
def test_layer_numbers_are_not_taken_for_oc20_tags(layers: int, with_adsorbate: bool) -> None:
    slab = fcc111("Cu", (2, 2, layers), vacuum=8.0)
    if with_adsorbate:
        add_adsorbate(slab, "O", 1.2, "fcc")
    if len(set(slab.get_tags())) > 1:
        with pytest.raises(InputError, match="tags='layers'"):
            from_atoms(slab, "slab")
    data = from_atoms(slab, "slab", tags="layers")
    expected = [2 if t == 0 else 1 if t == 1 else 0 for t in slab.get_tags()]
    assert data.tags.tolist() == expected


@pytest.mark.parametrize("tags", [[0.5, 1.0, 2.0], [float("nan")] * 3, ["a", "b", "c"]], ids=str)
def test_tags_are_whole_numbers(tags: list[object]) -> None:
    atoms = molecule("H2O")
    atoms.arrays["tags"] = np.array(tags)
    with pytest.raises(InputError, match="water: tags must be whole numbers"):
        from_atoms(atoms, "water")


def test_oc20_tags_pass_and_can_be_forced() -> None:
    slab = _oc20_slab()
    assert from_atoms(slab, "x").tags.tolist() == slab.get_tags().tolist()
    upside_down = fcc111("Cu", (2, 2, 2), vacuum=8.0)
    assert from_atoms(upside_down, "x", tags="oc20").tags.tolist() == upside_down.get_tags().tolist()
    # tags of a structure that is no slab say nothing about layers
    atoms = molecule("CO2")
    atoms.set_tags([0, 2, 1])
    assert from_atoms(atoms, "x").tags.tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.set_tags([-1] + [0] * 12), "tags"),
        (lambda a: a.set_pbc(True) or a.set_cell([5, 5, 0]), "zero"),
        (lambda a: a.info.update(y_relaxed="low"), "'y_relaxed'"),
        (lambda a: a.info.update(sid=1.5), "'sid'"),
        (lambda a: a.info.update(energy=float("nan")), "'energy'"),
        (lambda a: a.info.update(occupancy={"0": {"Cu": 0.5, "Au": 0.5}}), "occupied"),
        (lambda a: a.info.update(occupancy={"0": {"Cu": 1.0}, "1": {"Cu": 1.0, "Au": 1.0}}), "shared by elements"),
        (lambda a: a.info.update(occupancy={"0": {"Cu": 0.9}}), "partly occupied"),
        (lambda a: a.numbers.__setitem__(0, 0), "atomic_numbers"),
        (lambda a: a.positions.__setitem__((0, 0), np.inf), "positions"),
    ],
)
def test_what_cannot_be_used_is_named(change: Any, message: str) -> None:
    slab = _oc20_slab()
    change(slab)
    with pytest.raises(InputError, match=message) as refusal:
        from_atoms(slab, "slab.traj#4")
    assert str(refusal.value).startswith("slab.traj#4")


FILES = ["a.extxyz", "a.xyz", "a.traj", "a.db", "a.json", "a.extxyz.gz", "a.xyz.bz2", "a.xyz.xz"]


@pytest.mark.parametrize("name", FILES)
def test_every_frame_of_a_file(tmp_path: Path, name: str) -> None:
    frames = []
    for k in range(4):
        frame = _oc20_slab()
        frame.positions += 0.01 * k
        frame.calc = SinglePointCalculator(frame, energy=-float(k))
        frames.append(frame)
    # "@" is ASE's syntax for frames, but here a part of the name
    path = tmp_path / f"x@1{name}"
    ase.io.write(tmp_path / name, frames)
    (tmp_path / name).rename(path)
    read = read_ase(path)
    assert [d.name for d in read] == [f"{path}#{k}" for k in range(4)]
    for data, frame in zip(read, frames, strict=True):
        np.testing.assert_allclose(data.positions.numpy(), frame.positions, atol=1e-7)
        np.testing.assert_array_equal(data.tags.numpy(), frame.get_tags())
        assert float(data.energy) == frame.get_potential_energy()
        assert data.pbc.tolist() == [[True, True, False]]


@pytest.mark.parametrize(
    ("name", "form"),
    [("a.cif", "cif"), ("POSCAR", "vasp"), ("CONTCAR_2", "vasp"), ("a.vasp.gz", "vasp"), ("a.xsf", "xsf")],
)
def test_single_structure_formats(tmp_path: Path, name: str, form: str) -> None:
    atoms = bulk("NaCl", "rocksalt", a=5.6, cubic=True)
    ase.io.write(tmp_path / name, atoms, format=form)
    (data,) = read_ase(tmp_path / name)
    assert sorted(data.atomic_numbers.tolist()) == sorted(atoms.numbers.tolist())
    assert data.pbc.all()
    torch.testing.assert_close(data.cell[0].norm(dim=1), torch.full((3,), 5.6, dtype=torch.float64))


def test_plain_xyz_with_any_comment(tmp_path: Path) -> None:
    path = tmp_path / "a.xyz"
    path.write_text("2\nhydrogen, as drawn\nH 0 0 0\nH 0 0 0.74\n")
    (data,) = read_ase(path)
    assert data.num_nodes == 2
    assert not data.pbc.any()


def test_database_labels_become_fields(tmp_path: Path) -> None:
    import ase.db

    with ase.db.connect(tmp_path / "a.db") as database:
        database.write(_oc20_slab(), y_relaxed=-0.75, sid=12, adsorbate="O")
    (data,) = read_ase(tmp_path / "a.db")
    assert (float(data.y_relaxed), int(data.sid), data.adsorbate) == (-0.75, 12, "O")


def test_a_foreign_database_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine (x)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="not an ASE database"):
        read_ase(path)
    assert path.read_bytes() == before


class _Touch:
    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.flag,))


@pytest.mark.parametrize("name", ["a.traj", "a.db", "a.json", "a.extxyz", "a.pckl", "a.bundle", "a.py", "a.gpw"])
def test_files_are_not_run(tmp_path: Path, name: str) -> None:
    flag = tmp_path / "flag"
    (tmp_path / name).write_bytes(pickle.dumps(_Touch(flag)))
    with pytest.raises(InputError, match=name):
        read_ase(tmp_path / name)
    (tmp_path / name).write_text(f"from pathlib import Path\nPath({str(flag)!r}).touch()\n")
    with pytest.raises(InputError, match=name):
        read_ase(tmp_path / name)
    assert not flag.exists()
    # negative control
    pickle.loads(pickle.dumps(_Touch(flag)))
    assert flag.exists()


@pytest.mark.parametrize("name", ["geometry.in", "a.py", "a.pckl", "a.bundle", "a.traj.gz", "a.db.gz", "a", "a.txt"])
def test_formats_off_the_list(name: str) -> None:
    assert ase_format(Path(name)) is None


def test_a_database_without_structures(tmp_path: Path) -> None:
    with ase.db.connect(tmp_path / "a.db") as database:
        database.write(molecule("H2O"))
        del database[1]
    with pytest.raises(InputError, match=r"a\.db: holds no structures"):
        read_ase(tmp_path / "a.db")


def test_content_does_not_put_a_file_on_the_list(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "a", molecule("H2O"), format="extxyz")
    # ASE looks inside
    assert len(ase.io.read(tmp_path / "a")) == 3
    with pytest.raises(InputError, match="no safe reader for this kind of file"):
        read_ase(tmp_path / "a")


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_one_input_error(tmp_path: Path, name: str) -> None:
    ase.io.write(tmp_path / name, [_oc20_slab() for _ in range(3)])
    raw = (tmp_path / name).read_bytes()
    for cut in (1, len(raw) // 2):
        (tmp_path / name).write_bytes(raw[:cut])
        with pytest.raises(InputError, match=name):
            read_ase(tmp_path / name)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError, match="empty"):
        read_ase(tmp_path / name)
    (tmp_path / name).unlink()
    with pytest.raises(InputError, match="no such file"):
        read_ase(tmp_path / name)


def test_the_bad_frame_is_named(tmp_path: Path) -> None:
    frames = [_oc20_slab() for _ in range(3)]
    frames[2].set_tags(range(13))
    ase.io.write(tmp_path / "a.extxyz", frames)
    with pytest.raises(InputError, match=r"a\.extxyz#2: tags"):
        read_ase(tmp_path / "a.extxyz")


def test_gzip_of_something_else(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.extxyz.gz", "wb") as stream:
        stream.write(b"\xff\xfe\x00nothing")
    with pytest.raises(InputError, match=r"a\.extxyz\.gz"):
        read_ase(tmp_path / "a.extxyz.gz")
