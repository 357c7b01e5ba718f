#!/usr/bin/env bash
# Look for known vulnerabilities in every lock, and for images without a digest:
# requirements/check_supply.sh TOOLS, with pip-audit in TOOLS/bin. Exits with 1 where something is found
# and where the database of vulnerabilities cannot be asked: what was not looked at has not passed.
# PIP_AUDIT_VULNERABILITY_SERVICE names the database: pypi (usually) or osv.
set -uo pipefail
cd "$(dirname "$0")/.."
tools="$1"
failed=0
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

# A build for processors is known under the version without `+cpu`. Strict: a package that the
# database does not know has not passed either.
audit() { # LOCK
    sed 's/+cpu / /' "$1" > "$scratch/audited"
    "$tools/bin/pip-audit" --strict --disable-pip --no-deps --progress-spinner off \
        --requirement "$scratch/audited" 2>&1
}

echo "images:"
"$tools/bin/python" deploy/images.py || failed=1

echo "known vulnerabilities:"
# The control: a release with known vulnerabilities is not found where no database answers.
echo "setuptools==65.5.0" > "$scratch/vulnerable"
if audit "$scratch/vulnerable" > "$scratch/said" || ! grep -q -E 'PYSEC-|GHSA-|CVE-' "$scratch/said"; then
    echo "NOT CHECKED: the database of known vulnerabilities does not answer here, so no lock was" \
        "looked at. Run \`make check-supply\` where https://pypi.org/pypi/setuptools/65.5.0/json can" \
        "be read, or with PIP_AUDIT_VULNERABILITY_SERVICE=osv where https://api.osv.dev can."
    echo "What pip-audit said: $(tail -1 "$scratch/said")"
    exit 1
fi
for lock in requirements/*.lock; do
    echo "$lock:"
    audit "$lock" || failed=1
done
exit "$failed"
