"""GGUF files of DeepSeek-V3, DeepSeek-V4, GLM-4.5, MiniMax-M2 and Kimi-Linear as llama.cpp's converter writes them, and back again.

The converter stacks experts. Of DeepSeek-V3 it parts the keys and values that are made from latents and transposes the
keys; of GLM it counts the draft layer among the blocks; of DeepSeek-V4 it puts what is under a power of two for each 32
values into blocks, stores what was in 8-bit floats as Q8_0 and tables of experts as numbers of 32 bits. `read` undoes it,
so that transformers computes the reference from the very values in the file.
"""

import json
import pathlib
import re

import gguf
import numpy as np
from gguf import quants
from gguf.constants import GGMLQuantizationType as Type

import deepseek_v4
import gguf_format

ARCHITECTURE = {
    "deepseek_v3": "deepseek2",
    "deepseek_v32": "deepseek32",
    "glm_moe_dsa": "glm-dsa",
    "deepseek_v4": "deepseek4",
    "glm4_moe": "glm4moe",
    "minimax_m2": "minimax-m2",
    "kimi_linear": "kimi-linear",
}
SIGMOID, SQRT_SOFTPLUS = 2, 4  # numbers of what experts are weighed by
LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_a_proj.weight": "attn_q_a.weight",
    "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight",
    "self_attn.q_b_proj.weight": "attn_q_b.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
    "self_attn.indexer.wq_b.weight": "indexer.attn_q_b.weight",
    "self_attn.indexer.wk.weight": "indexer.attn_k.weight",
    "self_attn.indexer.k_norm.weight": "indexer.k_norm.weight",
    "self_attn.indexer.k_norm.bias": "indexer.k_norm.bias",
    "self_attn.indexer.weights_proj.weight": "indexer.proj.weight",
    **{f"self_attn.{part}_conv1d.weight": f"ssm_conv1d_{part}.weight" for part in "qkv"},
    **{f"self_attn.{gate}_{part}_proj.weight": f"ssm_{gate}_{part}.weight" for gate in "fg" for part in "ab"},
    "self_attn.b_proj.weight": "ssm_beta.weight",
    "self_attn.A_log": "ssm_a",
    "self_attn.dt_bias": "ssm_dt.bias",
    "self_attn.o_norm.weight": "ssm_norm.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
}
# Names of the release of DeepSeek-V4 below a layer.
V4_LAYER = {
    "attn_norm.weight": "attn_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    **{f"hc_{site}_{part}": f"hc_{site}_{part}.weight" for site in ("attn", "ffn") for part in ("fn", "base", "scale")},
    "attn.attn_sink": "attn_sinks.weight",
    "attn.wq_a.weight": "attn_q_a.weight",
    "attn.wq_b.weight": "attn_q_b.weight",
    "attn.q_norm.weight": "attn_q_a_norm.weight",
    "attn.wkv.weight": "attn_kv.weight",
    "attn.kv_norm.weight": "attn_kv_a_norm.weight",
    "attn.wo_a.weight": "attn_output_a.weight",
    "attn.wo_b.weight": "attn_output_b.weight",
    "attn.compressor.ape": "attn_compressor_ape.weight",
    "attn.compressor.wkv.weight": "attn_compressor_kv.weight",
    "attn.compressor.wgate.weight": "attn_compressor_gate.weight",
    "attn.compressor.norm.weight": "attn_compressor_norm.weight",
    "attn.indexer.wq_b.weight": "indexer.attn_q_b.weight",
    "attn.indexer.weights_proj.weight": "indexer.proj.weight",
    "attn.indexer.compressor.ape": "indexer_compressor_ape.weight",
    "attn.indexer.compressor.wkv.weight": "indexer_compressor_kv.weight",
    "attn.indexer.compressor.wgate.weight": "indexer_compressor_gate.weight",
    "attn.indexer.compressor.norm.weight": "indexer_compressor_norm.weight",
    "ffn.gate.weight": "ffn_gate_inp.weight",
    "ffn.gate.bias": "exp_probs_b.bias",
    "ffn.gate.tid2eid": "ffn_gate_tid2eid.weight",
    "ffn.shared_experts.w1.weight": "ffn_gate_shexp.weight",
    "ffn.shared_experts.w2.weight": "ffn_down_shexp.weight",
    "ffn.shared_experts.w3.weight": "ffn_up_shexp.weight",
}
V4_TOP = {
    "embed.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "head.weight": "output.weight",
    **{f"hc_head_{part}": f"output_hc_{part}.weight" for part in ("fn", "base", "scale")},
}
V4_EXPERTS = {"w1": "gate", "w2": "down", "w3": "up"}


def layer_names(family):
    """{name below a layer as released: name below `blk.N.`}"""
    second = {"post_attention_layernorm.weight": "post_attention_norm.weight"} if family == "glm4_moe" else {}
    return LAYER | second


def latent_tensors(net):
    """{name: float32} of a net of latent.py under the names, and in the form, of a GGUF file."""
    out, names = {}, layer_names(net.family)
    for name, value in net.tensors().items():
        short = name.removeprefix(net.prefix)
        if short in gguf_format.TOP:
            out[gguf_format.TOP[short]] = value
            continue
        layer, rest = short.removeprefix("layers.").split(".", 1)
        block = f"blk.{layer}."
        if rest == "mlp.experts.gate_up_proj":
            out[block + "ffn_gate_exps.weight"], out[block + "ffn_up_exps.weight"] = np.split(value, 2, axis=1)
        elif rest == "self_attn.kv_b_proj.weight":
            heads = value.reshape(net.heads, net.plain + net.value, net.rank)
            out[block + "attn_k_b.weight"] = np.moveaxis(heads[:, : net.plain], 1, 2)
            out[block + "attn_v_b.weight"] = heads[:, net.plain :]
        elif rest == "self_attn.A_log":
            out[block + "ssm_a"] = -np.exp(value)
        elif rest.endswith("conv1d.weight"):
            out[block + names[rest]] = value[None]
        else:
            out[block + names[rest]] = value
    if net.family == "glm4_moe":
        # A part of the draft layer, which is a block after the last.
        out[f"blk.{net.layers}.nextn.enorm.weight"] = np.ones(net.hidden, np.float32)
    return out


def add_latent_keys(writer, net, config):
    arch = ARCHITECTURE[net.family]
    context = {"max_position_embeddings": config.get("model_max_length")} | config
    gguf_format.add_common_keys(writer, net, context)
    if net.family == "kimi_linear":
        return add_kimi_keys(writer, net, config)
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    writer.add_uint32(f"{arch}.expert_gating_func", SIGMOID)
    if net.family == "minimax_m2":
        writer.add_feed_forward_length(net.expert_width)
        writer.add_rope_dimension_count(net.rotated)
        return
    writer.add_feed_forward_length(net.dense_width)
    writer.add_leading_dense_block_count(net.dense)
    writer.add_expert_shared_count(net.shared)
    writer.add_expert_weights_scale(net.scale)
    writer.add_expert_weights_norm(net.norm_topk)
    writer.add_uint32(f"{arch}.expert_group_count", net.groups)
    writer.add_uint32(f"{arch}.expert_group_used_count", net.kept)
    if net.family == "glm4_moe":
        writer.add_rope_dimension_count(net.head_dim // 2)
        writer.add_uint32(f"{arch}.nextn_predict_layers", 1)
        return
    writer.add_rope_dimension_count(net.rotated)
    writer.add_kv_lora_rank(net.rank)
    if net.query_rank:
        writer.add_q_lora_rank(net.query_rank)
    writer.add_uint32(f"{arch}.attention.key_length_mla", net.plain + net.rotated)
    writer.add_uint32(f"{arch}.attention.value_length_mla", net.value)
    if net.index_heads:
        writer.add_uint32(f"{arch}.attention.indexer.head_count", net.index_heads)
        writer.add_uint32(f"{arch}.attention.indexer.key_length", net.index_dim)
        writer.add_uint32(f"{arch}.attention.indexer.top_k", net.index_top)
        writer.add_array(f"{arch}.attention.indexer.types", [net.has_indexer(i) for i in range(net.layers)])


def add_kimi_keys(writer, net, config):
    arch = ARCHITECTURE[net.family]
    attends = config["linear_attn_config"]["full_attn_layers"]
    writer.add_array(f"{arch}.attention.head_count_kv", [int(i + 1 in attends) for i in range(net.layers)])
    writer.add_vocab_size(net.vocabulary)
    writer.add_uint32(f"{arch}.ssm.conv_kernel", net.kernel)
    writer.add_uint32(f"{arch}.kda.head_dim", net.linear_dim)
    writer.add_kv_lora_rank(net.rank)
    writer.add_rope_dimension_count(net.rotated)
    writer.add_uint32(f"{arch}.attention.key_length_mla", net.plain + net.rotated)
    writer.add_uint32(f"{arch}.attention.value_length_mla", net.value)
    writer.add_uint32(f"{arch}.expert_gating_func", SIGMOID)
    writer.add_feed_forward_length(net.dense_width)
    writer.add_expert_shared_count(net.shared)
    writer.add_leading_dense_block_count(net.dense)
    writer.add_expert_weights_scale(net.scale)


def write(folder, net, kind):
    """Writes a net of latent.py; matrices are of type `kind` where their rows are whole blocks of it."""
    config = net.config()
    assert not config.get("rope_scaling"), "a stretched rotation has other keys"
    sizes = {"glm4_moe": {"layers": net.layers + 1}}.get(net.family, {})
    if net.family in ("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_linear"):
        sizes = {"kv_heads": 1, "head_dim": net.rank + net.rotated}
    writer = begin(folder, net)
    add_latent_keys(writer, Sizes(net, sizes), config)
    for name, value in latent_tensors(net).items():
        chosen = Type[kind] if value.ndim > 1 and "ffn_gate_inp" not in name else Type.F32
        if value.shape[-1] % gguf.GGML_QUANT_SIZES[chosen][0]:
            chosen = Type.BF16
        if name.rsplit(".", 1)[-1] == "ssm_a":
            chosen = Type.F32
        writer.add_tensor(name, quants.quantize(np.ascontiguousarray(value, np.float32), chosen), raw_dtype=chosen)
    gguf_format.save(writer, folder, net)


class Sizes:
    """A net with some sizes as the format states them."""

    def __init__(self, net, changed):
        self.net, self.changed = net, changed

    def __getattr__(self, name):
        return self.changed[name] if name in self.changed else getattr(self.net, name)


def begin(folder, net):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", ARCHITECTURE[net.family])
    writer.add_type(gguf.GGUFType.MODEL)
    gguf_format.add_tokenizer(writer, net.vocabulary)
    return writer


def write_v4(folder, net):
    """Writes a net of deepseek_v4.py: experts as MXFP4 where they are released so, 8-bit floats as Q8_0."""
    config, stored = net.config(), net.tensors()
    writer = begin(folder, net)
    sizes = {"kv_heads": 1, "layers": net.layers}
    gguf_format.add_common_keys(writer, Sizes(net, sizes), config)
    add_v4_keys(writer, net, config)
    low = {name for name, tensor in stored.items() if tensor.dtype == "F8_E4M3"}
    experts = {}
    plain = deepseek_v4.dequantized(stored)
    for name, tensor in plain.items():
        expert = re.fullmatch(r"layers\.(\d+)\.ffn\.experts\.(\d+)\.(w\d)\.weight", name)
        if name.startswith("mtp."):
            continue
        if expert:
            layer, number, matrix = expert.groups()
            experts.setdefault((layer, matrix), {})[int(number)] = tensor.values()
            continue
        if name in V4_TOP:
            new = V4_TOP[name]
        else:
            layer, rest = name.removeprefix("layers.").split(".", 1)
            new = f"blk.{layer}.{V4_LAYER[rest]}"
        if new.endswith("tid2eid.weight"):
            writer.add_tensor(new, tensor.bits.astype(np.int32))
            continue
        values = np.ascontiguousarray(tensor.values(), np.float32)
        chosen = Type.Q8_0 if name in low else Type.BF16 if tensor.dtype == "BF16" else Type.F32
        writer.add_tensor(new, quants.quantize(values, chosen), raw_dtype=chosen)
    for (layer, matrix), found in experts.items():
        values = np.stack([found[number] for number in range(net.experts)]).astype(np.float32)
        chosen = Type.MXFP4 if net.published else Type[net.dtype]
        blocks = quants.quantize(values, chosen)
        if net.published:
            # The values are those of blocks already: no bit may change.
            assert (quants.dequantize(blocks, chosen) == values).all()
        writer.add_tensor(f"blk.{layer}.ffn_{V4_EXPERTS[matrix]}_exps.weight", blocks, raw_dtype=chosen)
    gguf_format.save(writer, folder, net)


def add_v4_keys(writer, net, config):
    arch, rope = ARCHITECTURE[net.family], config["rope_scaling"]
    count = lambda key, value: writer.add_uint32(f"{arch}.{key}", value)
    number = lambda key, value: writer.add_float32(f"{arch}.{key}", value)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(net.rotated)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    number("rope.scaling.yarn_beta_fast", rope["beta_fast"])
    number("rope.scaling.yarn_beta_slow", rope["beta_slow"])
    writer.add_q_lora_rank(net.query_rank)
    writer.add_sliding_window(net.window)
    writer.add_expert_shared_count(1)
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(True)
    count("expert_gating_func", SQRT_SOFTPLUS)
    for key in ("swiglu_clamp_exp", "swiglu_clamp_shexp"):
        writer.add_array(f"{arch}.{key}", [float(net.limit)] * net.layers)
    count("attention.indexer.head_count", net.index_heads)
    count("attention.indexer.key_length", net.index_dim)
    count("attention.indexer.top_k", net.index_top)
    count("attention.output_group_count", net.groups)
    count("attention.output_lora_rank", net.output_rank)
    writer.add_array(f"{arch}.attention.compress_ratios", config["compress_ratios"])
    number("attention.compress_rope_freq_base", config["compress_rope_theta"])
    count("hyper_connection.count", net.streams)
    count("hyper_connection.sinkhorn_iterations", net.iterations)
    number("hyper_connection.epsilon", config["hc_eps"])
    count("hash_layer_count", net.hashed)
    count("embedding_length_out", net.hidden * net.streams)


def is_of_these(folder):
    config = json.loads(pathlib.Path(folder, "config.json").read_text())
    return gguf_format.is_gguf(folder) and config["model_type"] in ARCHITECTURE


def read(folder):
    """{name: values} as transformers' modules have them."""
    config = json.loads(pathlib.Path(folder, "config.json").read_text())
    found = {}
    for tensor in gguf.GGUFReader(pathlib.Path(folder, "model.gguf")).tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        whole = tensor.tensor_type == Type.I32
        values = tensor.data if whole else quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        found[tensor.name] = np.array(values).reshape(shape)
    if config["model_type"] == "deepseek_v4":
        return read_v4(found)
    names = {new: old for old, new in layer_names(config["model_type"]).items()}
    top, out = {new: old for old, new in gguf_format.TOP.items()}, {}
    for name, value in found.items():
        if name in top:
            out[("" if name == "output.weight" else "model.") + top[name]] = value
            continue
        layer, rest = name.removeprefix("blk.").split(".", 1)
        if int(layer) >= config["num_hidden_layers"]:
            continue
        target = f"model.layers.{layer}."
        if rest == "ffn_gate_exps.weight":
            both = [value, found[f"blk.{layer}.ffn_up_exps.weight"]]
            out[target + "mlp.experts.gate_up_proj"] = np.concatenate(both, axis=1)
        elif rest == "attn_k_b.weight":
            both = [np.moveaxis(value, 1, 2), found[f"blk.{layer}.attn_v_b.weight"]]
            rows = np.concatenate(both, axis=1)
            out[target + "self_attn.kv_b_proj.weight"] = rows.reshape(-1, rows.shape[-1])
        elif rest == "ssm_a":
            out[target + "self_attn.A_log"] = np.log(-value)
        elif rest == "exp_probs_b.bias" and config["model_type"] == "minimax_m2":
            out[target + "mlp.e_score_correction_bias"] = value
        elif rest not in ("ffn_up_exps.weight", "attn_v_b.weight"):
            out[target + names[rest]] = value
    return out


def read_v4(found):
    """The same of DeepSeek-V4, by way of the names of its release."""
    layer, top, out = {new: old for old, new in V4_LAYER.items()}, {new: old for old, new in V4_TOP.items()}, {}
    experts = {f"ffn_{part}_exps.weight": matrix for matrix, part in V4_EXPERTS.items()}
    for name, value in found.items():
        if name in top:
            out[top[name]] = value
            continue
        number, rest = name.removeprefix("blk.").split(".", 1)
        if rest in experts:
            for expert, matrix in enumerate(value):
                out[f"layers.{number}.ffn.experts.{expert}.{experts[rest]}.weight"] = matrix
        else:
            out[f"layers.{number}.{layer[rest]}"] = value
    return deepseek_v4.as_modules(out)
