"""All structures of a set that cannot be used, once one of them has shown up."""

from __future__ import annotations

from collections.abc import Mapping

from molflt.data.datasets import StructureDataset
from molflt.data.neighbours import check_geometry
from molflt.data.progress import track
from molflt.errors import InputError, noting, refuse


def refuse_unusable(structures: StructureDataset, where: str, known: Mapping[int, InputError]) -> None:
    """Read a whole set, and refuse at once what cannot be read or makes no sense.

    Args:
        structures: the set.
        where: what holds it, for the message.
        known: what is wrong with some of them, by their places.

    Raises:
        InputError: names the first ten and counts the others; one that is alone stands for itself.
    """
    bad, n = dict(known), len(structures)
    for index in track(range(n), "looking for all that cannot be used", n):
        if index not in bad:
            with noting(bad, index, "", {}):
                check_geometry(structures[index])
    refuse(bad, n, where)
