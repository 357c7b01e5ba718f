#!/usr/bin/env bash
# Make or update an environment from the locks of this folder: requirements/install.sh [ENVIRONMENT] [cpu|gpu]
# Does nothing where the environment already is what the locks say. PYTHON chooses the interpreter of
# a new one. In a checkout the project is installed too; the installed package calls it for the rest.
set -euo pipefail
cd "$(dirname "$0")/.."
environment="${1:-.venv}" kind="${2:-cpu}"
stamp="$environment/installed-from"
sources=(requirements/{build,"$kind"}.lock requirements/install.sh)
[ "$kind" = gpu ] || sources+=(requirements/torch-{cpu,cuda}.lock)
[ ! -f pyproject.toml ] || sources+=(pyproject.toml)
wanted="$(cat "${sources[@]}" | sha256sum | cut -d' ' -f1) $PWD"

if [ -x "$environment/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

step() { echo "setup: $1 [${SECONDS} s]"; }
pip() { "$environment/bin/python" -m pip --disable-pip-version-check -qq "$@"; }

install_locked() { bash requirements/install_locked.sh "requirements/$1.lock" "$environment/bin/python" --no-deps; }
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
    install_locked torch-cpu 2> "$environment/torch-cpu.err" && return
    echo "setup: pip finds no CPU build of torch whose hash is in requirements/torch-cpu.lock, and" \
        "takes the default one; on Linux that is some gigabytes. To spare them, name the index of" \
        "PyTorch's CPU builds in PIP_EXTRA_INDEX_URL, remove $environment and run this again." \
        "What pip said is in $environment/torch-cpu.err:" \
        "$(sed -n 's/^ERROR: //p' "$environment/torch-cpu.err" | tail -1)"
    install_locked torch-cuda
}

check_system
python="$(find_python)"
size="3 GB"
[ "$kind" = cpu ] || size="14 GB"
step "making $environment with $("$python" --version): some minutes, about $size"
is_supported "$environment/bin/python" || "$python" -m venv "$environment"
install_locked build
[ "$kind" = gpu ] || { step torch; install_torch; }
step "$(grep -c '==' "requirements/$kind.lock") locked packages"
install_locked "$kind"
if [ -f pyproject.toml ]; then
    step "this project"
    pip install --no-deps --no-build-isolation --editable .
fi
echo "$wanted" > "$stamp"
step "done"
