"""Errors against processor time, with vectors and without: energies and forces of acetylacetone.

500 geometries of a run at 300 K to train on, every third of 650 others to judge (BOTNet datasets, Batatia et al.,
arXiv 2205.06643). A step costs the more the more vectors there are, so runs get the same seconds of one core and not
the same epochs. The learning rate falls with the time that is left: a loaded machine makes a run longer, not worse.

    MOLFLT_DATA=FOLDER python -m scripts.benchmarks.vectors --seconds 120 --channels 0 16
    python -m scripts.tools.tables                                                     # the table of the page

Writes a row for each sixth of the time into docs/results/vectors.csv, when a run is finished.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Batch, Data

from molflt.data.batching import collate
from molflt.data.labels import LabelSpec
from molflt.data.neighbours import attach_neighbours
from molflt.data.sources import open_dataset
from molflt.errors import InputError
from molflt.model.config import ModelConfig
from molflt.model.derivatives import derivatives
from molflt.model.energy_model import EnergyModel
from molflt.model.standardiser import Statistics
from scripts import results

CUTOFF, BATCH, RATE, WARMUP, DECAY, FORCE_WEIGHT = 5.0, 10, 2e-3, 100, 0.99, 10.0
KEPT = results.DOCS / "results" / "vectors.csv"


def structures(name: str) -> list[Data]:
    """Of a file of the set, with neighbours."""
    if "MOLFLT_DATA" not in os.environ:
        raise InputError(f"MOLFLT_DATA is not set: it is the folder that has acac/{name}")
    data = open_dataset(Path(os.environ["MOLFLT_DATA"]) / "acac" / name, labels=LabelSpec(target="energy"))
    return [attach_neighbours(data[k], CUTOFF) for k in range(len(data))]


def errors(model: EnergyModel, batches: list[Batch]) -> dict[str, float]:
    """Root mean square errors in meV and meV/Å."""
    squares = []
    for batch in batches:
        found = derivatives(model, batch)
        energy = (found.output.energy.detach() - batch.energy).square().mean()
        squares.append((energy, (found.forces.detach() - batch.forces).square().mean()))
    energy, force = (1000 * math.sqrt(float(sum(each)) / len(batches)) for each in zip(*squares, strict=True))
    return {"energy_rmse": energy, "force_rmse": force}


def run(channels: int, seed: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Train for so many seconds of processor time, and judge the moving average of the weights six times."""
    torch.manual_seed(seed)
    random, trained, others = (
        np.random.default_rng(seed),
        structures("train_300K.xyz.gz"),
        structures("test_MD_300K.xyz.gz"),
    )
    judged = [collate(others[k : k + 75 : 3]) for k in range(0, len(others) - 50, 75)]
    orders = [random.permutation(len(trained)).reshape(-1, BATCH) for _ in range(4)]
    batches = [collate([trained[k] for k in few]) for order in orders for few in order]
    energies = torch.stack([data.energy for data in trained])
    spread, force = energies.std(), torch.cat([data.forces for data in trained]).square().mean().sqrt()
    attention = {"vector_channels": channels, "isolated_atoms": 15, "sigma_max": 6.0}
    sizes = {"dim": 64, "n_layers": 2, "ffn_dim": 128, "cutoff": CUTOFF, "n_rbf": 24, "auxiliary_head": False}
    model = EnergyModel(ModelConfig.model_validate({**sizes, "attention": attention}))
    model.standardiser.load_statistics(Statistics("structure", float(energies.mean()), float(spread), {}, 1.0))
    average = copy.deepcopy(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=1e-3)
    spent, step, judged_at, order = 0.0, 0, 0.0, list[int]()
    while spent < seconds:
        start = time.process_time()
        order = order or random.permutation(len(batches)).tolist()
        batch = batches[order.pop()]
        share = min(1, (step + 1) / WARMUP) * (1 + math.cos(math.pi * spent / seconds)) / 2
        optimiser.param_groups[0]["lr"] = RATE * share
        found = derivatives(model, batch, create_graph=True)
        loss = ((found.output.energy - batch.energy).abs() / spread).mean()
        loss = loss + FORCE_WEIGHT * ((found.forces - batch.forces).norm(dim=1) / force).mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimiser.step()
        step += 1
        with torch.no_grad():
            for kept, now in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(now, 1 - min(DECAY, step / (step + 9)))
        spent += time.process_time() - start
        if spent >= seconds or spent > judged_at + seconds / 6:
            judged_at = spent
            row = {"vector_channels": channels, "seed": seed, "seconds": round(spent), "steps": step}
            yield {**row, **errors(average, judged), "of_seconds": seconds, "parameters": model.n_parameters()}


def main() -> None:
    """Every run that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, nargs="+", default=[0, 16])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--results", type=Path, default=KEPT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        for seed in options.seeds:
            for channels in options.channels:
                rows: list[dict[str, Any]] = []
                for row in run(channels, seed, options.seconds):
                    print(row, flush=True)
                    rows.append({**row, **results.provenance()})
                results.write(options.results, [*results.read(options.results), *rows], list(rows[0]), digits=3)
    except InputError as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
