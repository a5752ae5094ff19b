"""What is tried in hours by hand is tried here for a minute each; what gets through is counted and written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import results
from scripts.tools import trial
from scripts.tools.attack import Attack, Outcome
from scripts.tools.attack_chaos import ATTACKS as KILLS
from scripts.tools.attack_threads import round_of
from scripts.tools.fuzz_targets import TARGETS

SECONDS = 60
ELSEWHERE = {*TARGETS, *(attack.name for attack in KILLS)}
"""Tried by test_fuzz.py and test_chaos.py."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*trial.ATTACKS} - ELSEWHERE))
def test_nothing_gets_through(name: str) -> None:
    _, found = trial.run(trial.ATTACKS[name], 0, SECONDS)
    assert found.tries
    assert found.through == []


def test_smiles_in_threads() -> None:
    """A few; without a lock, RDKit's log does not survive even these."""
    assert round_of(0, 100) == Outcome(100)


def test_rounds_go_on_and_what_got_through_is_written_down(tmp_path: Path) -> None:
    attack = Attack("a", "a thing", lambda seed: Outcome(10, [f"seed {seed}"] if seed == 8 else []))
    assert trial.run(attack, 7, 0) == (1, Outcome(10))
    rounds, found = trial.run(attack, 7, 0.05)
    assert rounds > 2
    assert found == Outcome(10 * rounds, ["seed 8"])
    path = tmp_path / "attacks.csv"
    trial.record(path, attack, Outcome(3), 5.0, "0 to 0")
    trial.record(path, attack, Outcome(12345, ["x"]), 5400.0, "0 to 9")
    (row,) = results.read(path)
    shown = [row[column] for column in ("attack", "what was tried", "tries", "minutes", "got through", "conditions")]
    assert shown == ["a", "a thing", "12,345", "90", "1", "seeds=0 to 9"]
