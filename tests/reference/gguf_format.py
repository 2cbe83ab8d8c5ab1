"""GGUF checkpoints by the format's own Python package: what llama.cpp's converter changes, and back again.

The converter stacks experts, adds one to zero-centred norms, stores `-exp(A_log)`, drops an axis of the convolution and
moves value heads of the delta rule: head `g * share + r` becomes head `r * key_heads + g`, in the rows that make the
values, their gates, decays and strengths, and in the columns of the output. Of Qwen3-Next it leaves the heads where they
are and parts queries, keys and values of all heads from their gates (older files have them whole). `write` does the same
from a net;
`read_as_hugging_face` undoes it, so that transformers computes the reference from the very values in the file.

Formats that the package can quantise hold the net's values. Of the others it only decodes: blocks of them are drawn at
random, with scales that give the values the spread that the net's have.
"""

import json
import pathlib
import tempfile

import gguf
import numpy as np
from gguf import quants
from gguf.constants import GGMLQuantizationType as Type

import tokenizer_files

# Tensors that quantisers leave in binary32.
PLAIN = (
    "norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_a", "ssm_dt.bias", "conv1d.weight",
    "ple_norm_key.weight", "ple_norm_query.weight", "ple_norm_conv.weight",
)
# Byte of the scale in binary16, and of the minimum with its share of the scale, in blocks that are drawn.
SCALES = {
    Type.Q2_K: (80, 82, 1.5), Type.Q3_K: (108, None, 0), Type.Q4_K: (0, 2, 7.5), Type.Q5_K: (0, 2, 15.5),
    Type.Q6_K: (208, None, 0), Type.IQ4_NL: (0, None, 0), Type.IQ4_XS: (0, None, 0),
    Type.IQ2_XXS: (0, None, 0), Type.IQ2_XS: (0, None, 0),
    Type.IQ2_S: (0, None, 0), Type.IQ3_XXS: (0, None, 0), Type.IQ3_S: (0, None, 0), Type.IQ1_S: (0, None, 0),
}
LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.in_proj_qkvz.weight": "ssm_in.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
}
TOP = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
SECOND_NORM = {
    "qwen3_moe": "ffn_norm.weight",
    "qwen3_5_moe": "post_attention_norm.weight",
    "qwen3_next": "post_attention_norm.weight",
}
ARCHITECTURE = {
    "qwen3_moe": "qwen3moe", "qwen3_5_moe": "qwen35moe", "qwen3_next": "qwen3next", "qwen4_exp": "qwen4exp",
}
TILED = ("qwen3_5_moe", "qwen4_exp")  # whose value heads the converter moves


def tile(rows, key_heads, heads):
    """Moves value heads along the first axis from grouped to tiled order."""
    grouped = rows.reshape(key_heads, heads // key_heads, -1, *rows.shape[1:])
    return np.ascontiguousarray(grouped.swapaxes(0, 1)).reshape(rows.shape)


def untile(rows, key_heads, heads):
    """The inverse of `tile`."""
    return tile(rows, heads // key_heads, heads)


def move_heads(name, value, config, move):
    """Applies `move` to what value heads own of a tensor."""
    nk, nv = config["linear_num_key_heads"], config["linear_num_value_heads"]
    keys = 2 * nk * config["linear_key_head_dim"]
    if name.endswith(("attn_qkv.weight", "ssm_conv1d.weight")):
        return np.concatenate([value[:keys], move(value[keys:], nk, nv)])
    if name.endswith(("attn_gate.weight", "ssm_alpha.weight", "ssm_beta.weight", "ssm_a", "ssm_dt.bias")):
        return move(value, nk, nv)
    if name.endswith("ssm_out.weight"):
        return np.ascontiguousarray(move(np.ascontiguousarray(value.T), nk, nv).T)
    return value


def head_parts(config):
    """Heads of keys, and rows of query, key, values and gates of each."""
    heads, width = config["linear_num_key_heads"], config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
    return heads, [width, width, values, values]


def part_heads(rows, config):
    """Queries, keys and values of all heads, and their gates, out of the rows that lie together by key head."""
    heads, parts = head_parts(config)
    by_head = rows.reshape(heads, sum(parts), -1)
    *qkv, z = (part.reshape(-1, rows.shape[1]) for part in np.split(by_head, np.cumsum(parts)[:-1], axis=1))
    return np.concatenate(qkv), z


def join_heads(qkv, z, config):
    """The inverse of `part_heads`."""
    heads, (width, _, values, _) = head_parts(config)
    q, k, v = np.split(qkv, np.cumsum([heads * width, heads * width]))
    parts = [part.reshape(heads, -1, qkv.shape[1]) for part in (q, k, v, z)]
    return np.concatenate(parts, axis=1).reshape(-1, qkv.shape[1])


def is_shifted_norm(name, family):
    """Norms that the converter adds one to."""
    norm = name.endswith("norm.weight") or ".ple_norm_" in name
    return family != "qwen3_moe" and norm and not name.endswith("ssm_norm.weight")


def text_config(config):
    return config.get("text_config", config)


def gguf_tensors(net, fused, whole):
    """The tensors of `net` under the names, and with the values, of a GGUF file."""
    config, out = text_config(net.config()), {}
    for name, value in net.tensors().items():
        short = name.removeprefix(net.prefix)
        if short in TOP:
            new = TOP[short]
        else:
            layer, rest = short.removeprefix("layers.").split(".", 1)
            if rest == "mlp.experts.gate_up_proj":
                if fused:
                    out[f"blk.{layer}.ffn_gate_up_exps.weight"] = value
                else:
                    gate, up = np.split(value, 2, axis=1)
                    out[f"blk.{layer}.ffn_gate_exps.weight"], out[f"blk.{layer}.ffn_up_exps.weight"] = gate, up
                continue
            if rest == "linear_attn.in_proj_qkvz.weight" and not whole:
                out[f"blk.{layer}.attn_qkv.weight"], out[f"blk.{layer}.attn_gate.weight"] = part_heads(value, config)
                continue
            rest = SECOND_NORM[net.family] if rest == "post_attention_layernorm.weight" else LAYER[rest]
            new = f"blk.{layer}.{rest}"
        out[new] = converted(new, value, net.family, config)
    return out


def converted(new, value, family, config):
    """What the converter stores under the name `new`."""
    if is_shifted_norm(new, family):
        value = value + 1
    if new.endswith("ssm_a"):
        value = -np.exp(value)
    if new.endswith("conv1d.weight"):
        value = value[:, 0]
    if new.endswith("ffn_gate_inp_shexp.weight"):
        value = value[0]
    if family in TILED:
        value = move_heads(new, value, config, tile)
    return np.ascontiguousarray(value, np.float32)


def restored(new, value, family, config):
    """The inverse of `converted`."""
    if family in TILED:
        value = move_heads(new, value, config, untile)
    if is_shifted_norm(new, family):
        value = value - 1
    if new.endswith("ssm_a"):
        value = np.log(-value)
    if new.endswith("conv1d.weight"):
        value = value[:, None]
    if new.endswith("ffn_gate_inp_shexp.weight"):
        value = value.reshape(1, -1)
    return value


def values(tensor):
    """The values of a tensor of a file."""
    shape = [int(size) for size in reversed(tensor.shape)]
    return quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)


def draw_blocks(name, value, kind, seed):
    """Random blocks of `kind` for a tensor, with about the spread of `value`."""
    values, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng([seed, len(name), sum(name.encode())])
    shape = (*value.shape[:-1], value.shape[-1] // values, size)
    blocks = rng.integers(0, 256, shape, np.uint8)
    scale = 1.0
    for _ in range(2):
        at, minimum, share = SCALES[kind]
        spread = rng.uniform(0.7, 1.3, (*shape[:-1], 1))
        put = lambda at, numbers: blocks.__setitem__(
            (..., slice(at, at + 2)), np.ascontiguousarray(numbers.astype(np.float16)).view(np.uint8)
        )
        put(at, spread * scale)
        if minimum is not None:
            put(minimum, spread * scale * share)
        rows = blocks.reshape(*value.shape[:-1], -1)
        scale *= float(value.std() / quants.dequantize(rows, kind).std())
    return rows


def encode(name, value, kind, seed):
    """A tensor's data in `kind`, or in the next one that its rows fit."""
    if name.endswith(PLAIN):
        kind = Type.F32
    if value.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = Type.Q8_0 if value.shape[-1] % 32 == 0 else Type.F16
    if kind in SCALES:
        return draw_blocks(name, value, kind, seed), kind
    return quants.quantize(value, kind), kind


def add_tokenizer(writer, vocabulary):
    with tempfile.TemporaryDirectory() as folder:
        tokenizer_files.write(folder, vocabulary)
        whole = json.loads(pathlib.Path(folder, "tokenizer.json").read_text())
        settings = json.loads(pathlib.Path(folder, "tokenizer_config.json").read_text())
    texts = {id: text for text, id in whole["model"]["vocab"].items()}
    controls = {token["id"]: token["content"] for token in whole["added_tokens"]}
    texts |= controls
    size = max(texts) + 1
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list([texts.get(id, f"[PAD{id}]") for id in range(size)])
    kinds = [3 if id in controls else 1 if id in texts else 5 for id in range(size)]
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in whole["model"]["merges"]])
    by_text = {text: id for id, text in controls.items()}
    writer.add_eos_token_id(by_text[settings["eos_token"]])
    writer.add_pad_token_id(by_text[settings["pad_token"]])
    writer.add_add_bos_token(False)
    writer.add_chat_template(settings["chat_template"])


def add_common_keys(writer, net, config):
    """The keys that every architecture has."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_block_count(net.layers)
    writer.add_embedding_length(net.hidden)
    writer.add_head_count(net.heads)
    writer.add_head_count_kv(net.kv_heads)
    writer.add_key_length(net.head_dim)
    writer.add_value_length(net.head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_count(net.experts)
    writer.add_expert_used_count(net.top_k)
    writer.add_expert_feed_forward_length(net.expert_width)


def add_keys(writer, net):
    text = text_config(net.config())
    add_common_keys(writer, net, text)
    if net.family == "qwen3_moe":
        writer.add_rope_freq_base(text["rope_theta"])
        return
    rope = text.get("rope_parameters", text)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(net.head_dim * rope["partial_rotary_factor"]))
    if "mrope_section" in rope:
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    writer.add_expert_shared_feed_forward_length(net.shared_width)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_state_size(net.linear_dim)
    writer.add_ssm_group_count(net.key_heads)
    writer.add_ssm_time_step_rank(net.value_heads)
    writer.add_ssm_inner_size(net.linear_dim * net.value_heads)
    writer.add_full_attention_interval(net.interval)


def write(folder, net, kind, *, fused=False, whole=False, parts=0):
    """Writes `net`; `kind(name)` is the type of a tensor. With `parts`, at most so many tensors a file.

    `fused` has gate and up of the experts in one tensor; `whole` has the delta rule's inputs as old files do.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    split = {"split_max_tensors": parts, "small_first_shard": True} if parts else {}
    writer = gguf.GGUFWriter(folder / "model.gguf", ARCHITECTURE[net.family], **split)
    writer.add_type(gguf.GGUFType.MODEL)
    add_keys(writer, net)
    add_tokenizer(writer, net.vocabulary)
    for name, value in gguf_tensors(net, fused, whole).items():
        data, chosen = encode(name, value, kind(name), net.seed)
        writer.add_tensor(name, data, raw_dtype=chosen)
    save(writer, folder, net)


def save(writer, folder, net):
    """Writes the file, and config.json as publishers put it beside: transformers needs it, flashmoe must not."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (folder / "config.json").write_text(json.dumps(net.config(), indent=2))


def is_gguf(folder):
    return any(pathlib.Path(folder).glob("*.gguf"))


def read_as_hugging_face(folder):
    """The values in GGUF files as {name: float32} under the Hugging Face ForCausalLM names."""
    config = json.loads(pathlib.Path(folder, "config.json").read_text())
    family, text = config["model_type"].removesuffix("_text"), text_config(config)
    layer = {new: old for old, new in LAYER.items()} | {SECOND_NORM[family]: "post_attention_layernorm.weight"}
    top, out = {new: old for old, new in TOP.items()}, {}
    for file in sorted(pathlib.Path(folder).glob("*.gguf")):
        for tensor in gguf.GGUFReader(file).tensors:
            new = tensor.name
            value = restored(new, values(tensor), family, text)
            if new in top:
                out[("" if new == "output.weight" else "model.") + top[new]] = value
                continue
            block, rest = new.removeprefix("blk.").split(".", 1)
            if rest == "ffn_gate_up_exps.weight":
                rest = "mlp.experts.gate_up_proj"
            elif rest in layer:
                rest = layer[rest]
            out[f"model.layers.{block}.{rest}"] = value
    for name in [n for n in out if n.endswith("ffn_gate_exps.weight")]:
        p = name.removesuffix("ffn_gate_exps.weight")
        both = [out.pop(p + "ffn_gate_exps.weight"), out.pop(p + "ffn_up_exps.weight")]
        out[p + "mlp.experts.gate_up_proj"] = np.concatenate(both, axis=1)
    if family == "qwen3_next":
        for name in [n for n in out if n.endswith("linear_attn.in_proj_qkv.weight")]:
            p = name.removesuffix("qkv.weight")
            out[p + "qkvz.weight"] = join_heads(out.pop(name), out.pop(p + "z.weight"), text)
    return out
