# Sourced by the other scripts: makes .venv when there is none, brings it up to date when the project's
# requirements have changed, and activates it. Usage: . scripts/environment.sh [EXTRA ...]

find_python() {
    for candidate in python3.13 python3.12 python3.11 python3 python; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11, 4))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "molflt needs Python 3.11.4 or newer; none was found on the PATH" >&2
    return 1
}

# Without a cache every command compiles its packages again, 5 to 20 seconds each time.
unset PYTHONDONTWRITEBYTECODE

extras=$(IFS=,; echo "$*")
if [ ! -x .venv/bin/python ]; then
    echo "making .venv"
    rm -rf .venv
    "$(find_python)" -m venv .venv
fi
# The stamp is written last: an interrupted installation is done again.
stamp=".venv/molflt-${extras:-plain}-$(cat pyproject.toml constraints.txt | sha256sum | cut -c1-16)"
if [ ! -e "$stamp" ]; then
    echo "installing molflt${extras:+ with $extras} into .venv (a minute or two)"
    # Compiling every file of every package would double the time; Python compiles what it imports.
    .venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check \
        --constraint constraints.txt --editable ".${extras:+[$extras]}"
    touch "$stamp"
fi
. .venv/bin/activate
