"""Labelled shards sorted into the sets that `pretrained:organic` is trained and judged on.

    python -m scripts.tools.organic.sets LABELLED [LABELLED ...] FOLDER

Writes FOLDER/train.extxyz, val.extxyz, test.extxyz (one geometry at 300 K of each molecule held out),
conformers.extxyz, benchmark.extxyz and far.extxyz (dimers held out, with both molecules of each), and prints what
each has.
Structures of the split `test` that belong to none of these, such as conformations of SPICE, are left out.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from ase import Atoms
from ase.io import read, write

from molflt.files import atomic_file

MOST = 500
"""Structures to validate on, evenly chosen: more only takes time."""


def set_of(part: str, split: str) -> str | None:
    """Return the set of a structure of a part of the geometries and a split."""
    if part in ("test", "conformers", "far"):
        return part
    if split == "test":
        return part if part == "benchmark" else None
    return split


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labelled", nargs="+", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    found: dict[str, list[Atoms]] = {}
    for file in sorted(path for folder in options.labelled for path in folder.glob("*.extxyz")):
        for atoms in read(file, ":"):
            if (name := set_of(file.name.split("-")[0], atoms.info["split"])) is not None:
                found.setdefault(name, []).append(atoms)
    found["val"] = found["val"][:: -(-len(found["val"]) // MOST)]
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, structures in found.items():
        with atomic_file(options.folder / f"{name}.extxyz") as unfinished:
            write(unfinished, structures, format="extxyz")
        kinds = Counter(atoms.info["kind"] for atoms in structures)
        print(f"{name}: {len(structures)} structures, {sum(map(len, structures))} atoms; {dict(kinds)}")


if __name__ == "__main__":
    main()
