#!/usr/bin/env bash
# Creates (or reuses) the Python environment of the reference checks and prints nothing but its
# progress. The environment is rebuilt when the pinned requirements change.
#
#   tests/reference/setup_env.sh FOLDER      then: FOLDER/bin/python tests/reference/...
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
env_folder=${1:?usage: setup_env.sh FOLDER}
stamp=$(cat "$here"/requirements.txt "$here"/requirements-torch.txt "$here"/torch_without_cuda.py \
    | sha256sum | cut -d' ' -f1)

if [ "$(cat "$env_folder/.stamp" 2>/dev/null || true)" = "$stamp" ]; then
    echo "reference environment: up to date"
    exit 0
fi
rm -rf "$env_folder"
python3 -m venv "$env_folder"
"$env_folder/bin/pip" install --quiet -r "$here/requirements.txt"
"$env_folder/bin/pip" install --quiet --no-deps -r "$here/requirements-torch.txt"
"$env_folder/bin/python" "$here/torch_without_cuda.py"
"$env_folder/bin/python" -c "import torch, transformers, mlx_lm"
echo "$stamp" > "$env_folder/.stamp"
