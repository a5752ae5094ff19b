"""What is tried in hours by hand is tried here for a minute each; what gets through is counted and written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import results
from scripts.tools import trial
from scripts.tools.attack_threads import round_of
from scripts.tools.fuzz_targets import TARGETS


@pytest.mark.slow
def test_nothing_gets_through_in_threads() -> None:
    """The other attacks are tried by test_fuzz.py and test_chaos.py."""
    _, (tries, through) = trial.run(trial.ATTACKS["threads"], 0, 60)
    assert tries
    assert through == []


def test_smiles_in_threads() -> None:
    """A few; without a lock, RDKit's log does not survive even these."""
    assert round_of(0, 100) == (100, [])


def test_every_kind_of_hostile_file_is_an_attack() -> None:
    assert list(trial.FILES) == list(TARGETS)


def test_rounds_go_on_and_what_got_through_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attack = trial.Attack("a thing", lambda seed: (10, [f"seed {seed}"] if seed == 8 else []))
    assert trial.run(attack, 7, 0) == (1, (10, []))
    rounds, found = trial.run(attack, 7, 0.05)
    assert rounds > 2
    assert found == (10 * rounds, ["seed 8"])
    path = tmp_path / "attacks.csv"
    monkeypatch.setitem(trial.ATTACKS, "a", attack)
    trial.record(path, "a", (3, []), 5.0, "0 to 0")
    trial.record(path, "a", (12345, ["x"]), 5400.0, "0 to 9")
    (row,) = results.read(path)
    shown = [row[column] for column in ("attack", "what was tried", "tries", "minutes", "got through", "conditions")]
    assert shown == ["a", "a thing", "12,345", "90", "1", "seeds=0 to 9"]
