"""What a calculator says of structures outside its model's domain: each thing once."""

from __future__ import annotations

import warnings

from torch_geometric.data import Data

from molflt.model.model_file import LoadedModel
from molflt.prediction.predictor import outside


class DomainWarnings:
    """Each part of the rule speaks once: in a run of dynamics it would at every step. Each element is named."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def ask(self, loaded: LoadedModel, data: Data, where: str = "") -> None:
        """Warn of what is new about a structure; ``where`` says which of several it is."""
        for reason in outside(loaded, data):
            self.say(f"{where}{reason.text}", reason.text if reason.rule == "elements" else reason.rule, stacklevel=5)

    def say(self, text: str, what: str, stacklevel: int = 3) -> None:
        """Warn unless ``what`` has been warned of."""
        if what not in self._said:
            self._said.add(what)
            warnings.warn(f"outside the model's domain: {text}", stacklevel=stacklevel)
