#!/usr/bin/env bash
# lm-evaluation-harness against a server with the demo model, by text completions and by chat.
#
#   bench/harness/run.sh BINARY SCRATCH
#
# BINARY is flashmoe; SCRATCH keeps the harness between runs (SCRATCH/venv). Nothing is fetched but the harness itself:
# the tasks are the YAML files here, their data is made from models/demo/eval.jsonl.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "$1")
mkdir -p "$2"
scratch=$(realpath "$2")
demo=$here/../../models/demo
[ -x "$scratch/venv/bin/lm_eval" ] || {
    python3 -m venv "$scratch/venv"
    "$scratch/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
}
python3 "$here/questions.py" "$demo/eval.jsonl" > "$scratch/capitals.jsonl"
mkdir -p "$scratch/tasks"
for task in capitals_choice capitals_answer; do
    sed "s|FILE|$scratch/capitals.jsonl|" "$here/$task.yaml" > "$scratch/tasks/$task.yaml"
done

# shellcheck source=bench/start_server.sh
. "$here/../start_server.sh"
start_server "$scratch/server.log" "$binary" "$demo" --device cpu --served-name demo

export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME=$scratch/home TOKENIZERS_PARALLELISM=false OPENAI_API_KEY=none
harness() { "$scratch/venv/bin/lm_eval" --include_path "$scratch/tasks" --verbosity ERROR "$@" 2> "$scratch/harness.log" ||
    { tail -20 "$scratch/harness.log" >&2; exit 1; }; }
harness --model local-completions --tasks capitals_choice --batch_size 4 \
    --model_args "model=demo,base_url=$url/v1/completions,tokenizer=$demo,tokenized_requests=True,max_length=2048"
harness --model local-completions --tasks capitals_choice --batch_size 1 \
    --model_args "model=demo,base_url=$url/v1/completions,tokenizer=$demo,tokenized_requests=False,max_length=2048"
harness --model local-chat-completions --tasks capitals_answer --apply_chat_template \
    --model_args "model=demo,base_url=$url/v1/chat/completions"
# Without a tokenizer's files: the harness asks the server for ids and for what a turn looks like.
harness --model local-completions --tasks capitals_choice --batch_size 4 \
    --model_args "model=demo,base_url=$url/v1/completions,tokenizer_backend=remote,tokenized_requests=True,max_length=2048"
