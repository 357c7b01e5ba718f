#!/usr/bin/env bash
# Make the environment of one image: deploy/docker/install.sh LOCK ENVIRONMENT
# Run in a folder with pyproject.toml, trinity/ and one service, by the Dockerfiles, and without
# Docker by `make check-images`. The environment holds no pip.
set -euo pipefail
lock="$1" environment="$2"

python3 -m venv --without-pip "$environment"
pip() { python3 -m pip --disable-pip-version-check --no-cache-dir -q --python "$environment/bin/python" "$@"; }

pins="$(mktemp)"
trap 'rm -f "$pins"' EXIT
case "$lock" in
    # The default build of torch for Linux brings CUDA: name the index of the CPU builds in
    # PIP_EXTRA_INDEX_URL.
    *-cpu.lock) sed 's/^torch==\(.*\)$/torch==\1+cpu/' "$lock" > "$pins" ;;
    *) cp "$lock" "$pins" ;;
esac
pip install --no-deps --no-compile --requirement "$pins"
pip install --no-deps --no-compile .

# What nothing here uses: the tests of numpy, and of pyarrow a third: Flight, S3, headers, its tests,
# and second and third copies of a library that links would have been, in a wheel that knows none.
for packages in "$environment"/lib/python3*/site-packages; do
    find "$packages/numpy" -type d -name tests -prune -exec rm -rf {} +
    arrow="$packages/pyarrow"
    [ -d "$arrow" ] || continue
    rm -rf "$arrow"/{tests,include,includes,src,libarrow_flight.*,libarrow_python_flight.*} \
        "$arrow"/{_flight.*,flight.py,libarrow_s3.*,_s3fs.*,_pyarrow_cpp_tests.*} \
        "$arrow"/libarrow_python*.so "$arrow"/libarrow_python*.so.*.*
done
