#!/bin/sh
# Rebuilds kernels/prebuilt/flashmoe.fatbin: machine code for every supported architecture, and PTX for later ones (of
# compute_80: 75 has its own code, and the products of prefill need 80).
#   build.sh                         the committed image and its list of checksums
#   build.sh OUTPUT [PART...]        an image elsewhere, of all parts or of some: 75 80 86 89 90 100 120 ptx
# The compiler comes from the wheels pinned below, installed anywhere (NVCC names the binary); the output is the same
# bits in any folder, and a part is the same bits in any image, so that a rebuild can be compared with the committed file
# (contains.py):
#   pip install nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
#       nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
# The list of checksums beside it (sources and image) is what the crate's test compares with the sources.
set -eu
cd "$(dirname "$0")"
output=${1:-prebuilt/flashmoe.fatbin} committed=$#
[ $# -eq 0 ] || shift
parts=""
for part in ${*:-75 80 86 89 90 100 120 ptx}; do
    case $part in
        ptx) parts="$parts -gencode arch=compute_80,code=compute_80" ;;
        *) parts="$parts -gencode arch=compute_$part,code=sm_$part" ;;
    esac
done
# shellcheck disable=SC2086 # a list of options
"${NVCC:-nvcc}" -t 0 -O3 -std=c++20 -fatbin --compress-mode=size $parts all.cu -o "$output"
[ "$committed" -gt 0 ] || sha256sum ./*.cu ./*.cuh prebuilt/flashmoe.fatbin | sed 's|\./||' > prebuilt/sources.sha256
