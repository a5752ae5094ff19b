"""Structures that cannot be used: refused by name, or left out and listed, in training, evaluation and prediction."""

from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator

from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset, resolve_inputs
from molflt.data.reading import ReadOptions
from molflt.data.record import to_record
from molflt.errors import InputError
from molflt.model.file import load_model
from molflt.prediction.predict import predict
from molflt.training.data_module import EnergyDataModule
from tests.conftest import rows_of
from tests.training.runs import QUICK, written

N, PLACE = 6, 2


def good(k):
    atoms = bulk("Cu", cubic=True, a=3.6 + 0.02 * k)
    atoms.rattle(0.05, seed=k)
    atoms.calc = SinglePointCalculator(atoms, energy=0.1 * k)
    return atoms


SPOILT = {
    "NaN position": (lambda atoms: atoms.positions.__setitem__((1, 2), np.nan), "NaN or infinity"),
    "coincident atoms": (
        lambda atoms: atoms.positions.__setitem__(1, atoms.positions[0] + atoms.cell[2]),
        "atom 0 (Cu) and an image of atom 1 (Cu)",
    ),
    "charge": (lambda atoms: atoms.info.update(charge=1), "no charge"),
    "no atoms": (lambda atoms: atoms.__delitem__(slice(None)), "no atoms"),
    "no label": (lambda atoms: setattr(atoms, "calc", None), "no label 'energy'"),
    "NaN label": (lambda atoms: atoms.calc.results.update(energy=np.nan), "'energy' holds NaN or infinity"),
}


def extxyz(path, kind):
    """A file of which one frame is spoilt."""
    frames = [good(k) for k in range(N)]
    spoilt = frames[PLACE]
    SPOILT[kind][0](spoilt)
    if spoilt.calc is not None:
        spoilt.calc.atoms = spoilt.copy()
    ase.io.write(path, frames)
    # ASE writes the elements of no atoms as numbers.
    path.write_text(path.read_text(encoding="utf-8").replace("species:R", "species:S"), encoding="utf-8")
    return str(path)


@pytest.fixture
def configure(make_config, tmp_path):
    ase.io.write(tmp_path / "good.extxyz", [good(k) for k in range(N)])

    def make(path, on_bad, **more):
        other = str(tmp_path / "good.extxyz")
        data = {
            "data.train": path,
            "data.val": {"val": other},
            "data.target": "energy",
            "data.on_error": {"stop": "raise"}.get(on_bad, on_bad),
        }
        return make_config(**{**data, **more})

    return make


@pytest.mark.parametrize("kind", SPOILT)
def test_refused_by_name_or_left_out(kind, configure, model_path, tmp_path):
    path = extxyz(tmp_path / "some.extxyz", kind)
    with pytest.raises(InputError) as error:
        EnergyDataModule(configure(path, "stop"))
    assert f"{path}#{PLACE}" in str(error.value)
    assert SPOILT[kind][1] in str(error.value)
    data = EnergyDataModule(configure(path, "skip"))
    expected = [0.1 * k for k in range(N) if k != PLACE]
    structures = data.train_structures
    assert [float(structures[k].energy) for k in range(len(structures))] == pytest.approx(expected)
    assert structures.n_atoms.tolist() == [4] * (N - 1)
    (skipped,) = data.skipped["train"]
    assert skipped.index == PLACE
    assert SPOILT[kind][1] in skipped.reason
    assert f"{path}#{PLACE}" in skipped.reason
    assert data.skipped["val"] == []
    prediction = predict(load_model(model_path), resolve_inputs([path], ReadOptions(on_bad="skip")), on_error="skip")
    left_out = [] if kind == "no label" else [PLACE]
    assert np.flatnonzero(np.isnan(prediction.energies)).tolist() == list(prediction.failures) == left_out
    if left_out:
        assert SPOILT[kind][1] in prediction.failures[PLACE]
        with pytest.raises(InputError, match=rf"#{PLACE}\b"):
            predict(load_model(model_path), resolve_inputs([path]))


def test_validation_sets_too(configure, tmp_path):
    path = extxyz(tmp_path / "some.extxyz", "coincident atoms")
    splits = {"data.val": {"val": path}}
    with pytest.raises(InputError, match=rf"some\.extxyz#{PLACE}: .*Å apart"):
        EnergyDataModule(configure(str(tmp_path / "good.extxyz"), "stop", **splits))
    data = EnergyDataModule(configure(str(tmp_path / "good.extxyz"), "skip", **splits))
    assert [s.index for s in data.skipped["val"]] == [PLACE]
    assert len(data.val_structures["val"]) == N - 1


def test_an_lmdb(configure, tmp_path):
    """Records that do not even say how many atoms they have."""
    source = open_dataset(configure("", "stop").data.val["val"])
    records = [to_record(source[k]) for k in range(N)]
    records[PLACE] |= {"pos": np.zeros((0, 3)), "natoms": 0}
    records[PLACE + 1]["energy"] = np.nan
    write_lmdb(tmp_path / "some.lmdb", records, progress=False)
    path = str(tmp_path / "some.lmdb")
    with pytest.raises(InputError, match=rf"some\.lmdb#{PLACE}: "):
        EnergyDataModule(configure(path, "stop"))
    data = EnergyDataModule(configure(path, "skip"))
    assert [s.index for s in data.skipped["train"]] == [PLACE, PLACE + 1]
    assert data.train_structures.n_atoms.tolist() == [4] * (N - 2)


def test_nothing_left(configure, tmp_path):
    path = tmp_path / "none.extxyz"
    path.write_text("1\nProperties=species:S:1:pos:R:3\nH 0 0 0\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"none of 1 structures can be used; the first: .*no label 'energy'"):
        EnergyDataModule(configure(str(path), "skip"))


def test_a_damaged_file_is_refused_in_any_case(configure, tmp_path):
    path = tmp_path / "cut.extxyz"
    path.write_text(Path(extxyz(path, "charge")).read_text(encoding="utf-8")[:-40], encoding="utf-8")
    with pytest.raises(InputError, match=r"cut\.extxyz"):
        EnergyDataModule(configure(str(path), "skip"))


def test_what_is_left_out_is_listed(molflt, configure, tmp_path):
    path, run = extxyz(tmp_path / "some.extxyz", "NaN position"), tmp_path / "run"
    command = ["train", written(configure(path, "stop", **QUICK), tmp_path), "--out", run, "--no-report"]
    refused = molflt(*command)
    assert (refused.status, run.exists()) == (2, False)
    assert f"{path}#{PLACE}" in refused.err
    trained = molflt(*command, "data.on_error=skip")
    assert trained.status == 0, trained
    assert "left out: train 1;" in trained.err
    (row,) = rows_of(run / "skipped.csv")
    assert (row["set"], row["index"]) == ("train", str(PLACE))
    assert f"{path}#{PLACE}" in row["reason"]


def test_no_forces_where_they_are_learnt(configure, tmp_path):
    frames = [good(k) for k in range(N)]
    for k, atoms in enumerate(frames):
        forces = {} if k == PLACE else {"forces": np.full((len(atoms), 3), 0.1 * k)}
        atoms.calc = SinglePointCalculator(atoms, energy=0.1 * k, **forces)
    path = str(tmp_path / "forces.extxyz")
    ase.io.write(path, frames)
    learnt = {"loss.force_weight": 1.0, "data.val": {"val": path}}
    with pytest.raises(InputError, match=rf"1 of 6 structures have no forces \(first: .*#{PLACE}\)"):
        EnergyDataModule(configure(path, "stop", **learnt))
    data = EnergyDataModule(configure(path, "skip", **learnt))
    (skipped,) = data.skipped["train"]
    assert skipped.index == PLACE
    assert "forces" in skipped.reason
    # Energies alone need none.
    assert EnergyDataModule(configure(path, "skip")).skipped["train"] == []
