#!/bin/sh
# Makes .venv-peers, or the folder it is given, in which the benchmarks run PaiNN (SchNetPack) and MACE (mace-torch):
# their requirements do not agree with molflt's, nor with each other's.
#
#     scripts/benchmarks/peers_environment.sh [FOLDER]
#
# mace-torch asks for e3nn 0.4.4 and SchNetPack for a sympy, both older than this torch works with: they are installed
# without their requirements, and what their models import is named here. Neither trains here; only forward and
# backward passes run.
set -eu
cd "$(dirname "$0")/../.."

python=${PYTHON:-python3}
[ -x .venv/bin/python ] && python=.venv/bin/python
folder=${1:-.venv-peers}
stamp="$folder/made-$(cat constraints.txt "scripts/benchmarks/$(basename "$0")" | sha256sum | cut -c1-16)"
if [ ! -e "$stamp" ]; then
    echo "making $folder (several minutes)"
    rm -rf "$folder"
    "$python" -m venv "$folder"
    pip="$folder/bin/python -m pip install --quiet --no-compile --disable-pip-version-check"
    $pip --constraint constraints.txt torch numpy ase e3nn==0.6.0 matscipy pandas lmdb prettytable h5py pyyaml tqdm \
        torchmetrics torch-ema opt-einsum pytorch-lightning hydra-core fasteners dirsync tensorboardX
    $pip --no-deps schnetpack==2.1.1 mace-torch==0.3.16
    touch "$stamp"
fi
PYTHONWARNINGS=ignore "$folder/bin/python" -c '
from scripts.benchmarks.external_models import MACEEnergy, PaiNNEnergy
PaiNNEnergy(16, 1, 8, 5.0)
MACEEnergy(8, 0, 4, 5.0, correlation=2, max_ell=1)
print("PaiNN and MACE are there")'
