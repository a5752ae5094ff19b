"""The data sets that can be fetched."""

from __future__ import annotations

from dataclasses import dataclass
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


def size_text(n_bytes: int) -> str:
    """A number of bytes for people: ``8.1 GiB``."""
    value, unit = float(n_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"
