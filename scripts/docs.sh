#!/usr/bin/env bash
# Build the documentation as a site in site/; a warning, such as a broken link, is an error.
#   scripts/docs.sh           build
#   scripts/docs.sh serve     build, show it on a local port, and build again when a page changes
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh docs
export NO_MKDOCS_2_WARNING=1
if [ "${1:-}" = "serve" ]; then
    shift
    exec mkdocs serve "$@"
fi
mkdocs build --strict "$@"
echo "site/index.html"
