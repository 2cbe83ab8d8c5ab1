#!/usr/bin/env python3
"""The rounding of DeepSeek-V4's cache in training, in torch: rows, keys of the indexer, and the network with both.

    rounded_rows.py tests/golden/rounded_rows.txt     rows and what they are stored as, for `cargo test`

As the release's `act_quant` and `fp4_act_quant` have it: a block's scale is the least power of two that is not below its
largest magnitude times the reciprocal of the format's largest number. After rotation the values of a row that are not
rotated are rounded to E4M3 in blocks of 64, the others to bfloat16; queries and keys of the indexer pass a Hadamard
transform and are rounded to E2M1 in blocks of 32."""

import contextlib
import pathlib
import sys

import numpy as np
import torch

E4M3_BLOCK, E4M3_LARGEST, E4M3_FLOOR = 64, 448.0, 1e-4
FP4_BLOCK, FP4_LARGEST, FP4_FLOOR = 32, 6.0, 6 * 2.0**-126
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def blocks(values, size):
    """The blocks of the last dimension; the last may be shorter."""
    return torch.split(values, size, dim=-1)


def powers(block, largest, floor):
    """Bytes of the scale of each row of a block, and the scale."""
    most = block.abs().amax(-1, keepdim=True).clamp_min(floor)
    bits = (most * torch.tensor(1 / largest, dtype=torch.float32)).view(torch.int32)
    exponents = (bits >> 23) + ((bits & 0x7FFFFF) != 0)
    return exponents.to(torch.uint8), (exponents << 23).view(torch.float32)


def e4m3(values):
    """Codes, scales and values of rows that are rounded whole."""
    codes, scales, rounded = [], [], []
    for block in blocks(values, E4M3_BLOCK):
        byte, scale = powers(block, E4M3_LARGEST, E4M3_FLOOR)
        code = (block / scale).clamp(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn)
        codes.append(code.view(torch.uint8))
        scales.append(byte)
        rounded.append(code.float() * scale)
    return [torch.cat(parts, -1) for parts in (codes, scales, rounded)]


def fp4(values):
    """Codes (not yet in pairs), scales and values."""
    codes, scales, rounded = [], [], []
    for block in blocks(values, FP4_BLOCK):
        byte, scale = powers(block, FP4_LARGEST, FP4_FLOOR)
        quotient = (block / scale).clamp(-FP4_LARGEST, FP4_LARGEST)
        # The nearest magnitude; of two as near the one whose code is even, which comes first here.
        order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
        distances = (quotient.abs()[..., None].double() - FP4[order].double()).abs()
        code = order[distances.argmin(-1)]
        sign = torch.signbit(quotient)
        codes.append((code + 8 * sign).to(torch.uint8))
        scales.append(byte)
        rounded.append(torch.where(sign, -FP4[code], FP4[code]) * scale)
    return [torch.cat(parts, -1) for parts in (codes, scales, rounded)]


def hadamard(values):
    """The orthonormal transform of the last dimension: neighbours first."""
    count, half = values.shape[-1], 1
    while half < count:
        pairs = values.reshape(*values.shape[:-1], count // (2 * half), 2, half)
        low, high = pairs.unbind(-2)
        values = torch.stack([low + high, low - high], -2).reshape(values.shape)
        half *= 2
    return values * torch.tensor(count**-0.5, dtype=torch.float32)


def row(values, rotated):
    """A row of the cache."""
    plain = values.shape[-1] - rotated
    return torch.cat([e4m3(values[..., :plain])[2], values[..., plain:].bfloat16().float()], -1)


@contextlib.contextmanager
def rounding(config):
    """transformers' networks of this configuration, rounded at the places of training."""
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as modeling

    attention, scorer = modeling.eager_attention_forward, modeling.DeepseekV4IndexerScorer.forward
    rotated = config.qk_rope_head_dim

    def rounded_attention(module, query, key, value, *arguments, **named):
        rows = row(key, rotated)
        return attention(module, query, rows, rows, *arguments, **named)

    def rounded_scorer(module, query, keys, hidden):
        return scorer(module, fp4(hadamard(query))[2], fp4(hadamard(keys))[2], hidden)

    modeling.eager_attention_forward = rounded_attention
    modeling.DeepseekV4IndexerScorer.forward = rounded_scorer
    try:
        yield
    finally:
        modeling.eager_attention_forward = attention
        modeling.DeepseekV4IndexerScorer.forward = scorer


def edges(random, count, largest):
    """Rows about the places where roundings part: halves of steps, powers of two, the largest number and its scales."""
    steps = random.integers(-64, 65, count) / np.float32(16)
    power = np.exp2(random.integers(-3, 4, count)).astype(np.float32)
    near = np.nextafter(steps * power, random.choice([-np.inf, np.inf], count)).astype(np.float32)
    values = np.where(random.random(count) < 0.5, steps * power, near).astype(np.float32)
    top = np.float32(largest) * np.float32(2.0 ** random.integers(-4, 5))
    values[random.integers(count)] = random.choice([top, np.nextafter(top, np.float32(0)), np.nextafter(top, np.inf)])
    return values


def rows(random, count, largest):
    spread = np.exp2(random.uniform(-12, 12, count)).astype(np.float32)
    yield random.standard_normal(count).astype(np.float32)
    yield random.standard_normal(count).astype(np.float32) * spread
    for _ in range(4):
        yield edges(random, count, largest)
    yield np.zeros(count, np.float32) * -1
    yield random.standard_normal(count).astype(np.float32) * np.float32(1e-7)
    yield random.standard_normal(count).astype(np.float32) * np.float32(1e-39)
    yield random.standard_normal(count).astype(np.float32) * np.float32(1e34)


def golden():
    """Lines of a kind, for rows the number of values that stay, values, and the bytes or values that they become."""
    random = np.random.default_rng(17)
    hexed = lambda tensor: tensor.contiguous().numpy().tobytes().hex()
    for dim, rotated in ((512, 64), (32, 16), (192, 32)):
        for values in rows(random, dim, E4M3_LARGEST):
            values = torch.from_numpy(values)
            codes, scales, _ = e4m3(values[: dim - rotated])
            halves = values[dim - rotated :].bfloat16().view(torch.uint8)
            yield f"row {rotated} {hexed(values)} {hexed(torch.cat([codes, scales, halves]))}"
    for dim in (128, 16):
        for values in rows(random, dim, FP4_LARGEST):
            values = torch.from_numpy(values)
            codes, scales, rounded = fp4(values)
            key = torch.cat([codes[::2] | codes[1::2] << 4, scales])
            yield f"key 0 {hexed(values)} {hexed(key)}"
            yield f"rounded 0 {hexed(values)} {hexed(rounded)}"
            yield f"hadamard 0 {hexed(values)} {hexed(hadamard(values))}"


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).write_text("\n".join(golden()) + "\n")
