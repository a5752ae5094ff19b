"""Records, structures and files for the tests of molflt.data."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_geometric.data import Data

from molflt.data.dataset import StructureDataset
from molflt.data.open import open_dataset
from molflt.data.reading import ReadOptions
from molflt.data.record import to_data
from molflt.errors import InputError


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """Find a file or folder of real data: ``real_data(name)``; without it the test is skipped."""

    def find(name: str) -> Path:
        path = Path(os.environ.get("MOLFLT_DATA") or "nowhere", name)
        if not path.exists():
            pytest.skip(f"MOLFLT_DATA does not name a folder with {name}")
        return path

    return find


@pytest.fixture(scope="session")
def oc20(real_data: Callable[[str], Path]) -> Path:
    """The folder with the real OC20 samples."""
    return real_data("oc20_is2re")


def _record(seed: int = 0, n_atoms: int = 5) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    cell = np.array([6.0, 7.0, 8.0])
    positions = np.empty((0, 3))
    while len(positions) < n_atoms:
        apart = (another := generator.uniform(0, 6, size=3)) - positions
        # no two atoms of any elements are too close, images included
        if np.all(np.linalg.norm(apart - cell * np.rint(apart / cell), axis=1) > 2.5):
            positions = np.vstack([positions, another])
    return {
        "pos": positions,
        "pos_relaxed": positions + generator.normal(scale=0.1, size=(n_atoms, 3)),
        "cell": np.diag(cell)[None],
        "atomic_numbers": generator.integers(1, 80, size=n_atoms),
        "tags": generator.integers(0, 3, size=n_atoms),
        "fixed": generator.integers(0, 2, size=n_atoms).astype(bool),
        "natoms": n_atoms,
        "y_init": float(generator.normal()),
        "y_relaxed": float(generator.normal()),
        "sid": seed,
    }


@pytest.fixture
def make_record() -> Callable[..., dict[str, Any]]:
    """Factory of valid OC20-layout records: ``make_record(seed, n_atoms)``."""
    return _record


@pytest.fixture
def make_structure() -> Callable[..., Data]:
    """Factory of structures: ``make_structure(seed, n_atoms)``."""
    return lambda seed=0, n_atoms=5: to_data(_record(seed, n_atoms), f"structure {seed}")


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., StructureDataset]:
    """The structures of a file with this content, text in UTF-8: ``read(name, content, **options)``."""

    def read(name: str, content: str | bytes, **options: Any) -> StructureDataset:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return open_dataset(path, ReadOptions(**options))

    return read


@pytest.fixture
def refused(read: Callable[..., StructureDataset]) -> Callable[..., None]:
    """Reading such a file ends in an error that matches: ``refused(name, content, message, **options)``."""

    def refused(name: str, content: str | bytes, message: str, **options: Any) -> None:
        with pytest.raises(InputError, match=message):
            read(name, content, **options)

    return refused
