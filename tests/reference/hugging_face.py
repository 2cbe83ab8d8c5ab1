"""Writes a net as a Hugging Face checkpoint in the layouts found in the wild."""

import json
import pathlib

import latent
import nets
import release
import safetensors_file
from safetensors_file import encode

DTYPE_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def write(folder, net, *, dtype="BF16", linear_f32=True, fused=None, shards=1, skipped=False):
    """Writes `net` to `folder`.

    dtype: of the weights.
    linear_f32: store A_log and the linear-attention norm in float32 as Qwen3.5 does; Qwen3.6
        stores them in the dtype of the model.
    fused: experts in one tensor per layer (the Qwen3.5 releases) or one per expert (Qwen3-MoE,
        and whatever transformers 5 saved); the family's own layout by default.
    shards: number of files; more than one come with an index.
    skipped: add tensors of the vision tower and of multi-token prediction.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    values = net.tensors()
    if fused is None:
        fused = net.family in ("qwen3_5_moe", "qwen4_exp", "gemma4")
    if not fused:
        values = latent.released(nets.unfuse_experts(values), net.family)
    if skipped:
        values |= net.skipped_tensors()

    def stored(name, value):
        if isinstance(value, safetensors_file.Stored):
            return value
        if "moe_statics" in name:
            value = value[None]
        keep = linear_f32 and name.endswith(("A_log", "linear_attn.norm.weight", "e_score_correction_bias"))
        return encode(value, "F32" if keep else dtype)

    tensors = {name: stored(name, value) for name, value in values.items()}
    if shards == 1:
        safetensors_file.write(folder / "model.safetensors", tensors, metadata={"format": "pt"})
    else:
        write_shards(folder, tensors, shards)
    release.configure(folder, net.config(DTYPE_NAMES[dtype]))


def write_shards(folder, tensors, shards):
    """Deals the tensors round-robin, so that the pieces of a layer lie in different files."""
    names = list(tensors)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        safetensors_file.write(folder / file, part, metadata={"format": "pt"})
        weight_map |= {name: file for name in part}
    total = sum(tensor.bits.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
