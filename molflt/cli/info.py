"""``molflt info``: what a model file or a data set holds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from molflt.cli.options import ACCEPT_UNCONVERGED, JSON, PAIRS, TAGS
from molflt.cli.terminal import answer, answer_json
from molflt.vocabulary import TagConvention

if TYPE_CHECKING:
    from molflt.data.quality.domain import Domain
    from molflt.model.model_file import LoadedModel


def info_command(
    path: str = typer.Argument(
        ...,
        help="A model file, a run directory, pretrained:NAME, or structures in any readable form.",
        show_default=False,
    ),
    as_json: bool = JSON,
    pairs: bool = PAIRS,
    tags: TagConvention = TAGS,
    accept_unconverged: bool = ACCEPT_UNCONVERGED,
) -> None:
    """Describe a model or a data set.

    Example: molflt info runs/tiny/best.safetensors
    """
    from molflt.prediction.members import BEST, MEMBER, PRETRAINED_PREFIX, load_members, member_paths, split_member

    whole, k = split_member(path)
    folder = Path(whole)
    is_run = folder.is_dir() and ((folder / BEST).exists() or any(folder.glob(f"{MEMBER}*")))
    if is_run or folder.suffix == ".safetensors" or path.startswith(PRETRAINED_PREFIX):
        from molflt.model.model_file import load_models

        files = [load_models(file) for file in member_paths(path)] if k is None else [load_members(path)]
        members = [_model_info(file, str(file[0].path) if k is None else path) for file in files]
        content = members[0] if len(members) == 1 else {"members": {m.pop("model"): m for m in members}}
    else:
        content = _data_info(path, tags, accept_unconverged, pairs)
    if as_json:
        answer_json(content)
        return
    _print(content, 0)


def _model_info(members: list[LoadedModel], name: str) -> dict[str, Any]:
    from ase.data import chemical_symbols

    from molflt.model.uncertainty import LEVELS

    loaded = members[0]
    card_file = loaded.path.with_suffix(".md")
    metadata = loaded.metadata.model_dump(mode="json")
    metadata.pop("domain")
    if (known := loaded.metadata.uncertainty) is not None:
        metadata["uncertainty"] = {"±": str(known), "levels": LEVELS, **metadata["uncertainty"]}
    if len(members) > 1:
        # What differs between them.
        of_member = ("seed", "epoch", "validation")
        metadata["members"] = {
            f"{name}#{k}": {field: getattr(member.metadata, field) for field in of_member}
            for k, member in enumerate(members)
        }
    # A file counts from zero, people from one.
    for counted in (metadata, *metadata.get("members", {}).values()):
        counted["epoch"] += 1
    symbols = [chemical_symbols[z] for z in metadata.pop("elements")]
    card = {"card": str(card_file)} if card_file.exists() else {}
    rpe = getattr(loaded.model.positions, "rpe", None)
    reach = {} if rpe is None else {"widest_member": f"{float(rpe.widths.detach().max()):.3g} Å"}
    n_charges = loaded.model.config.charges
    charges = {"charges": f"{n_charges} channel{'s' * (n_charges > 1)}, 1/r to any distance"} if n_charges else {}
    sizes = {"parameters": loaded.model.n_parameters(), **reach, **charges}
    return {
        "model": name,
        **card,
        **sizes,
        "elements": symbols,
        "domain": _domain(loaded.metadata.domain),
        **metadata,
    }


def _domain(domain: Domain | None) -> Any:
    if domain is None:
        return "not recorded (written before molflt looked at more than the elements)"
    from molflt.data.quality.occurrence import formula

    content = domain.model_dump(mode="json")
    if domain.occurrence is None:
        content["occurrence"] = "not recorded (written before molflt looked at it)"
    else:
        content["occurrence"]["compositions"] = [formula(one) for one in domain.occurrence.compositions]
    content["distances"] = {
        pair: ", ".join(f"{low:.2f}–{high:.2f} Å" for low, high in ranges)
        for pair, ranges in content["distances"].items()
    }
    return content


def _data_info(path: str, tags: TagConvention, accept_unconverged: bool, pairs: bool) -> dict[str, Any]:
    import numpy as np
    from ase.data import chemical_symbols

    from molflt.data.open import open_dataset
    from molflt.data.progress import track
    from molflt.data.reading import ReadOptions
    from molflt.files import resolve_path
    from molflt.vocabulary import TARGETS

    options = ReadOptions(
        allow_charged=True, conformers=1, accept_unconverged=accept_unconverged, pairs=pairs, tags=tags
    )
    dataset = open_dataset(resolve_path(path), options)
    elements: Counter[int] = Counter()
    boundary: Counter[str] = Counter()
    values: dict[str, list[float]] = {target: [] for target in TARGETS}
    relaxed = 0
    sizes = []
    for data in track((dataset[i] for i in range(len(dataset))), "reading", len(dataset)):
        sizes.append(int(data.num_nodes))
        elements.update(set(data.atomic_numbers.tolist()))
        boundary["".join("T" if p else "F" for p in data.pbc[0].tolist())] += 1
        relaxed += "positions_relaxed" in data
        for target, found in values.items():
            if target in data:
                found.append(float(data[target]))
    labels = {}
    for target, found in values.items():
        if found:
            array = np.asarray(found)
            labels[target] = {
                "n": len(found),
                "mean_eV": float(array.mean()),
                "std_eV": float(array.std()),
                "mean_absolute_deviation_eV": float(np.abs(array - array.mean()).mean()),
                "min_eV": float(array.min()),
                "max_eV": float(array.max()),
            }
    return {
        "data": path,
        "structures": len(sizes),
        "atoms": {"min": min(sizes), "median": float(np.median(sizes)), "max": max(sizes), "total": sum(sizes)},
        "elements": {chemical_symbols[z]: n for z, n in sorted(elements.items())},
        "periodic": dict(boundary),
        "with_relaxed_positions": relaxed,
        "labels": labels,
    }


def _print(content: dict[str, Any], depth: int) -> None:
    for key, value in content.items():
        if isinstance(value, dict) and value:
            answer(f"{'  ' * depth}{key}:")
            _print(value, depth + 1)
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
            shown = f"{shown:.6g}" if isinstance(shown, float) else shown
            answer(f"{'  ' * depth}{key}: {shown}")
