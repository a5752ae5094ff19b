"""The FG set, where it is at hand."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path

import pytest
from ase import Atoms
from ase.io import read


def fg_structures(number: int, every: int) -> list[Atoms]:
    """Of one of the set's slices, each structure with such a place."""
    if "MOLFLT_DATA" not in os.environ:
        pytest.skip("MOLFLT_DATA is not set: it is the folder that has fg/slice1.extxyz.gz")
    path = Path(os.environ["MOLFLT_DATA"]) / "fg" / f"slice{number}.extxyz.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    with gzip.open(path, "rb") as stream:
        return list(read(io.TextIOWrapper(stream, "utf-8"), index=slice(None, None, every), format="extxyz"))
