"""The form of an attack on molflt's promises: a name, what is tried, and a round of tries from a seed.

A module of attacks has a constant ``ATTACKS``, which ``scripts/tools/trial.py`` collects. Kinds of hostile files need
none of their own: they are targets of ``scripts/tools/fuzz_targets.py``, each of which is an attack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Outcome:
    """What came of a round.

    Attributes:
        tries: how many there were.
        through: a line for each that got through: what was tried, and what it did.
    """

    tries: int
    through: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Attack:
    """Something that is tried again and again.

    Attributes:
        name: one or two words, as on the command line.
        what: what is tried, and what would have got through, for the table in the documentation.
        round: tries of one seed, which decides everything; takes seconds. What may end, fill or change a process runs
            in a process of its own.
    """

    name: str
    what: str
    round: Callable[[int], Outcome]
