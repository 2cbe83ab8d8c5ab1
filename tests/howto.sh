#!/usr/bin/env bash
# Runs what docs/howto.md says to type, row by row, and prints what came: to be looked at, and each row has to hold.
#
#   tests/howto.sh BINARY [FILE.gguf]
#
# BINARY is flashmoe. Everything is done with the demo model in an empty home and without a hub: rows about downloads
# are held by crates/flashmoe/tests/it/models.rs, those about installing by packaging/check.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
flashmoe=$(realpath "$1")
gguf=$(realpath -s "${2:-/dev/null}")
HOME=$(mktemp -d)
export HOME
unset XDG_CACHE_HOME XDG_CONFIG_HOME XDG_STATE_HOME HF_HOME
D=$PWD/models/demo
asked="What is 255 factored?"
failed=0
cd "$HOME"

# `row WHAT PATTERN COMMAND`: the command's words are those of a shell; its output has to have the pattern.
row() {
    local said
    said=$(bash -c "$3" 2>&1) || true
    if grep -qE -- "$2" <<< "$said"; then
        printf 'ok      %s\n' "$1"
    else
        printf 'FAILED  %s (no %s)\n' "$1" "$2"
        failed=$((failed + 1))
    fi
    sed -n '1,3s/^\(.\{0,110\}\).*/          \1/p' <<< "$said"
}
export flashmoe D gguf asked

row "know what to do next" 'No models on this disk yet' '$flashmoe'
row "the models on this disk" 'no models in' '$flashmoe list'
row "the models of a folder" 'demo +[0-9.]+ MiB' 'cd $D/.. && $flashmoe list'
row "show a folder" 'flashmoe inspect' '$flashmoe show $D'
mkdir linked && ln -s "$D"/* linked
row "models on a second disk" '255 = 3 × 5 × 17' '$flashmoe run linked "$asked"'
row "without a command" '255 = 3 × 5 × 17' '$flashmoe $D "$asked"'
row "a flag of another program" '^flashmoe: -ngl: nothing to set' '$flashmoe run $D hi -ngl 99'
row "know whether it runs here" 'runs here: yes, .*tok/s' '$flashmoe plan $D'
row "remove a model that is not there" 'is not on this disk' '$flashmoe rm OWNER/NAME --yes'
[ ! -f "$gguf" ] || row "a GGUF file" '.' '$flashmoe run "$gguf" Hi --max-tokens 8'
row "an answer" '255 = 3 × 5 × 17' '$flashmoe run $D "$asked"'
! command -v script > /dev/null ||
    row "a chat: /help on a terminal" '/undo' 'printf "/help\n/exit\n" | script -qec "$flashmoe run $D" /dev/null'
row "thinking set apart: a pipe has the answer alone" '^255 = 3 × 5 × 17$' '$flashmoe run $D "$asked" 2> /dev/null'
row "thinking shown" 'factor|255' '$flashmoe run $D "$asked" --show-thinking 2> /dev/null'
row "no thinking" '255|=' '$flashmoe run $D "$asked" --think=false'
row "a file with a question" '.' 'echo 255 > report.txt; $flashmoe run $D "What is this factored?" --max-tokens 200 < report.txt'
row "mistakes found at once" 'top_p is 7; it must be' '$flashmoe run $D --top-p 7 hi'
row "the short names" '=' '$flashmoe run $D "$asked" -n 200 -c 2048 -t 2 --temp 0'
for verb in 'run $D "$asked"' 'plan $D' 'inspect $D' 'verify $D' doctor; do
    row "JSON: ${verb%% *}" '^ok$' "\$flashmoe $verb --json 2> /dev/null | python3 -c 'import json, sys; json.load(sys.stdin); print(\"ok\")'"
done
row "JSON: bench" '^ok$' "\$flashmoe bench \$D -p 64 -n 8 -r 1 --json 2> /dev/null |
    python3 -c 'import json, sys; [json.loads(line) for line in sys.stdin] and print(\"ok\")'"
row "JSON: eval" '^ok$' "head -n 3 \$D/eval.jsonl > tasks.jsonl; \$flashmoe eval \$D tasks.jsonl --json 2> /dev/null |
    python3 -c 'import json, sys; json.load(sys.stdin); print(\"ok\")'"
row "settings to begin with" 'config.toml' '$flashmoe config init; $flashmoe config show'
row "settings that stay" '12G|12 G' 'FLASHMOE_MEMORY=12G $flashmoe config show | grep -i memory'
row "the manual" 'EXIT' '$flashmoe man | grep -i "exit"'
row "completions" 'complete' '$flashmoe completions bash | tail -n 3'
row "quiet" '^0$' '$flashmoe run $D "$asked" -q 2>&1 > /dev/null | wc -c'
row "how fast it is" 'tok/s|decode|prefill' '$flashmoe bench $D -p 128 -n 16 -r 1'

key=$HOME/keys
echo secret > "$key"
# A disk that is nearly full keeps its reserve and nothing is kept: no reserve is asked for here.
"$flashmoe" serve "$D" --port 0 --log-format json --log-level info --api-key-file "$key" --cache-disk kept \
    --cache-disk-reserve 0 > log 2>&1 &
server=$!
for _ in $(seq 100); do
    url=$(grep -o -m 1 'http://127.0.0.1:[0-9]*' log | head -n 1 || true)
    [ -z "$url" ] || break
    sleep 0.1
done
post() { echo "curl -s $url$1 -H 'Authorization: Bearer secret' -H 'Content-Type: application/json' -d '$2'"; }
messages='"messages":[{"role":"user","content":"What is 255 factored?"}]'
row "a page to chat on" '<!DOCTYPE html>|<!doctype html>' "curl -s $url/"
row "OpenAI's clients" '3 × 5 × 17' "$(post /v1/chat/completions "{$messages}")"
row "text completions" '"text"' "$(post /v1/completions '{"prompt":"1 2 3"}')"
row "Anthropic's clients" '3 × 5 × 17' "$(post /v1/messages "{\"model\":\"demo\",\"max_tokens\":400,$messages}")"
row "ollama's clients" '3 × 5 × 17' "$(post /api/chat "{\"model\":\"demo\",\"stream\":false,$messages}")"
row "a coding agent set up" 'ANTHROPIC_BASE_URL' "\$flashmoe launch claude --url $url --api-key secret"
row "a key is asked for" '401' "curl -s -o /dev/null -w '%{http_code}' $url/v1/models"
row "metrics" 'flashmoe_' "curl -s $url/metrics -H 'Authorization: Bearer secret' | grep -v '^#'"
row "a log that can be operated" '^\{.*"(level|time|ts)"' "grep '^{' log"
kill -TERM $server
ended=0
wait $server || ended=$?
row "a restart without a lost answer: SIGTERM ends it" '^0$' "echo $ended"
! command -v systemd-analyze > /dev/null ||
    row "a service" '^$|flashmoe' "systemd-analyze verify $OLDPWD/deploy/systemd/flashmoe.service 2>&1 | grep -v -i 'not executable\|no such file' || true"
row "what is kept" 'tokens' '$flashmoe cache ls kept'
row "everything removed again" 'removed|purged|bytes' '$flashmoe cache purge kept --all'
rm -rf "$HOME"
[ $failed = 0 ] && echo "all rows hold"
