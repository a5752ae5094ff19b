"""Data sets that can be fetched, their splits on disk, and the commands that use them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from molflt.errors import InputError

_MIB, _GIB = 1 << 20, 1 << 30
_TOLERANCE = 0.1
"""Relative tolerance of published sizes, which are rounded."""


@dataclass(frozen=True)
class Archive:
    """One ``.tar`` or ``.tar.gz`` file with LMDBs or compressed extxyz files.

    Args:
        size: published size of the archive in bytes.
        unpacked: published size of its content in bytes.
        folder: the folder its content lies in, below the one the user names.
        splits: published number of structures of every split, by ``SIZE/SPLIT`` of LMDBs or ``extxyz``; the data
            are complete if all of them are present.
        page: source of these numbers.
        max_members: most files and folders accepted.
        only: the requested splits; empty: all.
    """

    name: str
    title: str
    url: str
    md5: str
    size: int
    unpacked: int
    folder: str
    splits: Mapping[str, int]
    licence: str
    page: str
    max_members: int = 1000
    only: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """Name of the archive on disk."""
        return urlsplit(self.url).path.rpartition("/")[2]

    @property
    def wanted(self) -> tuple[str, ...]:
        """The splits to unpack."""
        return self.only or tuple(self.splits)

    @property
    def to_unpack(self) -> int:
        """Bytes of the splits to unpack, estimated from their numbers of structures."""
        of_all = sum(self.splits.values())
        return self.unpacked * sum(self.splits[split] for split in self.wanted) // of_all

    def of(self, only: Sequence[str]) -> Archive:
        """Select splits: ``10k/train``, or any part of such a name.

        Raises:
            InputError: no split has that name or part.
        """
        found: list[str] = []
        for name in only:
            matching = [split for split in self.splits if name == split or name in split.split("/")]
            if not matching:
                raise InputError(f"{self.name} has no split '{name}'; choose among {', '.join(self.splits)}")
            found += matching
        return replace(self, only=tuple(dict.fromkeys(found)))

    def wants(self, path: str) -> bool:
        """True if a file of the archive is to be unpacked: those of other splits are not."""
        inside = f"/{path}"
        others = [split for split in self.splits if split not in self.wanted]
        return not any(f"/{split}/" in inside for split in others)

    @property
    def smallest(self) -> int:
        """Least bytes of this archive."""
        return int(self.size * (1 - _TOLERANCE))

    @property
    def largest(self) -> int:
        """Most bytes of this archive."""
        return int(self.size * (1 + _TOLERANCE))

    @property
    def most_unpacked(self) -> int:
        """Most bytes of content that are accepted."""
        return int(self.unpacked * (1 + _TOLERANCE))


_PUBLISHED = "https://dl.fbaipublicfiles.com/opencatalystproject/data/"
_PAGE, _LICENCE = "https://facebookresearch.github.io/fairchem/oc20", "CC-BY-4.0"

# URLs, checksums and sizes (as du -h prints them): DATASET.md of github.com/FAIR-Chem/fairchem, and its later page
# of OC20. Layout: the README inside of the archives, and for the test sets of S2EF the project's download_data.py.
OC20_IS2RE = Archive(
    name="oc20-is2re",
    title="Open Catalyst 2020: initial structure to relaxed energy, 460,328 systems to train on",
    url=f"{_PUBLISHED}is2res_train_val_test_lmdbs.tar.gz",
    md5="cfc04dd2f87b4102ab2f607240d25fb1",
    size=int(8.1 * _GIB),
    unpacked=97 * _GIB,
    folder="is2res_train_val_test_lmdbs",
    splits={
        "10k/train": 10_000,
        "100k/train": 100_000,
        "all/train": 460_328,
        "all/val_id": 24_943,
        "all/val_ood_ads": 24_961,
        "all/val_ood_cat": 24_963,
        "all/val_ood_both": 24_987,
        "all/test_id": 24_948,
        "all/test_ood_ads": 24_930,
        "all/test_ood_cat": 24_965,
        "all/test_ood_both": 24_985,
    },
    licence=_LICENCE,
    page=_PAGE,
)


def _s2ef(split: str, title: str, md5: str, size: int, n: int) -> Archive:
    """Build an S2EF set: a ``.tar`` of compressed files, which unpacks to its own size."""
    file = f"s2ef_{split}"
    return Archive(
        name=f"oc20-s2ef-{split.removeprefix('train_').lower().replace('_', '-')}",
        title=f"Open Catalyst 2020: structure to energy and forces, {title}",
        url=f"{_PUBLISHED}{file}.tar",
        md5=md5,
        size=size,
        unpacked=size,
        folder=file,
        splits={EXTXYZ: n},
        licence=_LICENCE,
        page=_PAGE,
    )


EXTXYZ = "extxyz"
_S2EF = (
    _s2ef("train_200K", "200,000 to train on", "f8d0909c2623a393148435dede7d3a46", 344 * _MIB, 200_000),
    _s2ef("val_id", "validation, in domain", "f57f7f5c1302637940f2cc858e789410", int(1.7 * _GIB), 999_866),
    _s2ef("val_ood_ads", "other adsorbates", "431ab0d7557a4639605ba8b67793f053", int(1.7 * _GIB), 999_838),
    _s2ef("val_ood_cat", "other catalysts", "532d6cd1fe541a0ddb0aa0f99962b7db", int(1.7 * _GIB), 999_809),
    _s2ef("val_ood_both", "both other", "5731862978d80502bbf7017d68c2c729", int(1.9 * _GIB), 999_944),
    Archive(
        name="oc20-s2ef-test",
        title="Open Catalyst 2020: structure to energy and forces, the test sets",
        url=f"{_PUBLISHED}s2ef_test_lmdbs.tar.gz",
        md5="bcada432482f6e87b24e14b6b744992a",
        size=30 * _GIB,
        unpacked=415 * _GIB,
        folder="s2ef_test_lmdbs",
        splits={
            "all/test_id": 999_736,
            "all/test_ood_ads": 999_859,
            "all/test_ood_cat": 999_826,
            "all/test_ood_both": 999_973,
        },
        licence=_LICENCE,
        page=_PAGE,
        max_members=10_000,
    ),
)
ARCHIVES = {archive.name: archive for archive in (OC20_IS2RE, *_S2EF)}


def find_archive(name: str) -> Archive:
    """Find a data set by name.

    Raises:
        InputError: there is none; the message lists the known names.
    """
    try:
        return ARCHIVES[name]
    except KeyError:
        raise InputError(f"there is no data set '{name}' to fetch; choose one of {', '.join(ARCHIVES)}") from None


_ORDER = ("id", "ood_ads", "ood_cat", "ood_both")


@dataclass(frozen=True)
class Splits:
    """LMDB files by purpose.

    Args:
        train: by size, ``10k``, ``100k``, ``all``.
        val: by split, ``id`` first: the first one selects the best model.
        test: by split; without labels.
        frames: folder of compressed extxyz files, with energies and forces.
    """

    train: dict[str, Path] = field(default_factory=dict)
    val: dict[str, Path] = field(default_factory=dict)
    test: dict[str, Path] = field(default_factory=dict)
    frames: Path | None = None


def find_splits(folder: Path) -> Splits:
    """Find LMDBs in ``SIZE/train``, ``*/val_NAME`` and ``*/test_NAME``, and ``*.extxyz.xz``.

    A set is the file ``data.lmdb``, or the folder if its files have other names.
    """
    splits = Splits()
    for file in sorted(folder.rglob("*.lmdb")):
        if not file.is_file() or file.stat().st_size == 0:
            continue
        split = file.parent.name
        kind, _, name = split.partition("_")
        place = file if file.name == "data.lmdb" else file.parent
        if split == "train":
            splits.train.setdefault(file.parent.parent.name, place)
        elif kind in ("val", "test") and name:
            (splits.val if kind == "val" else splits.test).setdefault(name, place)
    frames = next((file.parent for file in sorted(folder.rglob("*.extxyz.xz"))), None)
    return Splits(splits.train, _ordered(splits.val), _ordered(splits.test), frames)


def missing_splits(splits: Splits, expected: Iterable[str]) -> list[str]:
    """Return the expected ``SIZE/SPLIT`` names that were not found."""
    found = {f"{size}/train" for size in splits.train}
    found |= {f"all/val_{name}" for name in splits.val} | {f"all/test_{name}" for name in splits.test}
    found |= {EXTXYZ} if splits.frames else set()
    return [split for split in expected if split not in found]


def commands(splits: Splits) -> str:
    """List the next commands, ready for a shell."""
    lines: list[str] = []
    model = "runs/oc20/best.safetensors"
    if splits.frames:
        prepared = splits.frames.with_name(f"{splits.frames.name}-prepared")
        learnt = [
            "data.target=energy",
            "loss.force_weight=10",
            f"data.train={_yaml(prepared)}",
            "data.val=VAL",
        ]
        lines += ["Prepare, once:", f"  {shlex.join(['molflt', 'prepare', str(splits.frames), '-o', str(prepared)])}"]
        lines += ["Train on energies and forces, with a validation set VAL made alike:"]
        lines += ["  molflt config base > s2ef.yaml"]
        lines += [f"  {shlex.join(['molflt', 'train', 's2ef.yaml', '--out', 'runs/s2ef', *learnt])}"]
    if splits.train and splits.val:
        size = "all" if "all" in splits.train else next(iter(splits.train))
        val = ", ".join(f"{name}: {_yaml(path)}" for name, path in splits.val.items())
        others = [other for other in ("10k", "100k") if other in splits.train and other != size]
        hint = f"   # {' and '.join(others)} in place of {size}: smaller sets" if others else ""
        train = shlex.join([f"data.train={_yaml(splits.train[size])}", f"data.val={{{val}}}"])
        lines += [f"Train, which prepares the data the first time:{hint}", "  molflt config base > oc20.yaml"]
        lines += [f"  molflt train oc20.yaml --out runs/oc20 {train}"]
    if splits.val:
        lines += ["Evaluate:", f"  {shlex.join(['molflt', 'evaluate', model, *map(str, splits.val.values())])}"]
    if splits.test:
        lines += ["Predict, one file for the leaderboard:"]
        for name, path in splits.test.items():
            words = ["molflt", "predict", model, str(path), "-o", "submission.npz", "--oc20-split", name]
            lines.append(f"  {shlex.join(words)}")
    return "\n".join(lines)


def _yaml(path: Path) -> str:
    """Write a path as a YAML value: as JSON, which YAML includes, unless it is plain."""
    text = str(path)
    return text if re.fullmatch(r"[\w./][\w./+-]*", text) else json.dumps(text, ensure_ascii=False)


def _ordered(found: dict[str, Path]) -> dict[str, Path]:
    return {name: found[name] for name in sorted(found, key=lambda n: (_ORDER.index(n) if n in _ORDER else 9, n))}
