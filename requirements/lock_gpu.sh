#!/usr/bin/env bash
# Resolve the locks of the images for NVIDIA GPUs: requirements/lock_gpu.sh, with uv on the PATH
# They are resolved for Linux on x86-64 with Python 3.11; docs/operations.md says what of them ran.
set -euo pipefail
cd "$(dirname "$0")/.."

resolve() { # SERVICE REQUIREMENT...
    local service="$1" lock="requirements/$1-gpu.lock"
    shift
    {
        echo "# Every package of the image \`$service-gpu\`: resolved, not run; installed by"
        echo "# deploy/docker/install.sh with --no-deps. Written by requirements/lock_gpu.sh."
        uv pip compile pyproject.toml <(printf '%s\n' "$@") --extra "$service" --extra telemetry --quiet \
            --python-version 3.11 --python-platform x86_64-unknown-linux-gnu \
            --no-header --no-annotate
    } > "$lock.new"
    mv "$lock.new" "$lock"
    echo "$lock: $(grep -c '==' "$lock") packages"
}

resolve explorer 'vllm==0.24.*' 'torch==2.11.*'
resolve trainer 'torch==2.11.*'
