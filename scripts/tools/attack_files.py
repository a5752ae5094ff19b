"""Hostile files: each target of the fuzzer is an attack."""

from __future__ import annotations

from scripts.tools import fuzz
from scripts.tools.attack import Attack, Outcome
from scripts.tools.fuzz_targets import TARGETS

INPUTS = 100
"""In a round; those of one round have seeds of their own."""


def _attack(name: str, what: str) -> Attack:
    def round_of(seed: int) -> Outcome:
        return Outcome(INPUTS, fuzz.run(name, seed * INPUTS, INPUTS))

    return Attack(name, what, round_of)


_KINDS = {
    "pyg1": "records of PyG 1: changed bytes, random pickles, wrong values",
    "pyg2": "records of PyG 2 and plain dicts: the same",
    "lmdb": "LMDB files of such records, with wrong lengths",
    "extxyz": "extended xyz: changed bytes and words of the format",
    "sdf": "SDF: the same",
    "smiles": "SMILES of random words",
    "model": "model files: changed bytes, headers and configurations",
    "config": "YAML: changed bytes, tags, anchors, interpolations",
    "shards": "shards of predictions: changed bytes and JSON",
    "bombs": "small records that would be large as arrays, in 1 GiB",
    "extents": "records with positions and cells of every size, to the neighbour list",
    "archive": "archives for fetch: names, links, sizes and headers of every sort",
    "names": "records whose texts are hardly any, to every kind of file and back",
    "encodings": "text files in encodings of all kinds, with damage",
}
ATTACKS = tuple(_attack(name, _KINDS[name]) for name in TARGETS)
