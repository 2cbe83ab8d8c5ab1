#!/bin/sh
# flashmoe and llama.cpp on one GPU in turns: all experts in GPU memory, and 20 % and 5 % of them.
# Usage: compare_cuda.sh LLAMA_BENCH FILE.gguf FLASHMOE MODEL [ROUNDS]
# FILE.gguf is make_gguf.py's, MODEL is `flashmoe synth 35B-A3B MODEL --layout native`. llama-bench keeps the experts of the first N of 40 layers
# in RAM and computes them on the processor (--n-cpu-moe N); flashmoe gets the GPU memory that holds the same share of the experts and moves the others over the bus.
# Both routers are random and so nearly uniform. Rows go to standard output as JSON, each with its settings before it.
set -eu
llama=$1 file=$2 flashmoe=$3 model=$4
them() { echo "llama.cpp $*"; "$llama" -m "$file" -ngl 99 -fa 1 -p 2048 -r 2 -o jsonl "$@"; }
us() { echo "flashmoe $*"; "$flashmoe" bench "$model" --device cuda -p 2048 -n 256 -r 2 -o json "$@"; }
for round in $(seq "${5:-2}"); do
    echo "round $round"
    them -n 256
    us
    them -n 64 --n-cpu-moe 32
    us --vram 5.1G
    them -n 64 --n-cpu-moe 38
    us --vram 2.57G
done
