#!/bin/sh
# Rebuilds kernels/prebuilt/flashmoe.fatbin (or OUTPUT, given as the argument): machine code for every supported architecture, and PTX for later
# ones (of compute_80: 75 has its own code, and the products of prefill need 80).
# The compiler comes from the wheels pinned below, installed anywhere (NVCC names the binary); the output is the same
# bits in any folder, so that a rebuild can be compared with the committed file:
#   pip install nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
#       nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
# The list of checksums beside it (sources and image) is what the crate's test compares with the sources.
set -eu
cd "$(dirname "$0")"
output=${1:-prebuilt/flashmoe.fatbin}
architectures=""
for number in 75 80 86 89 90 100 120; do
    architectures="$architectures -gencode arch=compute_$number,code=sm_$number"
done
"${NVCC:-nvcc}" -t 0 -O3 -std=c++20 -fatbin --compress-mode=size $architectures \
    -gencode arch=compute_80,code=compute_80 all.cu -o "$output"
[ $# -gt 0 ] || sha256sum ./*.cu ./*.cuh prebuilt/flashmoe.fatbin | sed 's|\./||' > prebuilt/sources.sha256
