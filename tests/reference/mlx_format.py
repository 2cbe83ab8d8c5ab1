"""MLX checkpoints in numpy: affine group quantisation, bit packing, tensor names.

The packer writes combinations that mlx-lm's own converter does not offer (any recipe of bits and
group sizes per tensor, scale types that differ from the model's, data at odd offsets); the reader
takes every MLX checkpoint, mlx-lm's included, back to float32 weights under Hugging Face names,
from which transformers computes the reference. What the two must agree on:

    value = q * scale + bias      q unsigned, one scale and bias per group along the input
    value i of a row occupies bits [i * bits, (i + 1) * bits) of its little-endian bit stream
"""

import json
import pathlib

import numpy as np

import safetensors_file
from safetensors_file import Stored, encode

PACKED = (
    "_proj.weight",
    "embed_tokens.weight",
    "lm_head.weight",
    "mlp.gate.weight",
    "kv_a_proj_with_mqa.weight",
    "shared_expert_gate.weight",
    "in_proj_qkv.weight",
    "in_proj_z.weight",
    "in_proj_a.weight",
    "in_proj_b.weight",
    "in_proj_qkvz.weight",
    "in_proj_ba.weight",
)

# Stored in full even so.
F32 = ("A_log", "e_score_correction_bias")


def pack_bits(q, bits):
    """uint8 values [.., n] -> uint32 words [.., n * bits / 32]."""
    planes = (q[..., None] >> np.arange(bits, dtype=np.uint8)) & 1
    stream = np.packbits(planes.reshape(*q.shape[:-1], -1), axis=-1, bitorder="little")
    return np.ascontiguousarray(stream).view(np.uint32)


def unpack_bits(words, bits):
    """uint32 words [.., n * bits / 32] -> uint8 values [.., n]."""
    stream = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    planes = stream.reshape(*words.shape[:-1], -1, bits)
    return (planes << np.arange(bits, dtype=np.uint8)).sum(-1, dtype=np.uint8)


def quantize(weight, bits, group, scale_dtype):
    """Min/max affine quantisation of [.., n]; returns (weight, scales, biases) as Stored."""
    groups = weight.reshape(*weight.shape[:-1], -1, group)
    low, high = groups.min(-1), groups.max(-1)
    step = np.maximum((high - low) / (2**bits - 1), np.float32(1e-7))
    scales, biases = encode(step, scale_dtype), encode(low, scale_dtype)
    q = np.rint((groups - biases.values()[..., None]) / scales.values()[..., None])
    q = np.clip(q, 0, 2**bits - 1).astype(np.uint8).reshape(weight.shape)
    return Stored("U32", pack_bits(q, bits)), scales, biases


def dequantize(words, scales, biases, bits, group):
    q = unpack_bits(words, bits).astype(np.float32)
    groups = q.reshape(*q.shape[:-1], -1, group)
    return (groups * scales[..., None] + biases[..., None]).reshape(q.shape)


def write(folder, net, recipe, *, dtype="BF16", scale_dtype=None, group=64, bits=4, mode=True, shifted=True):
    """Writes `net` as an MLX checkpoint.

    recipe(path) -> None for the default (bits, group), False to leave a tensor unquantised, or
    (bits, group): an override, recorded in config.json under the module path.
    `mode=False` leaves out the "mode" key, as older files do; `shifted=False` has norms around zero, as files of
    Qwen3.8-Flash-Next do.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"group_size": group, "bits": bits} | ({"mode": "affine"} if mode else {})
    stored = {}
    for name, value in mlx_tensors(net, shifted).items():
        if isinstance(value, Stored):
            stored[name] = value
            continue
        path, packed = name.removesuffix(".weight"), name.endswith(PACKED) or ".ngram_embedding." in name
        choice = recipe(path) if packed else False
        if choice is None:
            choice = (bits, group)
        elif packed:
            settings[path] = choice and {"bits": choice[0], "group_size": choice[1]}
        if choice:
            packed = quantize(value, *choice, scale_dtype or dtype)
            stored |= zip((name, path + ".scales", path + ".biases"), packed)
        else:
            stored[name] = encode(value, "F32" if name.endswith(F32) else dtype)
    order = np.random.default_rng(net.seed).permutation(sorted(stored))  # MLX writes hash order
    safetensors_file.write(
        folder / "model.safetensors",
        {name: stored[name] for name in order},
        pad_header=False,
        metadata={"format": "mlx"},
    )
    config = net.config() | {"quantization": settings, "quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def mlx_tensors(net, shifted=True):
    """The tensors of `net` under MLX names, with MLX's norms and convolution layout."""
    out = {}
    for name, value in net.tensors().items():
        name = "language_model." * (net.family in ("qwen3_5_moe", "qwen4_exp")) + name.replace(
            "model.language_model.", "model."
        )
        if name.endswith("experts.gate_up_proj"):
            p = name.replace("experts.gate_up_proj", "switch_mlp.")
            gate, up = np.split(value, 2, axis=1)
            out[p + "gate_proj.weight"], out[p + "up_proj.weight"] = gate, up
        elif name.endswith("experts.down_proj"):
            out[name.replace("experts.", "switch_mlp.") + ".weight"] = value
        elif name.endswith("conv1d.weight"):
            out[name] = np.moveaxis(value, 1, 2)
        else:
            out[name] = value + 1 if shifted and is_shifted_norm(name, net.family) else value
    return out


def is_shifted_norm(name, family):
    """Norms that Hugging Face stores as w and MLX as 1 + w."""
    norm = name.endswith(("norm.weight", "norm_key.weight", "norm_query.weight", "norm_conv.weight"))
    norm = norm and not name.endswith("linear_attn.norm.weight")
    return norm and family in ("qwen3_5_moe", "qwen3_next", "qwen4_exp")


def read_as_hugging_face(folder):
    """Dequantises an MLX checkpoint to {name: float32} under the Hugging Face ForCausalLM names."""
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text())
    stored = {}
    for file in sorted(folder.glob("*.safetensors")):
        stored |= safetensors_file.read(file)
    settings, out, family = config.get("quantization", {}), {}, config["model_type"].removesuffix("_text")
    telling = [tensor for name, tensor in stored.items() if name.endswith("layers.0.attn_hyper_connection.hc_norm.weight")]
    shifted = not telling or float(telling[0].values().mean()) > 0.5
    for name, tensor in stored.items():
        if name.endswith((".scales", ".biases")):
            continue
        value, path = tensor.values(), name.removesuffix(".weight")
        if path + ".scales" in stored:
            own = settings.get(path)
            chosen = own if isinstance(own, dict) else settings
            scales, biases = (stored[path + end].values() for end in (".scales", ".biases"))
            value = dequantize(tensor.bits, scales, biases, chosen["bits"], chosen["group_size"])
        if name.endswith("conv1d.weight"):
            value = np.moveaxis(value, 2, 1)
        if shifted and is_shifted_norm(name, family):
            value = value - 1
        name = name.removeprefix("language_model.").replace("experts.switch_glu.", "switch_mlp.")  # Gemma-4
        if value.ndim == 3:
            # mlx-lm's dots.llm1 keeps the name of the release for experts that it stacks.
            name = name.replace(".mlp.experts.", ".mlp.switch_mlp.")
        out[name] = np.ascontiguousarray(value)
    for name in [n for n in out if n.endswith(".ngram_embedding.shard_0.weight")]:
        p, parts = name.removesuffix("shard_0.weight"), []
        while f"{p}shard_{len(parts)}.weight" in out:
            parts.append(out.pop(f"{p}shard_{len(parts)}.weight"))
        out[p + "weight"] = np.concatenate(parts)
    for name in [n for n in out if n.endswith("switch_mlp.gate_proj.weight")]:
        p = name.removesuffix("switch_mlp.gate_proj.weight")
        gate, up, down = (out.pop(f"{p}switch_mlp.{x}_proj.weight") for x in ("gate", "up", "down"))
        out[p + "experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        out[p + "experts.down_proj"] = down
    return out


def is_mlx(folder):
    """Whether MLX wrote the checkpoint: it is quantised its way, or its convolution weights are
    [channels, kernel, 1]. No other marker is reliable."""
    folder = pathlib.Path(folder)
    if "quantization" in json.loads((folder / "config.json").read_text()):
        return True
    for file in folder.glob("*.safetensors"):
        for name, tensor in safetensors_file.read(file).items():
            if name.endswith(("conv1d.weight", "switch_mlp.gate_proj.weight", "switch_glu.gate_proj.weight")):
                return "switch_" in name or tensor.bits.shape[-1] == 1
    return False
