"""Half-widths of a model's error intervals, measured on structures outside its training set.

The errors of a model of adsorption energies have heavier tails than a normal distribution, so that no multiple of a
standard deviation covers what it should at every probability. The widths are therefore quantiles (normalised split
conformal prediction; Lei et al., Journal of the American Statistical Association 113, 1094, 2018): with s the
standard deviation over the members of an ensemble (0 for one model), the scale of a structure is ``floor`` + s, and a
share p of the errors is below multiple_p · scale.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

LEVELS = (0.5, 0.683, 0.9, 0.95)
"""Probabilities of the available central intervals."""
ONE_SIGMA, WIDE = 0.683, 0.95
"""Probability of the printed interval, as wide as a standard deviation of normal errors, and of the one beside it."""

_Positive = Annotated[FiniteFloat, Field(gt=0)]
_Share = Annotated[FiniteFloat, Field(ge=0, le=1)]


class Uncertainty(BaseModel):
    """Half-widths of the intervals that hold the errors of a model or an ensemble's mean."""

    model_config = ConfigDict(extra="forbid")

    n_members: int = Field(ge=1, description="models whose mean this is about")
    floor: FiniteFloat = Field(ge=0, description="eV, added to the standard deviation over the members")
    multiples: list[_Positive] = Field(description="of floor + standard deviation, for each of LEVELS")
    coverage: list[_Share] = Field(description="found for each of LEVELS, measured on one half, found on the other")
    data: str = Field(description="what it was measured on")
    n_structures: int = Field(ge=1)

    @model_validator(mode="after")
    def _one_for_each_level(self) -> Uncertainty:
        if not len(self.multiples) == len(self.coverage) == len(LEVELS):
            raise ValueError(f"multiples and coverage: one for each of {LEVELS}")
        return self

    def half_width(self, spread: np.ndarray, level: float = ONE_SIGMA) -> np.ndarray:
        """Half-width of the interval that holds the error with a probability, (n,) eV.

        Args:
            spread: (n,) eV, the standard deviation over the members; zeros for one model.
            level: one of ``LEVELS``.
        """
        widths: np.ndarray = self.multiples[LEVELS.index(level)] * (self.floor + np.asarray(spread, np.float64))
        return widths

    def __str__(self) -> str:
        one, wide = (self.multiples[LEVELS.index(level)] for level in (ONE_SIGMA, WIDE))
        return (
            f"± is a {ONE_SIGMA:.0%} interval calibrated on {self.data} ({self.n_structures:,} structures); "
            f"×{wide / one:.1f} gives {WIDE:.0%}"
        )
