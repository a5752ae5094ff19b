"""Where the time of one attention layer goes: the operators that take most of it, by torch.profiler.

python -m scripts.benchmarks.profile_layer --mechanism molflt --atoms 4096 --direction train
python -m scripts.benchmarks.profile_layer --mechanism molflt --kind oc20 --atoms 2048 --what prepare
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from scripts.benchmarks import structures
from scripts.benchmarks.attention import Calls, batch_for, build
from scripts.benchmarks.layer_peers import PEERS
from scripts.benchmarks.layers import MECHANISMS
from scripts.benchmarks.measuring import DIRECTIONS


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mechanism", choices=[*MECHANISMS, *PEERS], default="molflt")
    parser.add_argument("--kind", choices=structures.KINDS, default="periodic")
    parser.add_argument("--atoms", type=int, default=2048)
    parser.add_argument("--direction", choices=DIRECTIONS, default="train")
    parser.add_argument("--what", choices=("layer", "prepare"), default="layer")
    parser.add_argument("--calls", type=int, default=3, help="profiled calls, after one to warm up")
    parser.add_argument("--rows", type=int, default=25)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--shapes", action="store_true", help="an operator has a row for each shape of its inputs")
    parser.add_argument("--trace", type=Path, help="a trace for chrome://tracing as well")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    layer = build(options.mechanism).to(options.device)
    batch = batch_for(structures.make(options.kind, options.atoms), layer).to(options.device)
    calls = Calls(layer, batch, options.direction == "train")
    calls.first()
    call = calls.layer if options.what == "layer" else calls.prepare
    on_gpu = options.device.startswith("cuda")
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
    with profile(activities=activities, record_shapes=options.shapes, profile_memory=True) as profiler:
        for _ in range(options.calls):
            call()
    averages = profiler.key_averages(group_by_input_shape=options.shapes)
    order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    print(f"{options.mechanism}, {options.kind}, {options.atoms} atoms, {options.direction}, {options.what}")
    print(averages.table(sort_by=order, row_limit=options.rows, max_name_column_width=50))
    if options.trace is not None:
        profiler.export_chrome_trace(str(options.trace))


if __name__ == "__main__":
    main()
