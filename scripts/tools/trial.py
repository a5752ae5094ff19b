"""Try all that is known against the promises of molflt, each attack for some time, in rounds of a seed each.

    python -m scripts.tools.trial --seconds 60                      # each attack for a minute, from seed 0
    python -m scripts.tools.trial --seconds 3600 --record           # for hours; the table of the documentation anew
    python -m scripts.tools.trial --attack threads --seed 7 --seconds 0     # one round again

With ``--record``, rows of ``docs/results/attacks.csv`` are replaced by what was found, and the table in
``docs/reliability.md`` follows. Exit status 1 where something got through.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from scripts import results
from scripts.tools import attack_chaos, attack_files, attack_threads, tables
from scripts.tools.attack import Attack, Outcome

RESULTS = results.DOCS / "results" / "attacks.csv"
ATTACKS = {one.name: one for part in (attack_files, attack_threads, attack_chaos) for one in part.ATTACKS}
"""By name, in the order of the table."""


def main() -> int:
    """Run the attacks one after the other and print what got through."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each attack; a round that began is ended")
    parser.add_argument("--attack", choices=ATTACKS, action="append", help="which; may be repeated; default: all")
    parser.add_argument("--record", action="store_true", help="write the outcomes to docs, and the table from them")
    options = parser.parse_args()
    n_through = 0
    for name in options.attack or ATTACKS:
        start = time.monotonic()
        rounds, found = run(ATTACKS[name], options.seed, options.seconds)
        seconds = time.monotonic() - start
        n_through += len(found.through)
        for line in found.through:
            print(line)
        print(f"{name}: {found.tries:,} tries, {len(found.through)} got through, {seconds:.0f} s", flush=True)
        if options.record:
            seeds = f"{options.seed} to {options.seed + rounds - 1}"
            record(RESULTS, ATTACKS[name], found, seconds, seeds)
    if options.record:
        tables.write(tables.pages())
    return 1 if n_through else 0


def run(attack: Attack, seed: int, seconds: float) -> tuple[int, Outcome]:
    """Rounds of one attack until the time is up, one at least.

    Returns:
        How many rounds, and their tries together.
    """
    end = time.monotonic() + seconds
    rounds, tries, through = 0, 0, list[str]()
    while rounds == 0 or time.monotonic() < end:
        found = attack.round(seed + rounds)
        rounds += 1
        tries += found.tries
        through += found.through
    return rounds, Outcome(tries, through)


def record(path: Path, attack: Attack, found: Outcome, seconds: float, seeds: str) -> None:
    """Replace the row of an attack in a CSV, or add it."""
    row = {
        "attack": attack.name,
        "what was tried": attack.what,
        "tries": f"{found.tries:,}",
        "minutes": f"{seconds / 60:.0f}" if seconds >= 60 else f"{seconds / 60:.1f}",
        "got through": str(len(found.through)),
        **results.provenance({"seeds": seeds}),
    }
    # Attacks that are no more take their rows with them.
    rows = {old["attack"]: old for old in results.read(path)} | {attack.name: row}
    results.write(path, [rows[name] for name in dict.fromkeys([*ATTACKS, attack.name]) if name in rows], list(row))


if __name__ == "__main__":
    sys.exit(main())
