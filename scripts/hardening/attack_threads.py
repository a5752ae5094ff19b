"""Several threads at once: molecules from SMILES, half of them wrong, must be those that one thread makes.

What is tried runs in a process of its own, because it may end it:

    python -m scripts.hardening.attack_threads SEED N        # prints what got through
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from random import Random
from tempfile import TemporaryFile

from rdkit import Chem

from molflt.data.rdkit import from_smiles
from molflt.errors import InputError
from scripts.results import ROOT

N_THREADS, N_SMILES = 8, 2000
GOOD = ("C", "O", "CO", "CCO", "C=C", "CC#N", "c1ccccc1", "C1CC1", "CC(=O)O", "[Na+].[Cl-]")
WRONG = ("C(C", "c1ccc", "C1CC", "[Zz]", "N(C)(C)(C)(C)C", "C=(", "Cl(C)(C)C", "F=F=F", "", "[CH9]")


def round_of(seed: int, n: int = N_SMILES) -> tuple[int, list[str]]:
    """So many SMILES in eight threads: how many, and what got through."""
    command = [sys.executable, "-m", "scripts.hardening.attack_threads", str(seed), str(n)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", errors="replace", env=environment, check=False
    )
    through = done.stdout.splitlines()
    if done.returncode:
        through.append(f"the process ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
    elif done.stderr:
        through.append(f"printed: {done.stderr.strip()[:300]}")
    return n, [f"threads seed {seed}: {line}" for line in through]


def different(seed: int, n: int) -> list[str]:
    """SMILES for which threads find something else than one thread does, and whether RDKit's log is as before."""
    random = Random(seed)  # noqa: S311 (inputs, not secrets)
    words = [random.choice((GOOD, WRONG)[k % 2]) for k in range(n)]
    random.shuffle(words)
    expected = {word: _made(word) for word in {*GOOD, *WRONG}}
    found: list[str] = []

    def work(first: int) -> None:
        for word in words[first::N_THREADS]:
            if (made := _made(word)) != expected[word]:
                found.append(f"{word!r}: {made[:200]!r} instead of {expected[word][:200]!r}")

    # So that they meet in the middle of each molecule.
    sys.setswitchinterval(1e-5)
    with ThreadPoolExecutor(N_THREADS) as pool:
        list(pool.map(work, range(N_THREADS)))
    if not _log_speaks():
        found.append("RDKit's log stays silent")
    return found


def _made(word: str) -> str:
    """A molecule, or what is wrong with it, as text."""
    try:
        return str(from_smiles(word).positions.tolist())
    except InputError as error:
        return str(error)


def _log_speaks() -> bool:
    """Whether RDKit writes to standard error what is wrong with a molecule, as it does where nobody changed that."""
    before = os.dup(2)
    with TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        Chem.MolFromSmiles("C(C")
        os.dup2(before, 2)
        os.close(before)
        said.seek(0)
        return b"C(C" in said.read()


if __name__ == "__main__":
    print("\n".join(different(int(sys.argv[1]), int(sys.argv[2]))), end="")
