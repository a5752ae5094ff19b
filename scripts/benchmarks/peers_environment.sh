#!/bin/sh
# Makes .venv-peers, or the folder it is given, in which the benchmarks run PaiNN (SchNetPack), whose requirements do not
# agree with molflt's:
#
#     scripts/benchmarks/peers_environment.sh [FOLDER]
#
# SchNetPack asks for a sympy that is older than this torch works with: it is installed without its requirements, and
# what its models import is named here.
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
    $pip --constraint constraints.txt torch numpy ase matscipy h5py pyyaml tqdm torchmetrics pytorch-lightning \
        torch-ema hydra-core fasteners dirsync tensorboardX
    $pip --no-deps schnetpack==2.1.1
    touch "$stamp"
fi
PYTHONWARNINGS=ignore "$folder/bin/python" -c '
from scripts.benchmarks.peers import PaiNNEnergy, painn_with_forces
PaiNNEnergy(16, 1, 8, 5.0)
painn_with_forces(16, 1, 8, 5.0)
print("PaiNN is there")'
