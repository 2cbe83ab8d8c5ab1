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

# shellcheck source=bench/start_server.sh
. "$here/../start_server.sh"
start_server "$scratch/server.log" "$binary" "$here/../../models/demo" --served-name demo

"$scratch/venv/bin/python" "$here/check.py" "$url"
# Modules are looked for beside the file that asks for them.
cp "$here/check.mjs" "$scratch/"
node "$scratch/check.mjs" "$url"
