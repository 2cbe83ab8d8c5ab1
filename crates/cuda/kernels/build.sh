#!/bin/sh
# Compiles the units of the kernels (units/*.cu) to images: machine code for every supported architecture, and PTX for
# later ones (of compute_80: 75 has its own code, and the products of prefill need 80).
#   build.sh                       prebuilt/UNIT.fatbin of each unit whose sources are not those in prebuilt/UNIT.sha256
#   build.sh FOLDER [PART...]      all units elsewhere, of all parts or of some: 75 80 86 89 90 100 120 ptx
# Before, all.cu compares every structure and kernel with the host's (layouts.cuh). The compiler comes from the wheels
# pinned below, installed anywhere (NVCC names the binary); the output is the same bits in any folder, and a part is the
# same bits in any image, so that a rebuild can be compared with the committed file (contains.py):
#   pip install nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
#       nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
# The lists of checksums (a unit's sources and its image) are what the crate's test compares with the sources;
# prebuilt/UNIT.kernels names the kernels of a unit.
set -eu
cd "$(dirname "$0")"
nvcc=${NVCC:-nvcc} folder=${1:-prebuilt} committed=$#
[ $# -eq 0 ] || shift
parts=""
for part in ${*:-75 80 86 89 90 100 120 ptx}; do
    case $part in
        ptx) parts="$parts -gencode arch=compute_80,code=compute_80" ;;
        *) parts="$parts -gencode arch=compute_$part,code=sm_$part" ;;
    esac
done
text=$folder/text.ptx
"$nvcc" -std=c++20 -arch=compute_80 -Xcicc -O0 -ptx all.cu -o "$text"
for unit in units/*.cu; do
    name=$(basename "$unit" .cu)
    [ "$committed" -gt 0 ] || ! sha256sum --check --status "prebuilt/$name.sha256" 2> /dev/null || continue
    # shellcheck disable=SC2086 # a list of options
    "$nvcc" -t 0 -O3 -std=c++20 -fatbin --compress-mode=size $parts "$unit" -o "$folder/$name.fatbin"
    [ "$committed" -eq 0 ] || continue
    "$nvcc" -std=c++20 -arch=compute_80 -Xcicc -O0 -ptx "$unit" -o "$text"
    sed -n 's/.*\.entry \([a-zA-Z0-9_]*\)(.*/\1/p' "$text" | LC_ALL=C sort > "prebuilt/$name.kernels"
    sources=$("$nvcc" -std=c++20 -MM "$unit" | tr -d '\\' | tr ' ' '\n' | sed -n 's|^units/\.\./||p')
    # shellcheck disable=SC2086 # a list of files
    sha256sum "$unit" $sources "prebuilt/$name.fatbin" > "prebuilt/$name.sha256"
done
rm "$text"
