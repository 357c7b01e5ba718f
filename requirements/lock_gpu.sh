#!/usr/bin/env bash
# Resolve the locks of the images for NVIDIA GPUs: requirements/lock_gpu.sh, with uv on the PATH
# They are resolved for Linux on x86-64 with Python 3.11; docs/operations.md says what of them ran.
set -euo pipefail
cd "$(dirname "$0")/.."

resolve() { # SERVICE REQUIREMENT...
    local service="$1" lock="requirements/$1-gpu.lock"
    shift
    # What stands in the output is preferred: versions that the tests run with, where they fit.
    grep '==' requirements/cpu.lock | grep -v '^torch==' > "$lock.new"
    uv pip compile pyproject.toml <(printf '%s\n' "$@") --extra "$service" --extra telemetry --quiet \
        --python-version 3.11 --python-platform x86_64-unknown-linux-gnu \
        --no-header --no-annotate --output-file "$lock.new" > /dev/null
    {
        echo "# Every package of the image \`$service-gpu\`, as uv resolved it; installed by"
        echo "# deploy/docker/install.sh with --no-deps. Written by requirements/lock_gpu.sh."
        cat "$lock.new"
    } > "$lock"
    rm "$lock.new"
    echo "$lock: $(grep -c '==' "$lock") packages"
}

resolve explorer 'vllm==0.24.*' 'torch==2.11.*'
resolve trainer 'torch==2.11.*'
