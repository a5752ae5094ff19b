"""Colours that colour-blind readers can tell apart."""

from __future__ import annotations

import numpy as np

OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#7A6A00", "#333333")
"""Okabe and Ito's palette, its yellow darkened to be seen on white."""
GREY = "#8a8f98"

# Viridis at nine places, without the end that is too light on white.
_VIRIDIS = np.array(
    [(68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141), (39, 173, 129), (92, 200, 99),
     (150, 210, 60), (190, 215, 40)]
)  # fmt: skip


def palette(n: int) -> list[str]:
    """``n`` colours: distinct ones while they last, else steps of one scale that rises in lightness."""
    if n <= len(OKABE_ITO):
        return list(OKABE_ITO[:n])
    place = np.linspace(0, len(_VIRIDIS) - 1, n)
    channels = [np.interp(place, np.arange(len(_VIRIDIS)), _VIRIDIS[:, k]).round().astype(int) for k in range(3)]
    return ["#{:02x}{:02x}{:02x}".format(*rgb) for rgb in zip(*channels, strict=True)]
