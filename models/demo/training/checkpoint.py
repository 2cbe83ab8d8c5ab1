"""Reads and writes the shipped checkpoint: MLX layout, affine 4-bit groups of 64, model_type qwen3_5_moe.

Conventions of that layout: prefix `language_model.`; experts stacked as `mlp.switch_mlp.{gate,up,down}_proj`
[experts, out, in]; norm weights stored as 1 + w; conv1d as [C, 4, 1]; A_log in f32; router and shared-expert gate in
8 bits, named as overrides in the configuration.  `transformers_state` gives the same values under the names of
transformers' Qwen3_5MoeForCausalLM, for comparison.
"""
import json
import os

import torch
from safetensors.torch import load_file, save_file

from model import Config, Demo, Linear
from quantize import GROUP, affine, dequantize, pack, unpack

MIXER_NAMES = {"in_proj_qkv": "linear_attn", "in_proj_z": "linear_attn", "in_proj_a": "linear_attn",
               "in_proj_b": "linear_attn", "out_proj": "linear_attn", "q_proj": "self_attn", "k_proj": "self_attn",
               "v_proj": "self_attn", "o_proj": "self_attn"}
MOE_NAMES = {"gate": "gate", "experts_gate": "switch_mlp.gate_proj", "experts_up": "switch_mlp.up_proj",
             "experts_down": "switch_mlp.down_proj", "shared_gate_proj": "shared_expert.gate_proj",
             "shared_up_proj": "shared_expert.up_proj", "shared_down_proj": "shared_expert.down_proj",
             "shared_gate": "shared_expert_gate"}


def modules(model):
    """Yields (file name without `.weight`, Linear) for every quantised matrix."""
    yield "language_model.model.embed_tokens", model.embed
    yield "language_model.lm_head", model.head
    for i, layer in enumerate(model.layers):
        prefix = f"language_model.model.layers.{i}."
        for name, parent in MIXER_NAMES.items():
            if hasattr(layer.mixer, name):
                yield f"{prefix}{parent}.{name}", getattr(layer.mixer, name)
        for name, target in MOE_NAMES.items():
            yield f"{prefix}mlp.{target}", getattr(layer.moe, name)


def plain(model):
    """Yields (file name, parameter, dtype in the file, shape in the file) for every unquantised tensor."""
    bf16, f32 = torch.bfloat16, torch.float32
    yield "language_model.model.norm.weight", model.norm.weight, bf16, (-1,)
    for i, layer in enumerate(model.layers):
        prefix = f"language_model.model.layers.{i}."
        yield prefix + "input_layernorm.weight", layer.input_norm.weight, bf16, (-1,)
        yield prefix + "post_attention_layernorm.weight", layer.post_norm.weight, bf16, (-1,)
        mixer = layer.mixer
        if model.c.is_full(i):
            yield prefix + "self_attn.q_norm.weight", mixer.q_norm.weight, bf16, (-1,)
            yield prefix + "self_attn.k_norm.weight", mixer.k_norm.weight, bf16, (-1,)
        else:
            yield prefix + "linear_attn.norm.weight", mixer.norm.weight, bf16, (-1,)
            yield prefix + "linear_attn.A_log", mixer.A_log, f32, (-1,)
            yield prefix + "linear_attn.dt_bias", mixer.dt_bias, bf16, (-1,)
            yield prefix + "linear_attn.conv1d.weight", mixer.conv, bf16, (*mixer.conv.shape, 1)


def configuration(c, vocabulary):
    """config.json; `vocabulary` maps special token text to id."""
    half = int(c.head_dim * c.partial_rotary_factor) // 2
    side = half // 3
    text = {key: value for key, value in c.as_dict().items() if key not in ("rope_theta", "partial_rotary_factor")}
    text.update({
        "model_type": "qwen3_5_moe_text", "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0,
        "attn_output_gate": True, "mamba_ssm_dtype": "float32", "mlp_only_layers": [], "mtp_num_hidden_layers": 0,
        "max_position_embeddings": 4096, "tie_word_embeddings": False, "router_aux_loss_coef": 0.01,
        "layer_types": ["full_attention" if c.is_full(i) else "linear_attention" for i in range(c.num_hidden_layers)],
        "bos_token_id": None, "eos_token_id": vocabulary["<|endoftext|>"], "pad_token_id": None, "dtype": "bfloat16",
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_theta,
                            "partial_rotary_factor": c.partial_rotary_factor,
                            "mrope_section": [half - 2 * side, side, side], "mrope_interleaved": True}})
    quantization = {"group_size": GROUP, "bits": 4, "mode": "affine"}
    for i in range(c.num_hidden_layers):
        for name in ("gate", "shared_expert_gate"):
            quantization[f"language_model.model.layers.{i}.mlp.{name}"] = {"group_size": GROUP, "bits": 8}
    return {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
            "tie_word_embeddings": False, "dtype": "bfloat16", "text_config": text,
            "quantization": quantization, "quantization_config": quantization}


def save(model, folder, vocabulary):
    """Writes config.json, generation_config.json and model.safetensors."""
    os.makedirs(folder, exist_ok=True)
    tensors = {}
    for name, linear in modules(model):
        q, scale, bias = affine(linear.weight.detach().cpu(), linear.bits)
        tensors[name + ".weight"] = pack(q, linear.bits)
        tensors[name + ".scales"] = scale.to(torch.bfloat16)
        tensors[name + ".biases"] = bias.to(torch.bfloat16)
    for name, parameter, dtype, shape in plain(model):
        tensors[name] = parameter.detach().cpu().to(dtype).reshape(shape).contiguous()
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "mlx"})
    generation = {"eos_token_id": [vocabulary["<|im_end|>"], vocabulary["<|endoftext|>"]],
                  "pad_token_id": vocabulary["<|endoftext|>"], "do_sample": False}
    for name, content in (("config.json", configuration(model.c, vocabulary)), ("generation_config.json", generation)):
        with open(os.path.join(folder, name), "w") as file:
            json.dump(content, file, indent=2)
            file.write("\n")


def read_config(folder):
    with open(os.path.join(folder, "config.json")) as file:
        text = json.load(file)["text_config"]
    values = {key: text[key] for key in Config().as_dict() if key in text}
    rope = text["rope_parameters"]
    return Config(**values, rope_theta=rope["rope_theta"], partial_rotary_factor=rope["partial_rotary_factor"])


@torch.no_grad()
def load(folder, dtype=torch.float32):
    """The checkpoint as a Demo model with dequantised weights."""
    model = Demo(read_config(folder), dtype)
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    for name, linear in modules(model):
        q = unpack(tensors.pop(name + ".weight"), linear.bits)
        scale, bias = tensors.pop(name + ".scales").float(), tensors.pop(name + ".biases").float()
        linear.weight.copy_(dequantize(q, scale, bias))
    for name, parameter, _, _ in plain(model):
        parameter.copy_(tensors.pop(name).float().reshape(parameter.shape))
    assert not tensors, f"unknown tensors: {sorted(tensors)[:5]}"
    return model.eval()


def transformers_state(model):
    """state_dict of Qwen3_5MoeForCausalLM (fused experts, norms as w, conv [C, 1, 4]) from a Demo model."""
    state = {}
    for name, linear in modules(model):
        state[name + ".weight"] = linear.weight.detach().clone()
    for name, parameter, _, _ in plain(model):
        value = parameter.detach().clone()
        if "norm" in name and "linear_attn" not in name:
            value = value - 1
        state[name] = value[:, None] if "conv1d" in name else value
    for i in range(model.c.num_hidden_layers):
        prefix = f"language_model.model.layers.{i}.mlp."
        gate, up, down = (state.pop(f"{prefix}switch_mlp.{p}_proj.weight") for p in ("gate", "up", "down"))
        state[prefix + "experts.gate_up_proj"] = torch.cat([gate, up], 1)
        state[prefix + "experts.down_proj"] = down
    return {name.removeprefix("language_model."): value for name, value in state.items()}
