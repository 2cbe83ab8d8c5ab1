"""MLX's affine quantisation in torch: the packer of the shipped checkpoint and the fake quantisation of training.

A row is cut into groups of 64 consecutive inputs.  Per group: w = q * scale + bias, q unsigned of `bits` bits,
scale and bias in bf16.  The end of the range with the larger magnitude is represented exactly (up to the bf16
rounding) and zero falls on the grid, as in MLX.  q is chosen with the *rounded* scale and bias, so that training sees
exactly the values that the file stores.  Value i of a row occupies bits [i*bits, (i+1)*bits) of its little-endian
bit stream, stored as u32 words.
"""
import torch

GROUP = 64


def affine(weight, bits):
    """weight [.., in] -> q (float, same shape), scale, bias [.., in / 64] (bf16-exact f32)."""
    levels = 2 ** bits - 1
    groups = weight.float().unflatten(-1, (-1, GROUP))
    low, high = groups.amin(-1), groups.amax(-1)
    scale = ((high - low) / levels).clamp(min=1e-7)
    low_is_edge = low.abs() > high.abs()
    scale = torch.where(low_is_edge, scale, -scale)
    edge = torch.where(low_is_edge, low, high)
    zero_point = torch.round(edge / scale)
    on_grid = zero_point != 0
    scale = torch.where(on_grid, edge / torch.where(on_grid, zero_point, 1), scale)
    scale = scale.to(torch.bfloat16).float()
    bias = torch.where(on_grid, edge, 0).to(torch.bfloat16).float()
    q = torch.round((groups - bias[..., None]) / scale[..., None]).clamp(0, levels)
    return q.flatten(-2), scale, bias


def dequantize(q, scale, bias):
    groups = q.unflatten(-1, (-1, GROUP)) * scale[..., None] + bias[..., None]
    return groups.flatten(-2)


def fake_quantize(weight, bits):
    """The value the file would hold, with the gradient of the identity (straight-through estimator)."""
    with torch.no_grad():
        change = dequantize(*affine(weight, bits)) - weight
    return weight + change


def pack(q, bits):
    """q [.., in] of integers -> uint32 words [.., in * bits / 32]."""
    per_word = 32 // bits
    assert bits in (4, 8), "3, 5 and 6 bits straddle words and are not used here"
    words = q.to(torch.int64).unflatten(-1, (-1, per_word)) << (torch.arange(per_word) * bits)
    return words.sum(-1).to(torch.uint32)


def unpack(words, bits):
    per_word = 32 // bits
    values = words.to(torch.int64)[..., None] >> (torch.arange(per_word) * bits)
    return (values & (2 ** bits - 1)).flatten(-2).float()
