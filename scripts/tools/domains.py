"""Write the domains of the shipped models anew, from their training structures.

    MOLFLT_DATA=FOLDER python -m scripts.tools.domains [NAME ...]

After a change of the rule (molflt/data/quality/domain.py) this brings molflt/pretrained/*.safetensors up to date.
Weights and all other metadata stay as they are, which is checked. The training set of ``organic`` is no part of the
data: it is expected as organic/train.extxyz.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from ase.io import read as read_frames
from safetensors.torch import load_file
from torch_geometric.data import Data

from molflt.data.ase import from_atoms
from molflt.data.open import open_dataset
from molflt.errors import InputError
from molflt.files import resolve_path
from molflt.model.file import load_models, save_models
from molflt.prediction.members import pretrained_models
from scripts import results
from scripts.benchmarks.accuracy_data import DATA_SETS, divide, read, shared
from scripts.benchmarks.domain import learnt
from scripts.tools import wwl


def _qm7() -> list[Data]:
    frames = read(shared(DATA_SETS["qm7"].file), None)
    return [frames[k] for k in divide(len(frames), 0, 1)[0]]


def _fg() -> list[Data]:
    found = open_dataset(resolve_path("bundled:fg/train.lmdb"))
    return [found[k] for k in range(len(found))]


def _organic() -> list[Data]:
    found = open_dataset(shared("organic/train.extxyz"))
    return [found[k] for k in range(len(found))]


def _wwl() -> list[Data]:
    return wwl.divided()["train"]


def _acac() -> list[Data]:
    frames = read_frames(shared("acac/train_300K.xyz.gz"), index=":", format="extxyz")
    return [from_atoms(frame, str(k)) for k, frame in enumerate(frames) if k % 10]


TRAINED_ON: dict[str, Callable[[], Sequence[Data]]] = {
    "qm7-small": _qm7,
    "fg": _fg,
    "acac": _acac,
    "organic": _organic,
    "wwl": _wwl,
}


def main() -> None:
    """Write every file anew."""
    parser = results.command(__doc__)
    parser.add_argument("names", nargs="*", help="of models; all if there is none")
    chosen = parser.parse_args().names
    for name, path in pretrained_models().items():
        if chosen and name not in chosen:
            continue
        members, structures = load_models(path), TRAINED_ON[name]()
        before, weights = [member.metadata for member in members], load_file(path)
        for member in members:
            metadata = member.metadata
            if (n := metadata.training_data.n_structures) != len(structures):
                raise InputError(f"{name}: was trained on {n} structures, and there are {len(structures)}")
            by_element = metadata.standardiser["kind"] == "element"
            forces = any(key.endswith("force_mae") for key in metadata.validation)
            domain = learnt(structures, forces, by_element)
            member.metadata = metadata.model_copy(update={"domain": domain})
        save_models(path, members)
        after = load_file(path)
        assert weights.keys() == after.keys()
        assert all(weights[key].numpy().tobytes() == after[key].numpy().tobytes() for key in weights)
        for old, new in zip(before, (member.metadata for member in load_models(path)), strict=True):
            assert old.model_dump(exclude={"domain"}) == new.model_dump(exclude={"domain"})
        old, new = (json.loads(one.model_dump_json())["domain"] for one in (before[0], members[0].metadata))
        changed = [key for key in new if new[key] != (old or {}).get(key)]
        print(f"{name}: {', '.join(changed) or 'nothing'} changed")


if __name__ == "__main__":
    main()
