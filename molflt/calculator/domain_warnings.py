"""What a calculator says of structures outside its model's domain: each thing once."""

from __future__ import annotations

import warnings

from torch_geometric.data import Data

from molflt.data.quality.domain import GEOMETRIC
from molflt.model.model_file import LoadedModel
from molflt.prediction.predict import outside


class DomainWarnings:
    """Warns of each reason once, though dynamics come upon it at every step.

    A reason with a distance in it is another one at every step, and is given once for each composition.
    """

    def __init__(self) -> None:
        self._said: set[str] = set()

    def ask(self, loaded: LoadedModel, data: Data, where: str = "") -> None:
        """Warn of what is new about a structure; ``where`` says which of several it is."""
        for rule, text in outside(loaded, data):
            atoms = data.atomic_numbers.sort().values.tolist()
            self.say(f"{where}{text}", f"{rule} {atoms}" if rule in GEOMETRIC else text, stacklevel=5)

    def say(self, text: str, what: str, stacklevel: int = 3) -> None:
        """Warn unless ``what`` has been warned of."""
        if what not in self._said:
            self._said.add(what)
            warnings.warn(f"outside the model's domain: {text}", stacklevel=stacklevel)
