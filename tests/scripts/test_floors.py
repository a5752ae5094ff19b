"""The lowest versions that pyproject.toml states are those with which the tests were run."""

from __future__ import annotations

from pathlib import Path

from scripts import results
from scripts.tools import floors


def test_the_floors_are_those_that_were_tried() -> None:
    """After a change of a floor: python -m scripts.tools.floors --try FOLDER. What was tried may be gone."""
    assert floors.stated().items() <= floors.tried().items()


def test_another_floor_is_noticed(tmp_path: Path) -> None:
    (row, *_) = results.read(floors.RESULTS)
    results.write(tmp_path / "e.csv", [{**row, "conditions": row["conditions"].replace("torch=", "torch=1")}])
    assert floors.tried(tmp_path / "e.csv") != floors.stated()
