#!/usr/bin/env python3
"""Compares the values of random blocks of every GGUF type with those of the `gguf` package, bit for bit.

    block_values.py --binary target/release/examples/decode_blocks [--blocks 100000]

The bits of a block are random, its scales included: infinities, numbers that are none and subnormal scales occur. What
is not a number must be none on both sides; everything else must have equal bits. Exits 1 at the first difference.
"""

import argparse
import subprocess
import sys

import gguf
import numpy as np

# Blocks that are decoded at a time.
PART = 20_000


def compare(binary: str, name: str, type_id: int, size: tuple[int, int], count: int) -> None:
    kind = gguf.GGMLQuantizationType(type_id)
    if kind.name.lower() != name or gguf.GGML_QUANT_SIZES[kind] != size:
        sys.exit(f"{name}: the package has {kind.name} of {gguf.GGML_QUANT_SIZES[kind]}, not {size}")
    random = np.random.default_rng(type_id)
    broken = 0
    for start in range(0, count, PART):
        blocks = random.integers(0, 256, (min(PART, count - start), size[1]), dtype=np.uint8)
        with np.errstate(all="ignore"):
            want = np.asarray(gguf.quants.dequantize(blocks, kind), dtype=np.float32).reshape(-1)
        run = subprocess.run([binary, name], input=blocks.tobytes(), stdout=subprocess.PIPE, check=True)
        got = np.frombuffer(run.stdout, dtype=np.float32)
        if got.shape != want.shape:
            sys.exit(f"{name}: {got.size} values, expected {want.size}")
        same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
        broken += int(np.count_nonzero(~np.isfinite(want)))
        if not same.all():
            index = int(np.argmin(same))
            block, value = divmod(index, size[0])
            sys.exit(f"{name}: block {start + block}, value {value}: {got[index]!r}, expected {want[index]!r}")
    print(f"{name:8} {count} blocks equal, {broken} values not finite")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--blocks", type=int, default=100_000)
    arguments = parser.parse_args()
    listed = subprocess.run([arguments.binary], stdout=subprocess.PIPE, check=True, text=True)
    for line in listed.stdout.splitlines():
        name, type_id, values, size = line.split()
        compare(arguments.binary, name, int(type_id), (int(values), int(size)), arguments.blocks)


if __name__ == "__main__":
    main()
