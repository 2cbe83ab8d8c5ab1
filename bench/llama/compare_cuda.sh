#!/bin/sh
# flashmoe and llama.cpp on one GPU in turns, on one GGUF file: all experts in GPU memory, and 20 % of them.
# Usage: compare_cuda.sh LLAMA_BENCH FILE.gguf FLASHMOE [ROUNDS]
# FILE.gguf is make_gguf.py's (40 layers). llama-bench keeps the experts of the first 32 layers in RAM and computes them
# on the processor (--n-cpu-moe 32). flashmoe gets the GPU memory that holds the same share of the experts and moves the
# others over the bus. Both routers are random and so nearly uniform; flashmoe runs that row a second time with routing
# calibrated on real traces, which llama-bench cannot draw. Rows go to standard output as JSON, each with its settings
# before it.
set -eu
llama=$1 file=$2 flashmoe=$3
them() { echo "llama.cpp $*"; "$llama" -m "$file" -ngl 99 -fa 1 -p 2048 -r 2 -o jsonl "$@"; }
us() { echo "flashmoe $*"; "$flashmoe" bench "$file" --device cuda -p 2048 -r 2 -o json "$@"; }
for round in $(seq "${4:-2}"); do
    echo "round $round"
    them -n 256 -d 0,8192
    us -n 256 -d 0,8192
    them -n 64 --n-cpu-moe 32
    us -n 256 --vram 5.1G
    us -n 256 --vram 5.1G --routing calibrated
done
