"""Write into a model file what its training structures look like, for files from before molflt recorded that.

    python -m scripts.tools.record_domain MODEL.safetensors TRAINING_STRUCTURES

The weights stay as they are. See molflt/data/domain.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from molflt.bundled import resolve_path
from molflt.data.domain import DomainFit
from molflt.data.screening import Screening
from molflt.data.sources import open_dataset
from molflt.model.model_file import load_model, save_model


def main() -> None:
    """Measure the domain and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("structures", help="that it was trained on, or bundled:NAME")
    options = parser.parse_args()
    loaded = load_model(options.model)
    spec = loaded.metadata.label_spec
    forces = any(key.endswith("force_mae") for key in loaded.metadata.validation)
    structures = open_dataset(resolve_path(options.structures), labels=spec)
    fit = DomainFit(len(structures), forces)
    for index, structure in enumerate(Screening(structures, spec, options.structures, forces)):
        fit.add(fit.look(index, structure))
    save_model(options.model, loaded.model, loaded.metadata.model_copy(update={"domain": fit.domain()}))


if __name__ == "__main__":
    main()
