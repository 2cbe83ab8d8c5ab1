"""GGUF files of Qwen3.8-Flash-Next as llama.cpp's converter writes them, and back again.

The converter joins the parts of the table of n-grams in one tensor, parts the indexer's queries from its key, and has the
constants of the hash as lists of 64-bit numbers, with layers counted from zero. The rest is as in `gguf_format`.
"""

import json
import pathlib

import gguf
import numpy as np
from gguf import quants
from gguf.constants import GGMLQuantizationType as Type
from gguf.constants import GGUFValueType

import flash_next
import gguf_format

TABLE = "per_layer_token_embd.weight"
PARTS = {"hc_norm": "norm", "input_mix_weight_down": "down", "input_mix_weight_up": "up", "block_inject_weight": "inject"}
LAYER = gguf_format.LAYER | {
    f"{theirs}_hyper_connection.{part}.weight": f"hc_{ours}_{short}.weight"
    for theirs, ours in (("attn", "attn"), ("mlp", "ffn"))
    for part, short in PARTS.items()
} | {
    "self_attn.indexer.q_layernorm.weight": "indexer.q_norm.weight",
    "self_attn.indexer.k_layernorm.weight": "indexer.k_norm.weight",
    "ple.key_proj.weight": "ple_key.weight",
    "ple.value_proj.weight": "ple_value.weight",
    **{f"ple.{part}.weight": f"ple_{part}.weight" for part in ("norm_key", "norm_query", "norm_conv", "conv1d")},
}
TOP = gguf_format.TOP | {
    f"hyper_connection_mixer.{part}.weight": f"output_hc_{short}.weight" for part, short in PARTS.items() if short != "inject"
}
CONSTANTS = {
    "layer_multipliers": "layer_multipliers",
    "ngram_heads_vocab_sizes": "head_vocab_sizes",
    "ngram_heads_offsets": "head_offsets",
}
QUERY_KEY = "self_attn.indexer.index_qk_proj.weight"


def constants(net):
    """{name of a key: numbers} of the hash."""
    stored = {name.rsplit(".", 1)[1]: tensor for name, tensor in net.tensors().items() if hasattr(tensor, "bits")}
    return {theirs: [int(number) for number in stored[ours].bits] for ours, theirs in CONSTANTS.items()}


def tensors(net):
    """{name: float32} of a file."""
    config, out, parts = gguf_format.text_config(net.config()), {}, []
    for name, value in net.tensors().items():
        short = name.removeprefix(net.prefix)
        if hasattr(value, "bits"):
            continue
        if ".ngram_embedding." in short:
            parts.append(value)
            continue
        if short in TOP:
            out[TOP[short]] = gguf_format.converted(TOP[short], value, net.family, config)
            continue
        layer, rest = short.removeprefix("layers.").split(".", 1)
        block = f"blk.{layer}."
        if rest == "mlp.experts.gate_up_proj":
            out[block + "ffn_gate_exps.weight"], out[block + "ffn_up_exps.weight"] = np.split(value, 2, axis=1)
        elif rest == QUERY_KEY:
            out[block + "indexer.q_proj.weight"] = value[: -net.index_dim]
            out[block + "indexer.k_proj.weight"] = value[-net.index_dim :]
        else:
            out[block + LAYER[rest]] = gguf_format.converted(LAYER[rest], value, net.family, config)
    out[TABLE] = np.concatenate(parts)
    return out


def write(folder, net, kind, table):
    """Writes a net of flash_next.py; matrices are of type `kind` where their rows are whole blocks of it."""
    (layer,) = net.ngram_layers
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", "qwen4exp")
    writer.add_type(gguf.GGUFType.MODEL)
    gguf_format.add_keys(writer, net)
    gguf_format.add_tokenizer(writer, net.vocabulary)
    count = lambda key, value: writer.add_uint32(f"qwen4exp.{key}", value)
    count("hyper_connection.count", net.streams)
    count("hyper_connection.low_rank", net.rank)
    count("attention.indexer.head_count", net.index_heads)
    count("attention.indexer.key_length", net.index_dim)
    count("attention.indexer.top_k", net.budget)
    ratios = [net.block if net.is_full_attention(i) else 0 for i in range(net.layers)]
    writer.add_array("qwen4exp.attention.compress_ratios", ratios)
    writer.add_array("qwen4exp.ple.layers", [layer - 1])
    count("ple.ngram_size", net.ngram)
    count("ple.heads_per_ngram", net.ngram_heads)
    count("ple.conv_kernel", net.kernel)
    count("ple.eos_token_id", flash_next.END)
    count("ple.image_token_id", net.config()["image_token_id"])
    count("embedding_length_per_layer_input", net.ngram_width // ((net.ngram - 1) * net.ngram_heads))
    for key, numbers in constants(net).items():
        writer.add_key_value(f"qwen4exp.ple.{key}", numbers, GGUFValueType.ARRAY, GGUFValueType.UINT64)
    for name, value in tensors(net).items():
        data, chosen = gguf_format.encode(name, value, Type[table if name == TABLE else kind], net.seed)
        assert name != TABLE or chosen == Type[table], "a row is whole blocks"
        writer.add_tensor(name, data, raw_dtype=chosen)
    gguf_format.save(writer, folder, net)


def read(folder):
    """The values in a file as {name: array} under transformers' names."""
    config = json.loads(pathlib.Path(folder, "config.json").read_text())["text_config"]
    layers, top, out = {new: old for old, new in LAYER.items()}, {new: old for old, new in TOP.items()}, {}
    reader = gguf.GGUFReader(pathlib.Path(folder, "model.gguf"))
    found = {tensor.name: gguf_format.values(tensor) for tensor in reader.tensors}
    embedding = f"model.layers.{config['ple_layer_ids'][0] - 1}.ple.ple_embedding."
    out[embedding + "ngram_embedding.weight"] = found.pop(TABLE)
    for ours, theirs in CONSTANTS.items():
        field = reader.get_field(f"qwen4exp.ple.{theirs}")
        out[embedding + ours] = np.array(field.contents(), np.int64)
    for name, value in found.items():
        value = gguf_format.restored(name, value, "qwen4_exp", config)
        if name in top:
            out[("" if name == "output.weight" else "model.") + top[name]] = value
            continue
        layer, rest = name.removeprefix("blk.").split(".", 1)
        out[f"model.layers.{layer}.{layers.get(rest, rest)}"] = value
    for first, second, whole, axis in (
        ("ffn_gate_exps.weight", "ffn_up_exps.weight", "mlp.experts.gate_up_proj", 1),
        ("indexer.q_proj.weight", "indexer.k_proj.weight", QUERY_KEY, 0),
    ):
        for name in [name for name in out if name.endswith(first)]:
            prefix = name.removesuffix(first)
            out[prefix + whole] = np.concatenate([out.pop(name), out.pop(prefix + second)], axis=axis)
    return out
