"""Damaged files of every text format give what was written, or an error with a line: nothing is lost in silence."""

import pytest

from molflt.data.dataset import ListDataset

pytest.importorskip("pymatgen")
from scripts.hardening import damage


def test_nothing_is_lost_or_changed_in_silence():
    outcomes, found = damage.find(0, 500)
    assert found == []
    assert outcomes["same"] > 150
    assert outcomes["refused"] > 50


@pytest.mark.slow
def test_nor_in_twenty_thousand_files():
    assert damage.find(100_000, 20_000, workers=2)[1] == []


@pytest.mark.parametrize("spoilt", ["lost", "moved", "unlabelled"])
def test_losses_are_found(spoilt, monkeypatch):
    """A reader that takes most of a damaged file is found out; of the undamaged file it takes everything."""
    read = damage.open_dataset

    def careless(path, **options):
        structures = [read(path, **options)[k] for k in range(len(read(path, **options)))]
        if path.parent.name == "damaged" and spoilt == "lost":
            structures.pop()
        elif path.parent.name == "damaged" and spoilt == "moved":
            structures[-1].positions = structures[-1].positions + 0.1
        elif path.parent.name == "damaged":
            del structures[-1].energy
        return ListDataset(structures)

    monkeypatch.setattr(damage, "open_dataset", careless)
    outcomes, found = damage.find(0, 25, ["extxyz"])
    assert outcomes["same"] == 0
    assert len(found) > 6
