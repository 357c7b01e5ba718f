#!/usr/bin/env bash
# What the tests of Studio in a browser need: Debian's Chromium, Playwright to drive it, and axe-core,
# which looks for what keeps people out (npm checks its hash).
#   requirements/browser.sh PYTHON FOLDER
# Both packages go into FOLDER, apart from the environment. Never fails: what could not be installed is
# said, and the tests that need it are skipped with the same words.
set -uo pipefail
python="$1"
folder="$2"
version=1.65.2
axe_version=4.14.1

if [ ! -d "$folder/playwright" ]; then
    "$python" -m pip --disable-pip-version-check install -q --target "$folder" "playwright==$version" ||
        echo "browser tests are skipped: Playwright could not be installed into $folder"
fi
if [ ! -f "$folder/node_modules/axe-core/axe.min.js" ]; then
    if command -v npm > /dev/null; then
        npm install --silent --no-save --ignore-scripts --no-audit --no-fund --prefix "$folder" "axe-core@$axe_version" > /dev/null ||
            echo "the accessibility test is skipped: npm could not install axe-core into $folder"
    else
        echo "the accessibility test is skipped: axe-core needs npm, and there is none"
    fi
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
