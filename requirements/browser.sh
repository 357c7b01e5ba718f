#!/usr/bin/env bash
# What the tests of Studio in a browser need: Debian's Chromium, and Playwright to drive it.
#   requirements/browser.sh PYTHON FOLDER
# Playwright goes into FOLDER, apart from the environment. Never fails: what could not be installed is
# said, and the tests that need it are skipped with the same words.
set -uo pipefail
python="$1"
folder="$2"
version=1.65.2

if [ ! -d "$folder/playwright" ]; then
    "$python" -m pip --disable-pip-version-check install -q --target "$folder" "playwright==$version" ||
        echo "browser tests are skipped: Playwright could not be installed into $folder"
fi
if ! command -v chromium > /dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
        apt-get install -y -qq --no-install-recommends chromium > /dev/null ||
            echo "browser tests are skipped: apt-get could not install chromium"
    else
        echo "browser tests are skipped: install Debian's package chromium as root"
    fi
fi
exit 0
