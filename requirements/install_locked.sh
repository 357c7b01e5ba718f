#!/usr/bin/env bash
# Install what a lock names, and no file whose hash it has not:
# requirements/install_locked.sh LOCK PYTHON [OPTION OF pip install...]
# Archives are built with the build tools of that Python's environment, which build.lock pins: in an
# isolated one pip would fetch others, without a hash.
set -uo pipefail
lock="$1" python="$2"
shift 2
said="$(mktemp)"
trap 'rm -f "$said"' EXIT

# Torchvision has no build for processors in the common index: the file says what it needs there.
let_torchvision_load() {
    grep -q '^torchvision==' "$lock" || return 0
    local packages
    packages="$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    cp "$(dirname "$0")/torchvision_beside_cpu_torch.py" "$packages"
    echo 'import torchvision_beside_cpu_torch' > "$packages/torchvision_beside_cpu_torch.pth"
}

quiet=-qq
[ ! -t 1 ] || quiet=--progress-bar=on
"$python" -m pip --disable-pip-version-check "$quiet" install --no-build-isolation \
    --require-hashes --requirement "$lock" "$@" 2> "$said"
status=$?
if [ "$status" = 0 ]; then
    let_torchvision_load
    exit
fi
cat "$said" >&2

# Pip's own text tells who updates a lock what to do; who installs from one needs something else.
refused="$(sed -n '/DO NOT MATCH THE HASHES/,/ Got /p' "$said" | sed -n 's/^ *\([^ ].*\) from \(.*\):$/\1 from \2/p')"
if [ -n "$refused" ]; then
    cat >&2 <<TEXT
error: $refused: this file has none of the hashes in $lock, so nothing of it was installed.
Run \`$python -m pip cache remove '*'\` and try again: a broken download looks the same. If it
happens again, that index serves another file than the one this project was tried with. Do not
install it by hand: name another index (PIP_INDEX_URL), or ask who runs this one. Who trusts the
file adds its hash (\`$python -m pip hash FILE\`) below the package in $lock.
TEXT
fi
exit "$status"
