#!/bin/sh
# Speed of the CUDA backend on synthetic models of real shapes: the rows of docs/benchmarks.md, section "CUDA".
# Usage: bench/cuda/measure.sh FLASHMOE FOLDER, with 64 GB free in FOLDER; rows go to standard output as JSON,
# what `plan` says as text.
# Caps: 20 % and 5 % of the experts in GPU memory are 2048 and 512 slots of 10240 beside 1.7 GiB of everything else.
set -eu
program=$1
folder=$2
measure() {
    model=$1
    shift
    "$program" bench "$model" --device cuda -r "${runs:-2}" -o json "$@" 2> "$folder/bench.err" || tail -3 "$folder/bench.err"
}
"$program" synth 35B-A3B "$folder/35b" --layout native > /dev/null 2>&1
measure "$folder/35b" -p 2048 -n 256
measure "$folder/35b" -p 0 -n 256 --vram 5.1G --routing calibrated
measure "$folder/35b" -p 0 -n 256 --vram 2.57G --routing calibrated
measure "$folder/35b" -p 2048 -n 0 --vram 5.5G
runs=1
measure "$folder/35b" -p 0 -n 128 --vram 5.1G --slots 2048 --routing calibrated
measure "$folder/35b" -p 4096 -n 0 --vram 5.5G --slots 2048
# The planning table, and what `plan` says of its rows.
for vram in 8G 12G; do
    measure "$folder/35b" -p 0 -n 128 --vram $vram --routing calibrated
done
measure "$folder/35b" -p 0 -n 64 --vram 5.1G --slots 6000 --routing calibrated
measure "$folder/35b" -p 0 -n 64 --vram 10G --slots 2048 --routing calibrated
for caps in "129 --vram 5.1G" "129 --vram 8G" "129 --vram 12G" 129 "65 --vram 5.1G --slots 6000" "65 --vram 10G --slots 2048"; do
    # shellcheck disable=SC2086
    "$program" plan "$folder/35b" --device cuda --context $caps | grep "at most"
done
rm -r "$folder/35b"
"$program" synth 35B-A3B "$folder/35b" --layers 12 --layout native > /dev/null 2>&1
measure "$folder/35b" -p 0 -n 192 --vram 2.15G --routing calibrated --predict off,on
rm -r "$folder/35b"
"$program" synth 397B-A17B "$folder/397b" --layers 12 --layout native > /dev/null 2>&1
runs=2
measure "$folder/397b" -p 512 -n 128
runs=1
measure "$folder/397b" -p 0 -n 128 --vram 13.5G --routing calibrated
rm -r "$folder/397b"
