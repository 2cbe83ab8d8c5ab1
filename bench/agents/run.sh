#!/usr/bin/env bash
# Coding agents against a server with the demo model, each asked one thing without a terminal.
#
#   bench/agents/run.sh BINARY SCRATCH [AGENT...]      claude codex opencode aider without an agent, as root
#
# BINARY is flashmoe; SCRATCH keeps the agents between runs, at the versions of package.json. Server and agents run in a
# network namespace of their own, with nothing but loopback, each agent with an empty home and project. The model is the
# demo model told to have 131,072 positions. It knows nothing of what agents ask and may not find an end by itself:
# Claude Code is told that an answer has at most 256 tokens. Printed: how the agent ended, what it said, its requests.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "$1")
mkdir -p "$2"
scratch=$(realpath "$2")
shift 2
[ $# -gt 0 ] || set -- claude codex opencode aider

if [ -z "${AGENTS_APART:-}" ]; then
    if [ "$(cat "$scratch/package.json" 2> /dev/null)" != "$(cat "$here/package.json")" ]; then
        cp "$here/package.json" "$scratch/"
        npm install --prefix "$scratch" --no-audit --no-fund --no-package-lock --silent
    fi
    [ -x "$scratch/aider/bin/aider" ] || {
        python3 -m venv "$scratch/aider"
        "$scratch/aider/bin/pip" install --quiet --disable-pip-version-check aider-chat==0.86.2
    }
    AGENTS_APART=1 exec unshare --net "$0" "$binary" "$scratch" "$@"
fi

# Loopback up: SIOCSIFFLAGS of `lo` with IFF_UP, for systems without `ip`.
python3 -c '
import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 1))'
model=$scratch/model
mkdir -p "$model"
cp "$here"/../../models/demo/*.{json,jinja,safetensors} "$model/"
sed -i 's/"max_position_embeddings": 4096/"max_position_embeddings": 131072/' "$model/config.json"

# shellcheck source=bench/start_server.sh
. "$here/../start_server.sh"
start_server "$scratch/server.log" "$binary" "$model" --served-name demo --context 65536
paths=$scratch/node_modules/.bin:$scratch/aider/bin:$(dirname "$(command -v node)"):/usr/bin:/bin
for agent in "$@"; do
    home=$scratch/home-$agent
    rm -rf "$home"
    mkdir -p "$home/project"
    cd "$home/project"
    git init --quiet .
    echo 'print("hello")' > hello.py
    case $agent in
        claude) words=(-p "Say hello.") ;;
        codex) words=(exec --skip-git-repo-check "Say hello.") ;;
        opencode) words=(run "Say hello.") ;;
        aider) words=(--message "Say hello." --no-git --yes-always) ;;
        *) echo "no agent named $agent" >&2 && exit 2 ;;
    esac
    before=$(wc -l < "$scratch/server.log")
    start=$SECONDS
    ended=0
    env -i HOME="$home" PATH="$paths" TERM=xterm LANG=C.UTF-8 CLAUDE_CODE_MAX_OUTPUT_TOKENS=256 \
        timeout "${AGENT_SECONDS:-900}" "$binary" launch "$agent" --url "$url" --exec -- "${words[@]}" \
        > "$home/out.txt" 2> "$home/err.txt" < /dev/null || ended=$?
    echo "== $agent: exit $ended after $((SECONDS - start)) s"
    tail -n 3 "$home/out.txt"
    tail -n +$((before + 1)) "$scratch/server.log" |
        sed -nE 's/.* (GET|HEAD|POST) (\S+) ([0-9]{3}).*/\1 \2 \3/p' | sort | uniq -c
    tail -n +$((before + 1)) "$scratch/server.log" | grep -o 'prompt [0-9]* (cached.*' || true
done
