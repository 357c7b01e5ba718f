#!/usr/bin/env bash
# Make or update the environment from requirements/cpu.lock: requirements/install.sh [ENVIRONMENT]
# Does nothing where the environment already is what the lock says. PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
environment="${1:-.venv}"
lock=requirements/cpu.lock
stamp="$environment/installed-from"
wanted="$(cat "$lock" pyproject.toml "$0" | sha256sum | cut -d' ' -f1) $PWD"

if [ -x "$environment/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

step() { echo "setup: $1 [${SECONDS} s]"; }
pip() { "$environment/bin/python" -m pip --disable-pip-version-check -qq "$@"; }
is_supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; }

check_system() {
    [ "$(uname -s)" = Linux ] && return
    echo "setup: this runs on Linux, and here is $(uname -s): use a Linux machine" >&2
    exit 2
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
        if is_supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "setup: no Python 3.11 or 3.12 found (tried: ${PYTHON:-python3.11 python3.12 python3});" \
        "install one, or name it: make setup PYTHON=/path/to/python3.11" >&2
    exit 2
}

# The default build for Linux brings gigabytes of CUDA packages: the CPU build goes first.
install_torch() {
    local version
    version="$(sed -n 's/^torch==//p' "$lock")"
    pip install --no-deps "torch==$version+cpu" 2>"$environment/torch-cpu.err" && return
    echo "setup: pip finds no CPU build of torch $version and takes the default one; on Linux that is" \
        "some gigabytes. To spare them, name the index of PyTorch's CPU builds in" \
        "PIP_EXTRA_INDEX_URL, remove $environment and run this again. What pip said:" \
        "$(tail -1 "$environment/torch-cpu.err")"
    pip install --constraint "$lock" "torch==$version"
}

check_system
python="$(find_python)"
step "making $environment: some minutes, about 3 GB"
step "environment with $("$python" --version) (1 of 4)"
is_supported "$environment/bin/python" || "$python" -m venv "$environment"
step "torch (2 of 4)"
install_torch
step "$(grep -c '==' "$lock") locked packages (3 of 4)"
pip install --no-deps --requirement "$lock"
step "this project (4 of 4)"
pip install --no-deps --editable .
echo "$wanted" > "$stamp"
step "done"
