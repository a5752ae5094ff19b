#!/usr/bin/env bash
# Environment, lint, type check, and every test, slow ones included. Arguments go to pytest instead of the
# default selection, as in: scripts/test.sh tests/attention -k lattice
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh dev literature

# Reports are tested in a real browser. Where there is none it is installed if that is possible; else those tests
# are skipped, and say so.
if ! command -v chromium chromium-browser google-chrome >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing chromium"
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 ||
            echo "chromium could not be installed" >&2
    fi
fi

if [ "$#" -gt 0 ]; then
    exec python -m pytest "$@"
fi
ruff check .
ruff format --check .
mypy
# Two processes of one thread each beat one process of two threads on tests this small.
export OMP_NUM_THREADS=1
python -m pytest -n 2 -m "not slow" --durations=25
# Some of these take minutes, most seconds: an idle process takes what is left.
python -m pytest -n 2 --dist worksteal -m slow --durations=10
