#!/usr/bin/env bash
# Writes requirements.lock: every package that the tests run with at one version, with the hashes of its files. Versions
# in it stay as long as they fit pyproject.toml and constraints.txt; --upgrade takes the newest. Needs uv; its options go
# behind, such as --find-links FOLDER or --extra-index-url for the index with builds of torch for CPUs (+cpu).
set -euo pipefail
cd "$(dirname "$0")/../.."
uv pip compile pyproject.toml --extra dev --extra literature --extra torch-sim --constraint constraints.txt \
    --generate-hashes --no-annotate --python-version 3.11.4 --custom-compile-command scripts/tools/lock.sh \
    --quiet --output-file requirements.lock "$@"
