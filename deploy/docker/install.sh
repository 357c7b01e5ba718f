#!/usr/bin/env bash
# Make the environment of one image: deploy/docker/install.sh LOCK ENVIRONMENT
# Run in a folder with pyproject.toml, trinity/ and one service, by the Dockerfiles, and without
# Docker by `make check-images`. The environment holds no pip in the end. The build of torch in
# `*-cpu.lock` is in PyTorch's own index: name that in PIP_EXTRA_INDEX_URL.
set -euo pipefail
lock="$1" environment="$2"
locks="$(dirname "$lock")"
options=(--no-cache-dir --no-compile)

python3 -m venv "$environment"
for each in "$locks/build.lock" "$lock"; do
    "$locks/install_locked.sh" "$each" "$environment/bin/python" --no-deps "${options[@]}"
done
pip() { "$environment/bin/python" -m pip --disable-pip-version-check -q "$@"; }
pip install --no-deps --no-build-isolation "${options[@]}" .

# What only builds: all of build.lock that the image's own lock has not.
names() { sed -n 's/^\([A-Za-z0-9._-]*\)==.*/\1/p' "$1" | sort; }
mapfile -t only_build < <(comm -23 <(names "$locks/build.lock") <(names "$lock"))
pip uninstall --yes "${only_build[@]}"

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
