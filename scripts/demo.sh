#!/usr/bin/env bash
# From nothing to a trained model: environment, training on the bundled data, evaluation, prediction.
# Under five minutes on two cores. Run again after an interruption, it goes on where it stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

step() { printf '\n\033[1m$ %s\033[0m\n' "$*"; "$@"; }
run=runs/demo
mkdir -p runs

printf '\n\033[1m$ molflt config tiny > runs/demo.yaml\033[0m\n'
molflt config tiny > runs/demo.yaml
step molflt train runs/demo.yaml --out "$run" --resume auto
step molflt evaluate "$run" data/adsorption/test.lmdb --no-report

# Structures of your own: anything ASE can build or read. Tags say what is slab (0, 1) and adsorbate (2).
mkdir -p runs/mine
python - <<'PYTHON'
from ase.build import add_adsorbate, fcc111, molecule
from ase.io import write

for metal in ("Pt", "Cu", "Au"):
    slab = fcc111(metal, (2, 2, 4), vacuum=7.5, periodic=True)
    slab.set_tags([1 if tag == 1 else 0 for tag in slab.get_tags()])
    adsorbate = molecule("CO")
    adsorbate.set_tags([2, 2])
    add_adsorbate(slab, adsorbate, height=1.9, position="ontop", mol_index=1)
    slab.info.clear()
    write(f"runs/mine/CO-on-{metal}111.extxyz", slab)
PYTHON
step molflt predict "$run" runs/mine

printf '\nThe model is %s/best.safetensors. Open %s/report.html in a browser.\n' "$run" "$run"
