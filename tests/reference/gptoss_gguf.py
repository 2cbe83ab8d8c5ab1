"""gpt-oss checkpoints as llama.cpp's converter writes them, by the format's own Python package.

The converter parts the rows of gate and up, puts exponents and nibbles of 4-bit floats together in blocks (value `j`
below value `j + 16` of 32), names sinks `attn_sinks.weight`, and says nothing of whether the bounds of the stretched
rotation are whole pairs. `read` gives the values back under transformers' names.
"""

import pathlib

import gguf
import numpy as np
from gguf import quants
from gguf.constants import GGMLQuantizationType as Type

import gguf_format

LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.sinks": "attn_sinks.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.o_proj.bias": "attn_output.bias",
    "mlp.router.weight": "ffn_gate_inp.weight",
    "mlp.router.bias": "ffn_gate_inp.bias",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
} | {f"self_attn.{x}_proj.{part}": f"attn_{x}.{part}" for x in "qkv" for part in ("weight", "bias")}
# Where rows of gate and up lie in turns.
PAIRS = {
    "mlp.experts.gate_up_proj": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "mlp.experts.gate_up_proj_bias": ("ffn_gate_exps.bias", "ffn_up_exps.bias"),
}
PLAIN = ("norm.weight", "bias", "sinks.weight", "ffn_gate_inp.weight")


def blocks_of(nibbles, exponents):
    """Blocks `[.., groups * 17]` of planes `[.., groups, 16]` and `[.., groups]`."""
    codes = np.stack([nibbles & 15, nibbles >> 4], axis=-1).reshape(*nibbles.shape[:-1], 32)
    packed = codes[..., :16] | codes[..., 16:] << 4
    whole = np.concatenate([exponents[..., None], packed], axis=-1).astype(np.uint8)
    return whole.reshape(*nibbles.shape[:-2], -1)


def named(name):
    """The file's names of a tensor of the net."""
    short = name.removeprefix("model.")
    if short in gguf_format.TOP:
        return (gguf_format.TOP[short],)
    layer, rest = short.removeprefix("layers.").split(".", 1)
    return tuple(f"blk.{layer}.{new}" for new in PAIRS.get(rest) or (LAYER[rest],))


def parted(name, rows):
    """A tensor's rows, or those of gate and of up."""
    return (rows,) if len(named(name)) == 1 else (rows[:, ::2], rows[:, 1::2])


def gguf_tensors(net, trunk, experts):
    """{name: (data, type)} of a file: matrices of experts as `experts`, the others as `trunk`."""
    stored, out = net.tensors(), {}

    def add(name, rows, kind):
        for new, part in zip(named(name), parted(name, rows)):
            out[new] = (np.ascontiguousarray(part), kind)

    for name, tensor in stored.items():
        if name.endswith("_blocks"):
            stem = name.removesuffix("_blocks")
            blocks = blocks_of(tensor.bits, stored[stem + "_scales"].bits)
            if experts != Type.MXFP4:
                blocks = quants.quantize(quants.dequantize(blocks, Type.MXFP4), experts)
            add(stem, blocks, experts)
        elif not name.endswith("_scales"):
            values = tensor.values()
            kind = Type.F32 if any(new.endswith(PLAIN) for new in named(name)) else trunk
            add(name, quants.quantize(np.ascontiguousarray(values, np.float32), kind), kind)
    return out


def add_keys(writer, net):
    config = net.config()
    rope = config["rope_scaling"]
    gguf_format.add_common_keys(writer, net, config)
    writer.add_feed_forward_length(net.expert_width)
    writer.add_sliding_window(net.window)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def write(folder, net, trunk, experts):
    """Writes `net` as one file."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", "gpt-oss")
    writer.add_type(gguf.GGUFType.MODEL)
    add_keys(writer, net)
    gguf_format.add_tokenizer(writer, net.vocabulary)
    for name, (data, kind) in gguf_tensors(net, trunk, experts).items():
        writer.add_tensor(name, data, raw_dtype=kind)
    gguf_format.save(writer, folder, net)


def read(folder):
    """{name: float32} as transformers' modules have them: experts' matrices with inputs first, gate and up in turns."""
    found, out = {}, {}
    for tensor in gguf.GGUFReader(pathlib.Path(folder, "model.gguf")).tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        found[tensor.name] = quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
    layers = 1 + max(int(name.split(".")[1]) for name in found if name.startswith("blk."))
    for old, new in gguf_format.TOP.items():
        out[old if old.startswith("lm_head") else f"model.{old}"] = found[new]
    for layer in range(layers):
        for old, news in {**{old: (new,) for old, new in LAYER.items()}, **PAIRS}.items():
            parts = [found[f"blk.{layer}.{new}"] for new in news]
            value = parts[0]
            if len(parts) == 2:
                value = np.stack(parts, axis=2).reshape(len(value), -1, *value.shape[2:])
            if old.endswith(("gate_up_proj", "down_proj")):
                value = np.ascontiguousarray(np.moveaxis(value, 1, 2))
            out[f"model.layers.{layer}.{old}"] = value
    return out
