"""Try all known attacks on molflt, each for some time, in rounds of a seed each.

    python -m scripts.hardening.trial --seconds 60                  # each attack for a minute, from seed 0
    python -m scripts.hardening.trial --seconds 3600 --record       # for hours; the documented table anew
    python -m scripts.hardening.trial --attack sdf --seed 7 --seconds 0     # the hundred inputs of one round again

With ``--record``, rows of ``docs/results/attacks.csv`` are replaced by what was found, and the table in
``docs/reliability.md`` follows. Exit status 1 where something got through.
"""

from __future__ import annotations

import subprocess
import sys
import time

from scripts import results
from scripts.hardening import fuzz
from scripts.hardening.chaos_jobs import JOBS
from scripts.tools import tables

RESULTS = results.DOCS / "results" / "attacks.csv"
INPUTS, POINTS = 100, 6
"""Of a round: hostile inputs, and interruptions, two of each way of striking."""
KILL = "is killed at random, or cut off as by a power cut, and repeated: all must be the same bit by bit"
TWO = "runs twice at once in one place: one does it, the other too or with one line of error, and all is whole"
FUZZED = {
    "pyg1": "records of PyG 1: changed bytes, random pickles, wrong values",
    "pyg2": "records of PyG 2 and plain dicts: the same",
    "bombs": "small records that would be large as arrays, in 1 GiB",
    "extents": "records with positions and cells of every size, to the neighbour list",
    "archive": "archives for fetch: names, links, sizes and headers of every sort",
    "lmdb": "LMDB files of such records, with wrong lengths",
    "extxyz": "extended xyz: changed bytes and words of the format",
    "sdf": "SDF: the same",
    "smiles": "SMILES of random words",
    "model": "model files: changed bytes, headers and configurations",
    "config": "YAML: changed bytes, tags, anchors, interpolations",
    "shards": "shards of predictions: changed bytes and JSON",
    "names": "records whose texts are hardly any, to every kind of file and back",
    "encodings": "text files in encodings of all kinds, with damage",
    "threads": "twenty SMILES in eight threads, half of them wrong: each molecule and message must be that of "
    "one thread, and RDKit's log must be as before",
}
"""Targets of ``fuzz_targets.TARGETS``, as the table says them."""
ATTACKS = {
    **FUZZED,
    **{f"kill {job}": f"'{job}' {KILL}" for job in JOBS},
    **{f"two {job}": f"'{job}' {TWO}" for job in JOBS},
}
"""By name, in the order of the table."""


def round_of(attack: str, seed: int) -> tuple[int, list[str]]:
    """Try the inputs or points of one seed: their number, and a line for each that got through.

    Raises:
        RuntimeError: the attack itself failed.
    """
    if attack in FUZZED:
        return INPUTS, fuzz.run(attack, seed * INPUTS, INPUTS)
    kind, _, job = attack.partition(" ")
    command = [sys.executable, "-m", "scripts.hardening.chaos", "--command", job, "--points", str(POINTS)]
    command += [*(["--two"] if kind == "two" else []), "--seed", str(seed)]
    # In a process of its own: it forks, and must not have computed anything before.
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", cwd=results.ROOT, check=False)
    points = [line for line in done.stdout.splitlines() if line.startswith(f"{job} ")]
    wrong = [line for line in points if "  WRONG: " in line]
    if done.returncode not in (0, 1) or len(points) != POINTS or bool(wrong) != bool(done.returncode):
        raise RuntimeError(f"chaos.py ended with status {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return POINTS, [f"seed {seed}: {line}" for line in wrong]


def main() -> int:
    """Run the attacks one after the other and print what got through."""
    parser = results.command(__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each attack; a round that began is ended")
    parser.add_argument("--attack", choices=ATTACKS, action="append", help="which; may be repeated; default: all")
    parser.add_argument("--record", action="store_true", help="write the outcomes to docs, and the table from them")
    options = parser.parse_args()
    n_through = 0
    for name in options.attack or ATTACKS:
        start, seed, tries, through = time.monotonic(), options.seed, 0, list[str]()
        while seed == options.seed or time.monotonic() < start + options.seconds:
            more, lines = round_of(name, seed)
            seed, tries, through = seed + 1, tries + more, through + lines
        seconds = time.monotonic() - start
        n_through += len(through)
        print(*through, f"{name}: {tries:,} tries, {len(through)} got through, {seconds:.0f} s", sep="\n", flush=True)
        if options.record:
            row = {
                "attack": name,
                "what was tried": ATTACKS[name],
                "tries": f"{tries:,}",
                "minutes": f"{seconds / 60:.0f}" if seconds >= 60 else f"{seconds / 60:.1f}",
                "got through": str(len(through)),
                **results.provenance({"seeds": f"{options.seed} to {seed - 1}"}),
            }
            # Attacks that are no more take their rows with them.
            rows = {old["attack"]: old for old in results.read(RESULTS)} | {name: row}
            results.write(RESULTS, [rows[known] for known in ATTACKS if known in rows], list(row))
    if options.record:
        tables.write(tables.pages())
    return 1 if n_through else 0


if __name__ == "__main__":
    sys.exit(main())
