#!/usr/bin/env bash
# The page of `flashmoe serve` in headless Chromium: every promise on a scripted server, then the real one.
#
#   tests/page/run.sh BINARY SCRATCH
#
# BINARY is flashmoe; SCRATCH keeps the browser's driver and axe-core (accessibility rules) between runs. Without npm the
# rules are skipped. Ends with the count of checks.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "$1")
mkdir -p "$2"
scratch=$(realpath "$2")
browser=$(command -v chromium)
axe=axe-core@4.14.1

wanted=$(cat "$here/requirements.txt"; echo "$axe")
if [ "$(cat "$scratch/.installed" 2> /dev/null || true)" != "$wanted" ]; then
    python3 -m venv "$scratch/venv"
    "$scratch/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
    if command -v npm > /dev/null; then
        npm install --prefix "$scratch" --no-audit --no-fund --no-package-lock --silent "$axe"
    fi
    echo "$wanted" > "$scratch/.installed"
fi
python=$scratch/venv/bin/python
rules=()
[ ! -f "$scratch/node_modules/axe-core/axe.min.js" ] || rules=(--axe "$scratch/node_modules/axe-core/axe.min.js")

# Checks wait more than they compute, so two halves run at once.
"$python" "$here/walk.py" --browser "$browser" "${rules[@]}" --part 2/2 > "$scratch/second.log" 2>&1 &
second=$!
trap 'kill $second 2> /dev/null || true' EXIT
status=0
"$python" "$here/walk.py" --browser "$browser" "${rules[@]}" --part 1/2 || status=$?
wait $second || status=$?
cat "$scratch/second.log"
"$python" "$here/real.py" "$binary" --browser "$browser" || status=$?
exit $status
