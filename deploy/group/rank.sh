#!/bin/sh
# One process of a model in several processes, by its rank, as mpirun, srun and others set it: rank 0 is the server, rank
# N the Nth stage of the file.
#
#   rank.sh MODEL STAGES.toml [OPTION...]
#
# Options are those of all processes (--device cpu --context 8192 --sequences 4). FLASHMOE names the program, SERVE more
# options of the server. Where the file has certificates, IDENTITY is this host's folder for a stage, and FIRST the
# server's certificate; its address in the file is what the stage listens on.
set -eu
model=$1 file=$2
shift 2
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${PMIX_RANK:-${SLURM_PROCID:-}}}}
[ -n "$rank" ] || { echo "rank.sh: no rank: neither mpirun nor srun started it" >&2; exit 2; }
size=${OMPI_COMM_WORLD_SIZE:-${PMI_SIZE:-${SLURM_NTASKS:-0}}}
# The values of a key, one for each stage, in order.
of() { awk -v key="$1" -F'"' '/^\[\[stage\]\]/ { inside = 1 } inside && $1 ~ "^" key "[ \t]*=" { print $2 }' "$file"; }
stages=$(of layers | wc -l)
if [ "$size" -gt 0 ] && [ "$size" -ne $((stages + 1)) ]; then
    echo "rank.sh: $size processes for $stages stages and the server: start $((stages + 1))" >&2
    exit 2
fi
flashmoe=${FLASHMOE:-flashmoe}
if [ "$rank" -eq 0 ]; then
    # shellcheck disable=SC2086
    exec "$flashmoe" serve "$model" --stages "$file" "$@" ${SERVE:-}
fi
layers=$(of layers | sed -n "${rank}p") address=$(of address | sed -n "${rank}p")
if [ -z "$layers" ] || [ -z "$address" ]; then
    echo "rank.sh: $file has no stage $rank" >&2
    exit 2
fi
set -- "$flashmoe" stage "$model" --layers "$layers" --listen "$address" "$@"
if [ -n "${IDENTITY:-}" ]; then
    set -- "$@" --identity "$IDENTITY" --trust "$FIRST"
fi
exec "$@"
