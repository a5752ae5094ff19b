#!/usr/bin/env bash
# Known vulnerabilities of the locked packages, by pip-audit in an environment of its own. Where its database cannot be
# reached this says so and ends with 0; a vulnerability ends with 1.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/environment.sh dev literature torch-sim

environment=.venv-audit
if [ ! -x "$environment/bin/pip-audit" ]; then
    rm -rf "$environment"
    python -m venv "$environment"
    if ! "$environment/bin/python" -m pip install --quiet --disable-pip-version-check pip-audit; then
        rm -rf "$environment"
        echo "audit SKIPPED: pip-audit could not be installed (is the package registry reachable?)" >&2
        exit 0
    fi
fi
# Versions with a local label, such as torch's +cpu, are unknown to the database; without it they are known.
plain=$(mktemp)
trap 'rm -f "$plain"' EXIT
sed -nE 's/^([A-Za-z0-9._-]+==[^ +]+).*/\1/p' requirements.lock >"$plain"
status=0
output=$("$environment/bin/pip-audit" --disable-pip --no-deps --progress-spinner off -r "$plain" 2>&1) || status=$?
echo "$output"
if [ "$status" -ne 0 ] && ! grep -qE "Found [0-9]+ known vulnerabilit" <<<"$output"; then
    echo "audit SKIPPED: the database of vulnerabilities could not be asked (is https://pypi.org reachable?)" >&2
    exit 0
fi
exit "$status"
