#!/usr/bin/env bash
# The tests, in two tiers. Both make the environment first.
#   scripts/test.sh             lint, types, and the tests to run before a commit
#   scripts/test.sh --all       the same, then every slow test
#   scripts/test.sh ARGUMENTS   pytest with these arguments, as in: scripts/test.sh tests/attention -k lattice
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh dev literature oracles torch-sim

every=false
if [ "${1:-}" = "--all" ]; then
    every=true
    shift
    # Reports are tested in a real browser. Without one, those tests are skipped and say so.
    if ! command -v chromium chromium-browser google-chrome >/dev/null &&
        [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing chromium"
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 ||
            echo "chromium could not be installed" >&2
    fi
fi
if [ "$#" -gt 0 ]; then
    if $every; then
        set -- -m "slow or not slow" "$@"
    fi
    exec python -m pytest "$@"
fi

ruff check .
ruff format --check .
mypy
# Two processes of one thread each beat one process of two threads on tests this small.
export OMP_NUM_THREADS=1
python -m pytest -n 2 --durations=25
if $every; then
    # Some of these take minutes, most seconds: an idle process takes what is left.
    python -m pytest -n 2 --dist worksteal -m slow --durations=10
fi
