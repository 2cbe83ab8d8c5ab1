#!/usr/bin/env python3
"""Compares the values of random matrices in publishers' encodings with those of torch, bit for bit.

    published_values.py --binary target/release/examples/decode_matrix [--rounds 20]

8-bit floats in tiles (DeepSeek-V3's weight_dequant: `weight.float() * scale` by tile), with scales of binary32,
bfloat16 and E8M0, and by row and by matrix; integers of compressed-tensors (unpacked by shifts, less 8 or 128 or their
zero points, times the scale); 4-bit floats in
planes (the table of the format's description, times a power of two); NVFP4 of ModelOpt and of compressed-tensors (the
table, times the scale of the group, which was multiplied with the number of the matrix, or divided by it); where
compressed-tensors is installed, also what its own decompression gives. All codes and all exponents occur. What is not a
number must be none on both sides; everything else must have equal bits. Exits 1 at the first difference.
"""

import argparse
import subprocess
import sys

import numpy as np
import torch

TILE = 128


def tiles(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    rows, columns = codes.shape
    spread = scales.float().repeat_interleave(TILE, 0)[:rows].repeat_interleave(TILE, 1)[:, :columns]
    return codes.view(torch.float8_e4m3fn).float() * spread


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def fp8(random: np.random.Generator, rows: int, columns: int, scale: str) -> tuple[bytes, torch.Tensor]:
    codes = torch.from_numpy(random.integers(0, 256, (rows, columns), dtype=np.uint8))
    shape = (-(-rows // TILE), -(-columns // TILE))
    if scale == "e8m0":
        # Scales from 2^120 on overflow here, where torch still has the values below 2^128; 255 is no number.
        powers = random.integers(0, 247, shape, dtype=np.uint8)
        powers[random.random(shape) < 0.1] = 255
        scales = torch.from_numpy(powers).view(torch.float8_e8m0fnu)
    else:
        values = np.exp2(random.uniform(-30, 10, shape)).astype(np.float32)
        scales = torch.from_numpy(values).to({"f32": torch.float32, "bf16": torch.bfloat16}[scale])
    return bytes_of(codes) + bytes_of(scales), tiles(codes, scales)


def symmetric(random: np.random.Generator, rows: int, columns: int, bits: int) -> tuple[bytes, torch.Tensor]:
    group, per_word = 32, 32 // bits
    words = random.integers(-(2**31), 2**31, (rows, columns // per_word), dtype=np.int32)
    packed = torch.from_numpy(words)
    parts = [packed >> (bits * place) & (2**bits - 1) for place in range(per_word)]
    values = torch.stack(parts, -1).reshape(rows, columns) - 2 ** (bits - 1)
    scales = torch.from_numpy(random.normal(0, 0.1, (rows, columns // group)).astype(np.float32)).bfloat16()
    return bytes_of(packed) + bytes_of(scales), values.float() * scales.float().repeat_interleave(group, 1)


def zeroed(random: np.random.Generator, rows: int, columns: int, bits: int) -> tuple[bytes, torch.Tensor]:
    """Integers with zero points: these lie in words along the rows, as many as fill 32 bits."""
    group, per_word = 32, 32 // bits
    packed = torch.from_numpy(random.integers(-(2**31), 2**31, (rows, columns // per_word), dtype=np.int32))
    words = torch.from_numpy(random.integers(-(2**31), 2**31, (-(-rows // per_word), columns // group), dtype=np.int32))
    parts = [packed >> (bits * place) & (2**bits - 1) for place in range(per_word)]
    values = torch.stack(parts, -1).reshape(rows, columns)
    parts = [words >> (bits * place) & (2**bits - 1) for place in range(per_word)]
    zeros = torch.stack(parts, 1).reshape(-1, columns // group)[:rows].repeat_interleave(group, 1)
    scales = torch.from_numpy(random.normal(0, 0.1, (rows, columns // group)).astype(np.float32)).bfloat16()
    want = (values - zeros).float() * scales.float().repeat_interleave(group, 1)
    return bytes_of(packed) + bytes_of(scales) + bytes_of(words), want


def fp8_rows(random: np.random.Generator, rows: int, columns: int, shared: bool) -> tuple[bytes, torch.Tensor]:
    codes = torch.from_numpy(random.integers(0, 256, (rows, columns), dtype=np.uint8))
    scales = np.exp2(random.uniform(-30, 10, (1 if shared else rows, 1))).astype(np.float32)
    scales = torch.from_numpy(scales).bfloat16()
    return bytes_of(codes) + bytes_of(scales), codes.view(torch.float8_e4m3fn).float() * scales.float()


def mxfp4(random: np.random.Generator, rows: int, columns: int) -> tuple[bytes, torch.Tensor]:
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = torch.cat([table, -table])
    packed = torch.from_numpy(random.integers(0, 256, (rows, columns // 2), dtype=np.uint8))
    codes = torch.stack([packed & 15, packed >> 4], -1).reshape(rows, columns).long()
    # 254 and 255 overflow or are no number: refused by the format, not compared.
    exponents = torch.from_numpy(random.integers(0, 254, (rows, columns // 32), dtype=np.uint8))
    powers = torch.exp2(exponents.double() - 127).float().repeat_interleave(32, 1)
    return bytes_of(packed) + bytes_of(exponents), table[codes] * powers


def nvfp4(random: np.random.Generator, rows: int, columns: int, divides: bool) -> tuple[bytes, torch.Tensor]:
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = torch.cat([table, -table])
    packed = torch.from_numpy(random.integers(0, 256, (rows, columns // 2), dtype=np.uint8))
    codes = torch.stack([packed & 15, packed >> 4], -1).reshape(rows, columns).long()
    scales = torch.from_numpy(random.integers(0, 256, (rows, columns // 16), dtype=np.uint8)).view(torch.float8_e4m3fn)
    number = torch.from_numpy(np.exp2(random.uniform(-20, 20, 1)).astype(np.float32))
    shared = scales.float() / number if divides else scales.float() * number
    want = table[codes] * shared.repeat_interleave(16, 1)
    if divides:
        compare_with_package(packed, scales, number, want)
    return bytes_of(packed) + bytes_of(scales) + bytes_of(number), want


def compare_with_package(packed: torch.Tensor, scales: torch.Tensor, number: torch.Tensor, want: torch.Tensor) -> None:
    """The decompression of the package that defines the format, if there is one here, in binary32."""
    try:
        from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
        from compressed_tensors.quantization import QuantizationArgs
        from compressed_tensors.quantization.lifecycle.forward import dequantize
    except ImportError:
        return
    rows, bytes_each = packed.shape
    values = unpack_fp4_from_uint8(packed, rows, 2 * bytes_each, dtype=torch.float32)
    arguments = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16)
    found = dequantize(x_q=values, scale=scales.float(), global_scale=number, args=arguments)
    assert torch.equal(torch.nan_to_num(found.float(), nan=12345.0), torch.nan_to_num(want, nan=12345.0))


def compare(binary: str, name: str, shape: tuple[int, int], data: bytes, want: torch.Tensor) -> None:
    run = subprocess.run([binary, name, *map(str, shape)], input=data, stdout=subprocess.PIPE, check=True)
    got = np.frombuffer(run.stdout, dtype=np.float32)
    want = want.reshape(-1).numpy()
    # Zeros of either sign are equal: an offset taken off a code leaves no sign.
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    if got.shape != want.shape or not same.all():
        index = int(np.argmin(same))
        sys.exit(f"{name} {shape}: value {index} is {got[index]!r}, expected {want[index]!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    random = np.random.default_rng(1)
    for index in range(arguments.rounds):
        rows, columns = int(random.integers(1, 400)), int(random.integers(1, 12)) * 32
        uneven = columns - int(random.integers(0, 32))
        for scale in ("f32", "bf16", "e8m0"):
            shape = (rows, uneven)
            compare(arguments.binary, f"fp8:128:{scale}", shape, *fp8(random, *shape, scale))
        for spelling, shared in (("rows", False), ("whole", True)):
            compare(arguments.binary, f"fp8:{spelling}:bf16", (rows, uneven), *fp8_rows(random, rows, uneven, shared))
        for bits in (4, 8):
            compare(arguments.binary, f"symmetric:{bits}:32:bf16", (rows, columns), *symmetric(random, rows, columns, bits))
            compare(arguments.binary, f"zeroed:{bits}:32:bf16", (rows, columns), *zeroed(random, rows, columns, bits))
        for spelling, divides in (("multiplied", False), ("divided", True)):
            compare(arguments.binary, f"nvfp4:{spelling}", (rows, columns), *nvfp4(random, rows, columns, divides))
        compare(arguments.binary, "mxfp4:planes", (rows, columns), *mxfp4(random, rows, columns))
    print(f"{arguments.rounds} matrices of each of twelve encodings equal")


if __name__ == "__main__":
    main()
