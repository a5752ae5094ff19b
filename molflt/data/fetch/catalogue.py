"""The data sets that can be fetched, their splits once they are here, and the commands that use them."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from molflt.errors import InputError

_GIB = 1 << 30
_TOLERANCE = 0.1
"""Published sizes are rounded, so a size may differ from them by this share."""


@dataclass(frozen=True)
class Archive:
    """One ``.tar.gz`` file with LMDBs in it.

    Args:
        name: what the user calls it.
        title: what it is, in one line.
        url: where it is published.
        md5: its checksum, as published.
        size: bytes of the archive, as published.
        unpacked: bytes of its content, as published.
        folder: the folder its content lies in, below the one the user names.
        splits: the splits it holds, ``SIZE/SPLIT``; all of them present means that it is complete.
        licence: of the data.
        page: where all this is published.
        max_members: more files and folders than this are refused.
    """

    name: str
    title: str
    url: str
    md5: str
    size: int
    unpacked: int
    folder: str
    splits: tuple[str, ...]
    licence: str
    page: str
    max_members: int = 1000

    @property
    def file(self) -> str:
        """The name of the archive on disk."""
        return urlsplit(self.url).path.rpartition("/")[2]

    @property
    def smallest(self) -> int:
        """Fewer bytes are not this archive."""
        return int(self.size * (1 - _TOLERANCE))

    @property
    def largest(self) -> int:
        """More bytes are not this archive."""
        return int(self.size * (1 + _TOLERANCE))

    @property
    def most_unpacked(self) -> int:
        """More bytes of content are refused."""
        return int(self.unpacked * (1 + _TOLERANCE))


# URL, checksum and sizes: DATASET.md of github.com/FAIR-Chem/fairchem, "8.1G" and "97G" as du -h prints them.
# Layout and counts: the README inside the archive.
OC20_IS2RE = Archive(
    name="oc20-is2re",
    title="Open Catalyst 2020: initial structure to relaxed energy, 460,328 systems to train on",
    url="https://dl.fbaipublicfiles.com/opencatalystproject/data/is2res_train_val_test_lmdbs.tar.gz",
    md5="cfc04dd2f87b4102ab2f607240d25fb1",
    size=int(8.1 * _GIB),
    unpacked=97 * _GIB,
    folder="is2res_train_val_test_lmdbs",
    splits=(
        *("10k/train", "100k/train", "all/train"),
        *(f"all/{kind}_{split}" for kind in ("val", "test") for split in ("id", "ood_ads", "ood_cat", "ood_both")),
    ),
    licence="CC-BY-4.0",
    page="https://facebookresearch.github.io/fairchem/oc20",
)

ARCHIVES = {OC20_IS2RE.name: OC20_IS2RE}


def find_archive(name: str) -> Archive:
    """The data set of that name.

    Raises:
        InputError: there is none; the message names those there are.
    """
    try:
        return ARCHIVES[name]
    except KeyError:
        raise InputError(f"there is no data set '{name}' to fetch; choose one of {', '.join(ARCHIVES)}") from None


_ORDER = ("id", "ood_ads", "ood_cat", "ood_both")


@dataclass(frozen=True)
class Splits:
    """LMDB files by what they are for.

    Args:
        train: by size, ``10k``, ``100k``, ``all``.
        val: by split, ``id`` first: the first one decides which model is the best.
        test: by split; without labels.
    """

    train: dict[str, Path] = field(default_factory=dict)
    val: dict[str, Path] = field(default_factory=dict)
    test: dict[str, Path] = field(default_factory=dict)


def find_splits(folder: Path) -> Splits:
    """Look for ``SIZE/train/data.lmdb``, ``*/val_NAME/data.lmdb`` and ``*/test_NAME/data.lmdb`` below a folder."""
    splits = Splits()
    for file in sorted(folder.rglob("data.lmdb")):
        if not file.is_file() or file.stat().st_size == 0:
            continue
        split = file.parent.name
        kind, _, name = split.partition("_")
        if split == "train":
            splits.train.setdefault(file.parent.parent.name, file)
        elif kind in ("val", "test") and name:
            (splits.val if kind == "val" else splits.test).setdefault(name, file)
    return Splits(splits.train, _ordered(splits.val), _ordered(splits.test))


def missing_splits(splits: Splits, expected: tuple[str, ...]) -> list[str]:
    """Those of ``SIZE/SPLIT`` that were not found."""
    found = {f"{size}/train" for size in splits.train}
    found |= {f"all/val_{name}" for name in splits.val} | {f"all/test_{name}" for name in splits.test}
    return [split for split in expected if split not in found]


def commands(splits: Splits) -> str:
    """What to type next, ready for a shell."""
    lines: list[str] = []
    model = "runs/oc20/best.safetensors"
    if splits.train and splits.val:
        size = "all" if "all" in splits.train else next(iter(splits.train))
        val = ", ".join(f"{name}: {_yaml(path)}" for name, path in splits.val.items())
        others = [other for other in ("10k", "100k") if other in splits.train and other != size]
        hint = f"   # {' and '.join(others)} in place of {size}: smaller sets" if others else ""
        train = shlex.join([f"data.train={_yaml(splits.train[size])}", f"data.val={{{val}}}"])
        lines += [f"Train:{hint}", "  molflt config base > oc20.yaml"]
        lines += [f"  molflt train oc20.yaml --out runs/oc20 {train}"]
    if splits.val:
        lines += [
            "Evaluate:",
            *(f"  {shlex.join(['molflt', 'evaluate', model, str(p)])}" for p in splits.val.values()),
        ]
    if splits.test:
        lines += ["Predict, one file for the leaderboard:"]
        for name, path in splits.test.items():
            words = ["molflt", "predict", model, str(path), "-o", "submission.npz", "--oc20-split", name]
            lines.append(f"  {shlex.join(words)}")
    return "\n".join(lines)


def _yaml(path: Path) -> str:
    """A path as a value of YAML: as JSON, which YAML reads as well, where it is not plain."""
    text = str(path)
    return text if re.fullmatch(r"[\w./][\w./+-]*", text) else json.dumps(text, ensure_ascii=False)


def _ordered(found: dict[str, Path]) -> dict[str, Path]:
    return {name: found[name] for name in sorted(found, key=lambda n: (_ORDER.index(n) if n in _ORDER else 9, n))}
