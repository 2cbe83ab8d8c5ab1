"""GGUF files of Gemma-4 with experts as llama.cpp's converter writes them, and back again.

The converter writes what a router multiplies and what experts' weights are multiplied by as tensors `.scale`, and the
rotation of layers without a window as factors of frequencies: 1, or 1e30 for pairs that do not turn.
"""

import pathlib

import gguf
import numpy as np
from gguf import quants
from gguf.constants import GGMLQuantizationType as Type

import gemma4
import gguf_format

ARCHITECTURE = "gemma4"
LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "layer_scalar": "layer_output_scale.weight",
}


def write(folder, net, kind, by_layer=True):
    """Writes `net`; matrices are of type `kind` where their rows are whole blocks of it. `by_layer` states heads of keys
    for each layer."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = gemma4.text_config(net.config())
    writer = gguf.GGUFWriter(folder / "model.gguf", ARCHITECTURE)
    writer.add_type(gguf.GGUFType.MODEL)
    gguf_format.add_tokenizer(writer, net.vocabulary)
    add_keys(writer, net, config, by_layer)
    pairs = net.full_head_dim // 2
    turning = int(net.full_head_dim * net.rotary / 2)
    tensors = {"rope_freqs.weight": np.array([1.0] * turning + [1e30] * (pairs - turning), np.float32)}
    for name, value in net.tensors().items():
        short = name.removeprefix(net.prefix)
        if short in gguf_format.TOP:
            tensors[gguf_format.TOP[short]] = value
        else:
            layer, rest = short.removeprefix("layers.").split(".", 1)
            tensors[f"blk.{layer}.{LAYER[rest]}"] = value
    for name, value in tensors.items():
        chosen = Type[kind] if value.ndim > 1 and "ffn_gate_inp" not in name else Type.F32
        if value.shape[-1] % gguf.GGML_QUANT_SIZES[chosen][0]:
            chosen = Type.BF16
        writer.add_tensor(name, quants.quantize(np.ascontiguousarray(value, np.float32), chosen), raw_dtype=chosen)
    gguf_format.save(writer, folder, net)


def add_keys(writer, net, config, by_layer):
    windows = [not net.is_full(layer) for layer in range(net.layers)]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_block_count(net.layers)
    writer.add_embedding_length(net.hidden)
    writer.add_feed_forward_length(net.dense_width)
    writer.add_head_count(net.heads)
    heads = [net.kv_heads if window else net.full_kv_heads for window in windows]
    writer.add_head_count_kv(heads if by_layer else net.kv_heads)
    for length, dim in (("", net.full_head_dim), ("_swa", net.head_dim)):
        for side in ("key", "value"):
            writer.add_uint32(f"{ARCHITECTURE}.attention.{side}_length{length}", dim)
        writer.add_uint32(f"{ARCHITECTURE}.rope.dimension_count{length}", dim)
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    writer.add_float32(f"{ARCHITECTURE}.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_sliding_window(net.window)
    writer.add_array(f"{ARCHITECTURE}.attention.sliding_window_pattern", windows)
    writer.add_uint32(f"{ARCHITECTURE}.attention.shared_kv_layers", 0)
    writer.add_uint32(f"{ARCHITECTURE}.embedding_length_per_layer_input", 0)
    writer.add_expert_count(net.experts)
    writer.add_expert_used_count(net.top_k)
    writer.add_expert_feed_forward_length(net.expert_width)
    if net.softcap:
        writer.add_float32(f"{ARCHITECTURE}.final_logit_softcapping", net.softcap)


def read(folder):
    """{name: values} as transformers' text model has them."""
    layer = {new: old for old, new in LAYER.items()}
    top, out = {new: old for old, new in gguf_format.TOP.items()}, {}
    for tensor in gguf.GGUFReader(pathlib.Path(folder, "model.gguf")).tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        value = quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
        if tensor.name in top:
            out[("" if tensor.name == "output.weight" else "model.") + top[tensor.name]] = value
        elif tensor.name.startswith("blk."):
            number, rest = tensor.name.removeprefix("blk.").split(".", 1)
            out[f"model.layers.{number}.{layer[rest]}"] = value
    return out
