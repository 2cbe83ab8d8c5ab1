#!/usr/bin/env bash
# The official client libraries against a server with the demo model.
#
#   bench/clients/run.sh BINARY SCRATCH
#
# BINARY is flashmoe; SCRATCH keeps the libraries between runs. They are installed once from the package registries, at
# the versions of requirements.txt and package.json.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "$1")
mkdir -p "$2"
scratch=$(realpath "$2")

wanted=$(cat "$here/requirements.txt" "$here/package.json" | sha256sum)
if [ "$(cat "$scratch/.installed" 2> /dev/null || true)" != "$wanted" ]; then
    python3 -m venv "$scratch/venv"
    "$scratch/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
    cp "$here/package.json" "$scratch/"
    npm install --prefix "$scratch" --no-audit --no-fund --no-package-lock --silent
    echo "$wanted" > "$scratch/.installed"
fi

log=$scratch/server.log
"$binary" serve "$here/../../models/demo" --port 0 --served-name demo > "$log" 2>&1 &
server=$!
trap 'kill $server 2> /dev/null || true; wait $server 2> /dev/null || true' EXIT
url=
for _ in $(seq 100); do
    url=$(grep -o -m 1 'http://127.0.0.1:[0-9]*' "$log" || true)
    [ -n "$url" ] && break
    kill -0 $server || { cat "$log" >&2; exit 1; }
    sleep 0.1
done
[ -n "$url" ] || { echo "the server did not say where it listens:" >&2; cat "$log" >&2; exit 1; }

"$scratch/venv/bin/python" "$here/check.py" "$url"
# Modules are looked for beside the file that asks for them.
cp "$here/check.mjs" "$scratch/"
node "$scratch/check.mjs" "$url"
