#!/usr/bin/env bash
# Environment, lint, type check, and every test, slow ones included. Arguments go to pytest instead of the
# default selection, as in: scripts/test.sh tests/attention -k lattice
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh dev literature

if [ "$#" -gt 0 ]; then
    exec python -m pytest "$@"
fi
ruff check .
ruff format --check .
mypy
# Two processes of one thread each beat one process of two threads on tests this small.
export OMP_NUM_THREADS=1
python -m pytest -n 2 -m "not slow"
python -m pytest -n 2 -m slow
